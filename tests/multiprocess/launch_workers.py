"""What test_launch.py runs in its processes; no torch except where a function imports it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.runtime.fork_server import fork_server
from autoshard.runtime.launch import Message, run_processes
from autoshard.runtime.processes import start_interpreter
from autoshard.runtime.worker import Reporter, peak_memory_bytes


def square(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    print(f"rank {reporter.rank} prints")
    for step in range(arguments["steps"]):
        reporter.last_action = f"step {step}"
        reporter.report("step", step=step, loss=float("nan"))
    return {"square": reporter.rank**2, "memory_bytes": peak_memory_bytes(), "folder": sys.path[0]}


def sleep(arguments: dict[str, Any], reporter: Reporter) -> None:
    """Sleeps; with "stubborn" SIGTERM does not end it, with "child" it leaves one behind."""
    if arguments.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.get("child"):
        child = subprocess.Popen(["sleep", "60"])
        reporter.report("pid", pid=child.pid)
    reporter.last_action = "sleep"
    reporter.report("pid", pid=os.getpid())
    time.sleep(arguments.get("seconds", 60))


def one_rank(arguments: dict[str, Any], reporter: Reporter) -> None:
    """Rank 1 does as told, the others sleep."""
    reporter.last_action = "warm-up"
    reporter.report("pid", pid=os.getpid())
    if reporter.rank != 1 and arguments["does"] == "stop":
        time.sleep(60)
    if reporter.rank != 1:
        while True:
            reporter.last_action = "waiting"
            time.sleep(0.05)
    reporter.last_action = "step 3, F2.0"
    match arguments["does"]:
        case "raise":
            print("\x1b[31mred\x1b[0m words before the end")
            raise ValueError("loss is nan")
        case "user's mistake":
            raise AutoshardError("data.txt holds 3 tokens; one batch needs 8")
        case "exit":
            sys.exit(0)
        case "vanish":
            os._exit(3)
        case "hang":
            time.sleep(60)
        case "stop":  # once the others are silent, too
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGSTOP)


def stopped_when_done(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 1 is stopped when its work is done and that of the others is not."""
    reporter.report("pid", pid=os.getpid())
    if reporter.rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    else:
        time.sleep(1.5)
    return {"rank": reporter.rank}


def ring(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """All-reduces for ever, or `steps` times, by gloo and through shared memory in turn; at step 3 rank 1 may raise."""
    import torch
    import torch.distributed as dist

    from autoshard.runtime.torch_backend.collectives import all_reduce
    from autoshard.runtime.torch_backend.groups import Group

    dist.init_process_group(
        "gloo", init_method=reporter.init_method, rank=reporter.rank, world_size=reporter.world_size
    )
    ranks = list(range(reporter.world_size))
    group = Group.of(dist.new_group(ranks), ranks, reporter.rank)
    assert group.direct is not None
    tensor = torch.ones(4)
    for step in range(arguments.get("steps", 1_000_000)):
        reporter.last_action = f"all-reduce {step}"
        if step == 3:
            reporter.report("pid", pid=os.getpid())
            if arguments.get("raise") and reporter.rank == 1:
                raise ValueError("loss is nan")
        if step % 2:
            tensor = all_reduce(tensor, group) / group.size
        else:
            dist.all_reduce(tensor)
        time.sleep(0.01)
    return {"sum": tensor[0].item(), "group_is_alive": dist.is_initialized()}


def pipelined(arguments: dict[str, Any], reporter: Reporter) -> None:
    """Two stages; the second microbatch of the second one raises."""
    import torch

    from tests.multiprocess.compared import connect
    from tests.multiprocess.masked_workers import batch
    from tests.multiprocess.models import MODELS
    from tests.multiprocess.plans import FP32, plan_of, strategy

    connect(reporter)
    from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
    from autoshard.runtime.torch_backend.session import Session

    def tell(action: str) -> None:
        reporter.last_action = action

    plan = plan_of(MODELS["llama"], strategy(pp=2), 4, FP32)
    settings = optimizer_settings(FP32, 1e-3, zero=1, seed=0)
    session = Session(plan, reporter.rank, torch.device("cpu"), settings, seed=0, on_action=tell)
    if reporter.rank == 1:
        forward = session.modules[1].forward

        def raising(*inputs: torch.Tensor) -> torch.Tensor:
            if reporter.last_action == "F1.0":
                raise ValueError("loss is nan")
            return forward(*inputs)

        session.modules[1].forward = raising  # type: ignore[method-assign]
    session.step(*batch(plan, 0), 1e-3)


def folder(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    return {"folder": str(Path.cwd())}


def parent(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Who started this rank, and its command."""
    return {"parent": os.getppid(), "forked": b"fork_server" in Path("/proc/self/cmdline").read_bytes()}


def supervise(
    log_directory: str,
    function: str,
    arguments: dict[str, Any],
    num_processes: int,
    grace_s: float,
    modules: list[str],
) -> None:
    """A supervisor to send signals to: prints each message's values, then the outcome, as JSON lines.

    modules: its ranks are forked after these were imported; none: they are new interpreters.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a CI job in the background may have it ignored

    def on_message(message: Message) -> None:
        print(json.dumps(message.values), flush=True)

    with fork_server(modules) if modules else nullcontext(start_interpreter) as start:
        print(json.dumps({}), flush=True)
        outcome = run_processes(
            f"tests.multiprocess.launch_workers:{function}",
            arguments,
            num_processes,
            on_message=on_message,
            log_directory=Path(log_directory),
            grace_s=grace_s,
            trusted_prefix="tests.",
            start=start,
        )
    print(json.dumps({"message": outcome.message}), flush=True)
    sys.exit(outcome.exit_code)
