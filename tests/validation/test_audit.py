"""The audit agrees with the runtime as it is, and names what is wrong with a runtime that has a fault."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from autoshard.audits.cache import cache_file, load, save
from autoshard.audits.compare import Scale
from autoshard.audits.expected import shortened, telling_microbatches
from autoshard.audits.measure import group_axes, measure, measure_all, recorded
from autoshard.audits.pool import Pool
from autoshard.audits.report import render, to_dict
from autoshard.audits.roles import roles
from autoshard.audits.run import audit_role, held_orders
from autoshard.audits.shared import FEW, runs
from autoshard.audits.steady import steady_period
from autoshard.audits.values import Role, RoleAudit
from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.runtime.torch_backend import collectives, stage_module
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.rounded_adamw import BUFFER_BYTES
from autoshard.schedules import actions
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import ALL, some
from tests.multiprocess.plans import strategy as layout
from tests.multiprocess.started import by_default
from tests.validation.audit_plans import FURTHER, PLANS, plan


def audited(p: Plan, role: Role | None = None) -> RoleAudit:
    return audit_role(p, role or roles(p)[0], held_orders(p))


@pytest.mark.parametrize("name", [name for name in PLANS if ALL or name not in FURTHER])
def test_every_role_of_these_plans_agrees(name: str) -> None:
    p = plan(name)
    orders = held_orders(p)
    for role in roles(p):
        found = audit_role(p, role, orders)
        assert found.agrees, found.differences
        assert {row.what for row in found.rows} >= {"parameters", "memory", "peak memory", "FLOPs"}


@pytest.mark.parametrize(
    ("name", "sdk"),
    some([("tied tables", "2.32"), ("experts apart, ZeRO-3", "2.33"), ("interleaved", "2.32"), ("HSDP", "2.33")], 2),
)
def test_graphs_of_native_neuron_are_counted_and_broadcasts_are_transfers(name: str, sdk: str) -> None:
    p = plan(name)
    native = replace(p, cluster=replace(p.cluster, layout_rules="trn2", lnc=2, stack="neuron-compiled", sdk=sdk))
    for role in roles(native):
        found = audit_role(native, role, held_orders(native))
        assert found.agrees, found.differences
        counted = {row.name: row.measured for row in found.rows if row.what == "graphs"}
        assert counted["all"] == 2 * counted["distinct"] + counted["functions"] > 0
        assert counted["communicators"] > 1


def test_an_audit_leaves_no_group_behind() -> None:
    hook = sys.excepthook
    measure(plan("tp x dp"), roles(plan("tp x dp"))[0])
    assert not dist.is_initialized()
    assert sys.excepthook is hook
    assert not gc.get_freeze_count()


@pytest.mark.parametrize("name", some(["interleaved", "1f1b"], 1))
def test_more_microbatches_are_more_of_the_same(name: str) -> None:
    # what the audit leaves out repeats: run in full, the step holds as much and does that many times as much
    p = plan(name)
    whole = PLANS[name][1]
    assert max(telling_microbatches(p, rank) for rank in range(p.strategy.pp)) < whole
    for role in (roles(p)[0], roles(p)[-1]):
        short, full = measure(p, role), measure(p, role, whole)
        assert short.microbatches < full.microbatches == whole
        assert full.peak_bytes == pytest.approx(short.peak_bytes, rel=1e-5)
        times = whole / short.microbatches
        assert full.flops == {key: count * times for key, count in short.flops.items()}
        assert full.collectives == {
            one: count * (1 if one.phase == "sync" else times) for one, count in short.collectives.items()
        }


PIPELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("llama3-8b", {"tp": 2}),
    "ring": ("llama3-8b", {"tp": 2, "cp": 2, "context_parallel": "ring"}),
    "ZeRO-3": ("llama3-8b", {"dp": 4, "zero": 3}),
    "experts": ("mixtral-8x7b", {"dp": 2, "ep": 2}),
    "gpipe": ("llama3-8b", {"tp": 2, "schedule": "gpipe"}),
}


def long_pipeline(name: str) -> Plan:
    """Eight stages, of which 2 to 5 have the same program: in the others recompute or the number of blocks differs."""
    model_name, changes = PIPELINES[name]
    model = load_model(model_name).some_blocks(range(9))
    fields: dict[str, Any] = dict.fromkeys(("tp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size"), 1)
    fields |= {"schedule": "1f1b", "zero": 1, "attention_kernel": "flash", **changes}
    strategy = Strategy(
        pp=8,
        recompute=("full", "mlp_norm+mlp", *("core_attention",) * 6),
        stage_layers=(1, 1, 1, 1, 1, 1, 2, 1),
        sequence_parallel=fields["tp"] > 1,
        **fields,
    )
    training = TrainingSpec(2048, 16 * strategy.dp, load_precision("mixed_precision"))
    cluster = local_cluster(strategy.world_size)
    return make_plan(model, training, cluster, "torch", strategy, estimate(model, training, cluster, strategy))


@pytest.mark.parametrize("name", some(PIPELINES, 1))
def test_stages_that_are_run_once_are_what_they_are_in_their_own_places(name: str) -> None:
    p = long_pipeline(name)
    programs = runs(p, roles(p))
    found = [(run.role.pipeline_rank, [role.pipeline_rank for role, _ in run.roles]) for run in programs]
    assert sorted(found) == [(0, [0]), (5, [1]), (5, [2, 3, 4, 5]), (6, [6]), (7, [7])]
    for run in programs:
        many = measure_all(run.plan, run.role, [more for _, more in run.roles], run.num_microbatches)
        chosen = [0, 1] if len(many) > 1 else [0]
        for index in chosen:
            role, more = run.roles[index]
            once, itself = many[index], measure(p, role)
            held, run_holds = (
                most if name == "gpipe" else 8 - rank
                for most, rank in ((16, role.pipeline_rank), (FEW, run.role.pipeline_rank))
            )
            assert more == held - min(FEW, run_holds)
            assert once.irregular == itself.irregular == ()
            small = ("tables", "token ids and labels", "kept activations")  # to some numbers of a step, such as losses
            assert {**itself.held} == {**once.held, **{kind: pytest.approx(once.held[kind], abs=64) for kind in small}}
            assert (once.state, once.peak_at, once.parameter_elements) == (
                itself.state,
                itself.peak_at,
                itself.parameter_elements,
            )
            times = itself.microbatches / once.microbatches
            assert itself.flops == {key: pytest.approx(count * times) for key, count in once.flops.items()}
            assert itself.transfers == {key: count * times for key, count in once.transfers.items()}
            assert itself.collectives == {
                one: count * (1 if one.phase == "sync" else times) for one, count in once.collectives.items()
            }


def test_stages_are_run_in_their_own_places_where_more_than_their_depth_differs() -> None:
    for name in ("interleaved", "zero bubble", "unequal blocks", "1f1b"):
        p = plan(name)
        assert all(run.plan is p and run.roles == ((run.role, 0),) for run in runs(p, roles(p)))


def test_what_only_some_forwards_keep_is_found_where_a_stage_stands_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, forward = list[Any](), stage_module.StageModule.forward

    def keeping(self: Any, *inputs: Any) -> Any:
        kept.append(torch.empty(1_000_000))
        return forward(self, *inputs)

    monkeypatch.setattr(stage_module.StageModule, "forward", keeping)
    p = long_pipeline("1f1b")
    run = next(run for run in runs(p, roles(p)) if len(run.roles) > 1)
    assert "F1.0 keeps" in measure_all(run.plan, run.role, [1])[0].irregular[-1]


def test_counts_of_a_part_of_the_step_become_whole_counts() -> None:
    assert 84 * (17 / 7) != 204 == Scale(17, 7)(84)


@pytest.mark.parametrize("name", ["kv replicated", "cp", "padded vocabulary"])
def test_positions_of_one_role_run_the_same_program(name: str) -> None:
    p = plan(name)
    short = shortened(p, 1)
    by_role = {role.rank: role for role in roles(p)}
    last = p.mesh.world_size - 1  # another position along every axis
    role = [role for role in by_role.values() if role.pipeline_rank == p.strategy.pp - 1][-1]
    first, other = measure(short, role), measure(short, replace(role, rank=last))
    assert last not in by_role or name == "padded vocabulary"
    assert (first.collectives, first.flops, first.order) == (other.collectives, other.flops, other.order)
    assert (first.held, first.state) == (other.held, other.state)


def test_roles_cover_every_rank_once() -> None:
    for name in PLANS:
        p = plan(name)
        assert sum(role.stands_for for role in roles(p)) == p.mesh.world_size


def test_padding_of_the_vocabulary_is_a_role_of_its_own() -> None:
    # 50,257 words on 4 ranks are padded to 50,272 = 4 x 12,568: the first three hold 37,704 words, the last has padding
    p = plan("padded vocabulary")
    assert [(role.pipeline_rank, role.rank, role.stands_for) for role in roles(p)] == [(0, 0, 4), (1, 4, 3), (1, 7, 1)]


def test_groups_are_known_by_their_ranks() -> None:
    mesh = plan("1f1b").mesh  # pp 4, dp 2, tp 2
    assert group_axes(mesh, (0, 1)) == ("tp",)
    assert group_axes(mesh, (0, 2)) == ("dp",)
    assert group_axes(mesh, (0, 4, 8, 12)) == ("pp",)
    assert group_axes(mesh, (0, 12)) == ("pp",)  # first and last: tied parameters
    assert group_axes(mesh, (0, 3)) == ("ranks 0, 3",)
    assert group_axes(mesh, (0, 4)) == ("ranks 0, 4",)


def told(found: RoleAudit, what: str) -> str:
    """Names of the differences of one kind."""
    return "; ".join(one.name for one in found.differences if one.what == what)


def test_a_collective_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def slice_of_a_partial_sum(x: torch.Tensor, group: Any, dim: int) -> collectives.Started:
        return lambda: collectives.take_piece(x, group.index, group.size, dim)

    monkeypatch.setattr(collectives, "start_reduce_scatter", slice_of_a_partial_sum)
    found = audited(plan("tp x dp"))
    assert "forward reduce_scatter over tp" in told(found, "collectives")
    assert "backward reduce_scatter over tp" in told(found, "collectives")


def test_a_wrong_group(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MeshGroups.__getitem__

    def wrong(self: MeshGroups, axes: tuple[str, ...]) -> Any:
        return right(self, ("dp",) if axes == ("tp",) else axes)

    monkeypatch.setattr(MeshGroups, "__getitem__", wrong)
    p = plan("1f1b")
    found = audited(replace(p, strategy=p.strategy))
    assert "forward all_gather over tp" in told(found, "collectives")
    assert "forward all_gather over dp" in told(found, "collectives")


def test_a_tensor_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    right = stage_module._run

    def keeping(steps: Any, env: Any) -> None:
        for step in steps:
            right((step,), env)
            kept.append(list(env.values()))

    monkeypatch.setattr(stage_module, "_run", keeping)
    found = audited(plan("1f1b"), roles(plan("1f1b"))[1])
    kept.clear()
    assert "memory grows" in told(found, "steady state")
    assert "at " in told(found, "peak memory")


def test_backward_lets_go_of_its_output_and_of_the_gradient_that_came() -> None:
    """The second of four ranks holds three microbatches. When the attention of its block runs backward there are their
    inputs, the next one that has come, and the outputs of two."""
    p = plan("1f1b")
    role = next(role for role in roles(p) if role.pipeline_rank == 1)
    with recorded(p, role) as one:
        log, done = one.recorder.memory, one.recorder.actions
        [back] = [action for action in done if action.text == "B0.0"]
        moment = next(
            made.birth
            for made in log.allocations
            if made.birth > back.first_event and made.phase == "backward" and "core_attention" in made.place
        )
        program = p.stage_programs[1]
        hidden_bytes = program.local_bytes[program.outputs[0]]
        between = [
            made.received
            for made in log.allocations
            if made.lives(moment) and made.size == hidden_bytes and (made.received or "mlp_residual" in made.tensor)
        ]
    assert (between.count(True), between.count(False)) == (3 + 1, 2)


def test_the_chunks_of_a_rank_share_their_tables() -> None:
    """Cosines and sines of 4096 places, 128 each, BF16: 2 MiB, whether a rank has one stage or two. Ids of tokens and
    other small things are less than half of that."""
    for name in ("1f1b", "interleaved"):
        p = plan(name)
        assert 1 <= measure(p, roles(p)[0]).held["tables"] / (2 * 4096 * 128 * 2) < 1.5, name


def test_a_period_of_the_steady_state_leaves_nothing_waiting() -> None:
    """Where weight gradients are put off, one with as many F as W may have one I more, whose gradients then wait."""
    for pp, count in product((2, 3, 4, 6), range(2, 20)):
        for order in actions("zero_bubble", pp, count, 1):
            if (period := steady_period([*order])) is None:
                continue
            first, _, length = period
            kinds = Counter(action.kind for action in order[first : first + length])
            assert kinds["F"] == kinds["I"] == kinds["W"] > 0, (pp, count, order)


def test_a_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    right = actions

    def swapped(*arguments: Any) -> Any:
        orders = [list(order) for order in right(*arguments)]
        for order in orders:  # the last two backwards of every rank
            order[-1], order[-2] = order[-2], order[-1]
        return tuple(map(tuple, orders))

    p = plan("interleaved")
    monkeypatch.setattr("autoshard.runtime.torch_backend.pipeline.actions", swapped)
    found = audited(p)
    assert "where the plan has" in told(found, "action order")


def test_an_operator_that_computes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stage_module._GatherLinear.forward

    def twice(ctx: Any, *inputs: Any) -> Any:
        right(ctx, *inputs)
        return right(ctx, *inputs)

    monkeypatch.setattr(stage_module._GatherLinear, "forward", staticmethod(twice))
    found = audited(plan("tp x dp"))
    assert "forward einsum model.layers.*.mlp.gate_proj + up_proj" in told(found, "FLOPs")


def test_rounding_at_random_is_audited_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its update has buffers that plain AdamW has not. In parts they are small; all at once the audit would tell."""
    p = plan("tp x dp")
    rounds = load_precision("bf16_sr")
    training = replace(p.training, precision=rounds, sequence_length=16)
    strategy = replace(p.strategy, zero=0)
    made = make_plan(p.model, training, p.cluster, "torch", strategy, estimate(p.model, training, p.cluster, strategy))
    role = roles(made)[0]
    in_parts, at_once = (measured_with(elements, made, role, monkeypatch) for elements in (2**22, 2**40))
    assert at_once > 1.5 * in_parts


def test_what_is_rounded_together_is_of_one_parameter_of_the_rank() -> None:
    """Four ranks share 16 MiB of elements: of the table 1, of q 2, k 1, v 1, o 2, and of gate, up and down 3 each. The
    first one has the table, q and k, the last one a third of up and all of down. Audits of AFM-4.5B found 13 % less
    than was planned with as much as a rank of several parameters has."""
    model = replace(load_model("qwen3-0.6b").some_blocks((0,)), vocab_size=1024)
    training = TrainingSpec(16, 4, load_precision("bf16_sr"))
    one = layout(dp=4, zero=1, recompute="full", sp=False, layers=(1,))
    cluster = local_cluster(4)
    p = make_plan(model, training, cluster, "torch", one, estimate(model, training, cluster, one))
    first, last = (audited(p, Role(0, rank, 1, "")) for rank in (0, 3))
    assert first.agrees and last.agrees, (first.differences, last.differences)
    assert last.peak.planned - first.peak.planned == (3 - 2) * 2**20 * BUFFER_BYTES


def measured_with(elements: int, p: Plan, role: Role, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes at the peak where an update takes so many elements at once."""
    monkeypatch.setattr("autoshard.runtime.torch_backend.rounded_adamw.AT_ONCE", elements)
    return sum(measure(p, role).held.values())


def test_a_plan_that_expects_less_memory() -> None:
    p = plan("tp x dp")
    lean = replace(p.strategy, recompute=("full",))
    expects = estimate(p.model, p.training, p.cluster, lean)
    found = audited(make_plan(p.model, p.training, p.cluster, "torch", p.strategy, expects))
    assert [one.what for one in found.differences] == ["peak memory"]
    page = render(p, (found,), 100, color=False)
    assert "differs from the plan: 0 of 1 roles agree" in page
    assert "peak memory" in page.splitlines()[-1]
    assert not to_dict(p, (found,))["agrees"]


def test_results_are_kept_by_plan_and_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p, other = plan("tp x dp"), plan("one device")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = cache_file(p)
    assert file.is_relative_to(tmp_path)
    assert file not in (cache_file(other), cache_file(p, in_place=True))
    with monkeypatch.context() as another:
        another.setattr("importlib.metadata.version", lambda name: "1.0")
        assert cache_file(p) != file
    found = audited(p)
    assert load(file) == {}
    save(file, {found.role.rank: found})
    assert load(file) == {0: found}
    file.write_text("[{}]")
    assert load(file) == {}


class Here:
    """Stands in for a pool whose processes would import torch anew: answers in this process. Those that are killed
    below are real."""

    def __init__(self, processes: int) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def results(self, called: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        return ((number, called(*call)) for number, call in enumerate(calls))


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("autoshard.audits.run.Pool", Here)
    write_plan(plan("1f1b"), tmp_path / "plan.json")
    path = str(tmp_path / "plan.json")
    assert main(["audit", path, "--stages", "9"]) == 2
    assert capsys.readouterr().err == "autoshard: error: --stages has 9; this plan's pipeline ranks are 0 to 3\n"
    assert main(["audit", path, "--stages", "x"]) == 2
    assert capsys.readouterr().err == "autoshard: error: --stages 'x' is not a list of pipeline ranks such as 0,7\n"
    assert main(["audit", path, "--stages", "0,3"]) == 0
    first = capsys.readouterr()
    assert "audited 2 of 2" in first.err
    assert "as planned: 2 of 2 roles agree" in first.out
    assert main(["audit", path, "--stages", "0,3"]) == 0  # from the cache
    again = capsys.readouterr()
    assert (again.out, again.err) == (first.out, "")
    assert main(["audit", path, "--stages", "3", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["agrees"] and [one["role"]["pipeline_rank"] for one in shown["roles"]] == [3]
    assert main(["audit", path]) == 0  # one may stand for several: what ran in its own place is not taken for that
    assert "audited 4 of 4" in capsys.readouterr().err
    assert main(["audit", path]) == 0
    assert capsys.readouterr().err == ""


def audit_under_way(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """The command and the processes that work for it, in a session of their own; each has begun."""
    write_plan(plan("1f1b"), folder / "plan.json")
    command = [sys.executable, "-m", "autoshard", "audit", "plan.json", "--no-cache"]
    with by_default(signal.SIGINT), by_default(signal.SIGHUP):
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    workers: list[psutil.Process] = []
    while len(workers) < 2:  # a third one counts resources for multiprocessing
        assert process.poll() is None
        time.sleep(0.05)
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children()
            workers = [one for one in children if "spawn_main" in " ".join(one.cmdline()) and one.num_threads() > 1]
    return process, workers


def test_ctrl_c_ends_the_audit_and_its_processes_at_once(tmp_path: Path) -> None:
    process, children = audit_under_way(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal does
    _, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr) == (130, "")
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_ctrl_c_ends_a_process_of_the_audit_that_was_stopped(tmp_path: Path) -> None:
    process, children = audit_under_way(tmp_path)
    for child in children:
        child.suspend()
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "")
    assert not psutil.wait_procs(children, timeout=5)[1]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_killed_audit_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process, children = audit_under_way(tmp_path)
    maps = [Path(f"/proc/{pid}/maps") for pid in (process.pid, *(child.pid for child in children))]
    mapped = "".join(one.read_text() for one in maps if sys.platform == "linux")
    process.send_signal(number)  # to the command alone
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (code, "")
    assert not psutil.wait_procs(children, timeout=20)[1]
    assert "/dev/shm/sem." not in mapped


def test_an_error_of_a_call_is_raised_here() -> None:
    with Pool(1) as pool:
        assert sorted(pool.results(divmod, [(7, 2), (9, 5)])) == [(0, (3, 1)), (1, (1, 4))]
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            next(pool.results(divmod, [(1, 0)]))
        with pytest.raises(AutoshardError) as error:
            next(pool.results(os._exit, [(1,)]))
    assert str(error.value) == "a process of the audit was ended from outside; was there enough memory?"


def test_a_script_without_a_guard_has_its_answer_once(tmp_path: Path) -> None:
    """multiprocessing would have each process do all of the script, and end there."""
    script = tmp_path / "script.py"
    script.write_text(
        "from autoshard.audits.pool import Pool\n"
        "with Pool(2) as pool:\n"
        "    print(sorted(pool.results(divmod, [(7, 2), (9, 5)])))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[(0, (3, 1)), (1, (1, 4))]\n", "")


def test_the_command_imports_no_torch_for_what_is_known() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, autoshard.audits.run, autoshard.audits.report; print('torch' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout == "False\n"
