"""`autoshard run`: as planned where the plan's world is, a rehearsal everywhere smaller. Imports no torch itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from autoshard.backends.backend import imported
from autoshard.backends.native_neuron import check_native
from autoshard.backends.products import check_runs
from autoshard.backends.registry import ANYWHERE, BACKENDS
from autoshard.checkpoint.place import is_remote
from autoshard.doctor.here import check_here
from autoshard.doctor.machine import visible_gpus
from autoshard.errors import AutoshardError, say_error
from autoshard.files.codec import to_json
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.environment import ClusterEnvironment, cluster_environment
from autoshard.runtime.in_cluster import COLLECTIVES_LATER_S, run_in_cluster
from autoshard.runtime.launch import Message, RunOutcome, run_processes
from autoshard.runtime.metrics import MetricsWriter
from autoshard.runtime.options import RunOptions
from autoshard.runtime.processes import Start
from autoshard.runtime.progress import ProgressDisplay
from autoshard.runtime.rehearse import SEQUENCE_LENGTH, one_process, rehearse
from autoshard.runtime.report import Verdict, introduction, result_tables, run_summary, verdict
from autoshard.runtime.starting import TRAINER, starter
from autoshard.runtime.toolchain import require_cpp_compiler
from autoshard.runtime.unpriced import document_masks
from autoshard.runtime.worker_arguments import CheckpointOptions, TrainArguments
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.runtime.data import TokenFile, TokenStream

_TRAIN, _COMPARE = f"{TRAINER}:train", f"{TRAINER}:compare"
NO_CHECKSUMS = (1, 2**62)
"""The share of a checkpoint's files whose checksums are compared before ranks start: none, since they compare all."""
_TOKENS = ".tokens"
"""Folder inside the output folder, shared by its runs."""


OnFolder = Callable[[Path], None]
"""A function that is told the folder that a run writes to."""


def run_plan(
    plan: Plan, options: RunOptions, on_folder: OnFolder = lambda folder: None, start: Start | None = None
) -> int:
    """Run or rehearse, print what happened -> exit code: 0, 1 when it failed or differs, 128 + signal when stopped.

    start: of `starter`, where that is already at work; outside a cluster alone.
    Raises AutoshardError where the plan, the machine or the options do not go together.
    """
    environment = cluster_environment()
    options = replace(options, backend=_backend(plan, options, environment is not None))
    if find_spec("torch") is None:
        raise AutoshardError("autoshard run needs torch: pip install 'autoshard[torch]'")
    if options.device == "neuron":  # at once; where the device is found out, the ranks say it
        check_native(plan.training.precision, plan.strategy.pp, plan.cluster.has_p2p)
    if options.compile and options.device not in ("cuda", "neuron"):
        require_cpp_compiler()
    if environment is not None:
        return _run_in_cluster(plan, options, environment, on_folder)
    run = _run_here if _has_place_for(plan, options) else _rehearse
    with starter(options) if start is None else nullcontext(start) as begin:
        return run(plan, options, begin, on_folder)


def _has_place_for(plan: Plan, options: RunOptions) -> bool:
    """Whether this machine alone runs the plan as it is: on processes where it is for a CPU, else on GPUs."""
    if plan.cluster.is_host:
        return plan.mesh.world_size <= options.processes
    on_gpus = plan.cluster.platform.is_cuda and options.device in ("auto", "cuda")
    return on_gpus and plan.mesh.world_size <= visible_gpus()


def _backend(plan: Plan, options: RunOptions, in_cluster: bool) -> str:
    """Name of the backend that executes the plan; never "auto". in_cluster: this process was started in a cluster.

    Raises AutoshardError where this machine lacks packages that the backend needs.
    """
    chosen = options.backend
    if chosen == "auto":
        on_trainium = in_cluster and plan.cluster.platform.is_trainium and options.device == "auto"
        chosen = plan.backend if on_trainium else ANYWHERE.name
        if on_trainium:
            check_here(plan)
    check_runs(BACKENDS[chosen], plan.training.precision)
    if options.document_mask and plan.model.compressed_attention is not None:
        raise AutoshardError(
            f"document_mask: entries of {plan.model.name} stand for pieces of whole rows; leave it out, or give each "
            "document a row"
        )
    if options.document_mask and plan.model.block_indexer is not None:
        raise AutoshardError(
            f"document_mask: the indexer of {plan.model.name} chooses blocks of whole rows; leave it out, or give each "
            "document a row"
        )
    if options.document_mask and plan.model.indexer is not None and plan.model.indexer.index_kpool is not None:
        raise AutoshardError(
            f"document_mask: the indexer of {plan.model.name} chooses pools of whole rows; leave it out, or give each "
            "document a row"
        )
    requirement = BACKENDS[chosen].requirement
    if requirement is not None:
        imported(requirement)()
    return chosen


def _rehearse(plan: Plan, options: RunOptions, start: Start, on_folder: OnFolder) -> int:
    if options.uses_checkpoints:
        raise AutoshardError(
            f"checkpoints are of runs as planned, this would be a rehearsal: {_too_few_here(plan, options)}"
        )
    if options.weights is not None:
        raise AutoshardError(
            f"weights={options.weights} are of the whole model, this would be a rehearsal with a smaller one: "
            f"{_too_few_here(plan, options)}"
        )
    data = _data(options, SEQUENCE_LENGTH)
    _check_room(plan, data)  # of the plan's own model: the smaller one gets the vocabulary of the data
    rehearsal = rehearse(plan, options.processes, max(one.vocab_size for one in data))
    learned = _check_data(rehearsal.plan, options, data)
    directory = _run_directory(plan, options, "rehearsal")
    on_folder(directory)
    print(introduction(plan, rehearsal, _made_of(plan, options, data, learned)), flush=True)
    write_plan(rehearsal.plan, directory / "rehearsal_plan.json")
    with TemporaryDirectory(prefix="autoshard-tensors-") as tensors:
        arguments = _arguments(directory / "rehearsal_plan.json", options, data, tensors)
        with _metrics(directory, plan, options) as metrics:
            sharded = _train(rehearsal.plan, arguments, options, start, directory, metrics, "sharded")
        if sharded.exit_code:
            return _failed(sharded)
        files = _write_measured(directory, rehearsal.plan, sharded.results)
        alone = _compare(rehearsal.plan, arguments, options, start, directory)
        if alone.exit_code:
            return _failed(alone)
    found = verdict(rehearsal.plan, sharded.results, _both(alone.results))
    print(result_tables(found), flush=True)
    _write_result(directory, found)
    _say_where(metrics, directory, files)
    print(found.line, flush=True)
    return 0 if found.ok else 1


def _too_few_here(plan: Plan, options: RunOptions) -> str:
    """The plan's ranks, those of this machine, and who runs as many."""
    ranks, instance = counted(plan.mesh.world_size, "rank"), plan.cluster.instance
    if plan.cluster.is_host:
        return f"the plan has {ranks}, processes={options.processes}; --processes {plan.mesh.world_size} runs it here"
    return f"the plan has {ranks} on {instance}; torchrun or Slurm with as many processes runs it as planned"


def _run_here(plan: Plan, options: RunOptions, start: Start, on_folder: OnFolder) -> int:
    """The plan is for processes or GPUs of this machine: nothing is shrunk, nothing is compared."""
    data = _data(options, plan.training.sequence_length)
    learned = _check_data(plan, options, data)
    with _checkpoint_lock(plan, options):
        _check_start(plan, options, learned)
        directory = _run_directory(plan, options, "run")
        on_folder(directory)
        write_plan(plan, directory / "plan.json")
        kind = "GPU" if plan.cluster.platform.is_cuda else "process"
        print(f"Running as planned: {counted(plan.mesh.world_size, kind)} of this machine", flush=True)
        print(f"text: {_made_of(plan, options, data, learned)}", flush=True)
        arguments = _arguments(directory / "plan.json", options, data, None, _checkpoints(plan, options))
        with _metrics(directory, plan, options) as metrics:
            outcome = _train(plan, arguments, options, start, directory, metrics, "training")
    if outcome.exit_code:
        return _failed(outcome)
    print(run_summary(plan, outcome.results), flush=True)
    _say_where(metrics, directory, _write_measured(directory, plan, outcome.results))
    return _saved(outcome.results[0])


def _run_in_cluster(plan: Plan, options: RunOptions, environment: ClusterEnvironment, on_folder: OnFolder) -> int:
    """One rank of torchrun or Slurm, which started as many processes as the plan has ranks."""
    from autoshard.runtime.worker import exit_now

    if environment.world_size != plan.mesh.world_size:
        raise AutoshardError(
            f"{environment.launcher} started {counted(environment.world_size, 'process')}; the plan has "
            f"{counted(plan.mesh.world_size, 'rank')}: start as many, or none (without {environment.launcher} it is "
            "rehearsed)"
        )
    first = environment.rank == 0
    data = _data(options, plan.training.sequence_length)
    learned = _check_data(plan, options, data)
    with TemporaryDirectory(prefix="autoshard-plan-") as folder:
        write_plan(plan, Path(folder) / "plan.json")
        arguments = _arguments(Path(folder) / "plan.json", options, data, None, _checkpoints(plan, options))
        silence_s = options.timeout_s
        patience_s = None if silence_s is None else silence_s + COLLECTIVES_LATER_S
        arguments = replace(arguments, gather=True, collective_timeout_s=patience_s)  # no supervisor hears all ranks
        run = partial(run_in_cluster, _TRAIN, to_json(arguments), environment, hang_timeout_s=silence_s)
        if not first:
            outcome = run(on_message=lambda message: None)
        else:
            with _checkpoint_lock(plan, options):
                _check_start(plan, options, learned)
                directory = _run_directory(plan, options, "run")
                on_folder(directory)
                write_plan(plan, directory / "plan.json")
                print(f"Running as planned: {environment.world_size} ranks of {environment.launcher}", flush=True)
                print(f"text: {_made_of(plan, options, data, learned)}", flush=True)
                with (
                    _metrics(directory, plan, options) as metrics,
                    _progress(plan, options, "training") as progress,
                ):
                    outcome = run(on_message=_recorder(metrics, progress))
                    metrics.close(exit_code=outcome.exit_code)
            if outcome.exit_code == 0 and outcome.results[0] is not None:
                ranks = outcome.results[0]["ranks"]
                print(run_summary(plan, ranks), flush=True)
                _say_where(metrics, directory, _write_measured(directory, plan, ranks))
    if outcome.message:
        say_error(outcome.message)
    exit_now(outcome.exit_code or _saved(outcome.results[0]))


def _train(
    plan: Plan,
    arguments: TrainArguments,
    options: RunOptions,
    start: Start,
    directory: Path,
    metrics: MetricsWriter,
    description: str,
) -> RunOutcome:
    with _progress(plan, options, description) as progress:
        outcome = run_processes(
            _TRAIN,
            to_json(arguments),
            plan.mesh.world_size,
            on_message=_recorder(metrics, progress),
            log_directory=directory / "logs",
            hang_timeout_s=options.timeout_s,
            start=start,
        )
    metrics.close(exit_code=outcome.exit_code)
    return outcome


def _compare(plan: Plan, arguments: TrainArguments, options: RunOptions, start: Start, directory: Path) -> RunOutcome:
    with _progress(one_process(plan), options, "one process") as progress:
        return run_processes(
            _COMPARE,
            to_json(arguments),
            2,  # one of them trains in the next finer precision
            on_message=_recorder(None, progress),
            log_directory=directory / "logs" / "one-process",
            hang_timeout_s=options.timeout_s,
            start=start,
        )


def _both(results: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """The results of the processes that compare, as those of one."""
    return {name: value for one in results if one is not None for name, value in one.items()}


def _recorder(metrics: MetricsWriter | None, progress: ProgressDisplay) -> Callable[[Message], None]:
    def record(message: Message) -> None:
        if message.kind == "note":
            progress.note(message.values["text"])
        if message.kind == "step":
            values = dict(message.values)
            step = values.pop("step")
            if "held_out_loss" in values:
                progress.note(f"step {step}: loss on held-out data {values['held_out_loss']:.4f}")
            progress.update(step, values["loss"])
            if metrics is not None:
                metrics.write(step, values)

    return record


def _progress(plan: Plan, options: RunOptions, description: str) -> ProgressDisplay:
    return ProgressDisplay(options.steps, tokens_per_step=plan.training.tokens_per_step, description=description)


def _metrics(directory: Path, plan: Plan, options: RunOptions) -> MetricsWriter:
    config = {"model": plan.model.name, "instance": plan.cluster.instance, **to_json(plan.strategy)}
    return MetricsWriter(directory, wandb=options.wandb, project=options.wandb_project, config=config)


def _checkpoint_place(plan: Plan, options: RunOptions) -> str:
    """A whole path or s3://bucket/prefix."""
    default = options.output / "checkpoints" / Path(plan.model.name).name
    return _place(options.checkpoint_dir or str(default))


def _place(location: str) -> str:
    return location if is_remote(location) else str(Path(location).resolve())


def _checkpoint_lock(plan: Plan, options: RunOptions) -> AbstractContextManager[None]:
    """A lock on the place of checkpoints, so that no other run saves there; without saving it locks nothing."""
    if options.checkpoint_every is None:
        return nullcontext()
    from autoshard.checkpoint.open_place import open_store

    place = options.checkpoint_dir or _checkpoint_place(plan, options)
    return open_store(place).lock()


def _checkpoints(plan: Plan, options: RunOptions) -> CheckpointOptions | None:
    if not options.uses_checkpoints:
        return None
    return CheckpointOptions(
        location=_checkpoint_place(plan, options),
        every=options.checkpoint_every,
        keep=options.keep,
        keep_every=options.keep_every,
        resume=options.resumes if options.resumes in ("auto", "never") else _place(options.resumes),
        synchronous=options.checkpoint_sync,
    )


def _arguments(
    plan: Path,
    options: RunOptions,
    data: tuple[TokenFile, ...],
    tensors: str | None,
    checkpoints: CheckpointOptions | None = None,
) -> TrainArguments:
    """The arguments of the worker functions `train` and `compare`.

    plan: path of plan.json. data: tokens to learn, then those to evaluate on where they have files of their own.
    tensors: folder for tensors to compare, in a rehearsal; else None.
    """
    return TrainArguments(
        plan=str(plan),
        tensors=tensors,
        steps=options.steps,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup_steps,
        lr_schedule=options.lr_schedule,
        debug_nan=options.debug_nan,
        compile=options.compile,
        document_mask=options.document_mask,
        seed=options.seed,
        data=str(data[0].path.resolve()),
        weights=None if options.weights is None else str(options.weights.resolve()),
        adapter=None if options.adapter is None else str(options.adapter.resolve()),
        eval_data=str(data[1].path.resolve()) if len(data) > 1 else None,
        eval_fraction=options.eval_fraction,
        eval_every=options.eval_every,
        eval_batches=options.eval_batches,
        device=options.device,
        backend=options.backend,
        rehearsal=tensors is not None,
        profile=options.profile,
        checkpoints=checkpoints,
    )


def _data(options: RunOptions, sequence_length: int) -> tuple[TokenFile, ...]:
    """The data, and those to evaluate on where they have files of their own, as tokens on this machine's disk.

    Whoever comes first makes them, ranks and later runs find them.
    """
    from autoshard.runtime.data import DataSource, prepare  # brings numpy
    from autoshard.runtime.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(options.tokenizer)
    how = (options.text_field, sequence_length, options.packing, options.document_mask)
    sources = [DataSource(options.data, tokenizer, *how)]
    if options.eval_data is not None:
        sources.append(DataSource(options.eval_data, tokenizer, *how, option="--eval-data"))
    return tuple(prepare(source, options.output / _TOKENS) for source in sources)


def _check_data(plan: Plan, options: RunOptions, data: tuple[TokenFile, ...]) -> TokenStream:
    """The tokens that are learned, as batches of the plan's shape.

    Raises AutoshardError for ids beyond the vocabulary and for less than one batch. One process finds that here, before
    ranks start.
    """
    from autoshard.runtime.data import held_out, open_stream

    training = plan.training
    _check_room(plan, data)
    streams = []
    for file, path in zip(data, (options.data, options.eval_data), strict=False):
        try:
            stream = open_stream(
                file,
                global_batch_size=training.global_batch_size,
                sequence_length=training.sequence_length,
                seed=options.seed,
            )
        except AutoshardError as error:
            raise AutoshardError(f"{path}: {error}" if path is not None else str(error)) from None
        streams.append(stream if options.eval_fraction is None else held_out(stream, options.eval_fraction)[0])
    return streams[0]


def _check_room(plan: Plan, data: tuple[TokenFile, ...]) -> None:
    """Raises AutoshardError for ids beyond the vocabulary of the plan's model."""
    for file in data:
        if file.vocab_size > plan.model.vocab_size:
            raise AutoshardError(
                f"{file.made_of}: vocab_size={plan.model.vocab_size} of {plan.model.name} has no room for "
                f"{file.vocab_size} ids"
            )


def _check_start(plan: Plan, options: RunOptions, learned: TokenStream) -> None:
    """Before a folder is made and a rank starts: raises AutoshardError where a checkpoint or weights do not go with the
    run."""
    from autoshard.runtime.resume import check_resume

    checkpoints = _checkpoints(plan, options)
    start = (plan.model, learned, options.steps, options.weights, plan.training.optimizer)
    begin = None if checkpoints is None else check_resume(checkpoints, *start)
    if begin is not None:
        return
    if options.checkpoint_dir is not None and options.checkpoint_every is None and options.resumes == "auto":
        raise AutoshardError(
            f"checkpoint_dir={options.checkpoint_dir} holds no checkpoint to go on from, and none is saved without "
            "checkpoint_every"
        )
    if options.weights is not None:
        from autoshard.conversion.convert import open_source, source_for

        source_for(open_source(options.weights, plan.model, NO_CHECKSUMS, adapter=options.adapter), plan)


def _made_of(plan: Plan, options: RunOptions, data: tuple[TokenFile, ...], learned: TokenStream) -> str:
    made_of = "; held out: ".join(file.made_of for file in data)
    if options.eval_fraction is not None:
        rows = data[0].num_tokens // (learned.sequence_length + 1)
        made_of += f", the last {rows - learned.rows_per_epoch:,} of {rows:,} rows held out"
    return f"{made_of}\n{document_masks(plan)}" if options.document_mask else made_of


def _run_directory(plan: Plan, options: RunOptions, kind: str) -> Path:
    """A new folder for this run: two runs never write into one."""
    name = f"{Path(plan.model.name).name}-{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for number in range(1, 1000):
        directory = options.output / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            if directory.is_dir():
                continue
            raise AutoshardError(f"output={options.output} is a file: name a folder") from None
        except OSError as error:
            raise AutoshardError(f"cannot make {directory}: {error.strerror or error}") from error
        return directory
    raise AutoshardError(f"output={options.output} holds a thousand runs named {name}")


def _write_result(directory: Path, found: Verdict) -> None:
    from autoshard.files.atomic_file import write_text
    from autoshard.plans.plan_json import compact_json

    write_text(directory / "result.json", compact_json(found.to_dict()) + "\n", "result")


def _failed(outcome: RunOutcome) -> int:
    say_error(outcome.message)
    return outcome.exit_code


def _saved(result: dict[str, Any] | None) -> int:
    """1, and says so, where the run of rank 0 ended but its state is not saved; else 0."""
    unsaved = "" if result is None else result["trained"]["unsaved"]
    if unsaved:
        say_error(f"the training ended, its last {unsaved}")
    return 1 if unsaved else 0


def _write_measured(directory: Path, plan: Plan, results: Sequence[dict[str, Any] | None]) -> tuple[str, ...]:
    """run.json and, of a profiled run, trace.json -> where they are, for people."""
    from autoshard.files.atomic_file import write_text
    from autoshard.plans.measured_run import write_measured_run
    from autoshard.runtime.measured import measured, trace

    run = measured(plan, results)
    write_measured_run(run, directory / "run.json")
    if run.profile is None:
        return (str(directory / "run.json"),)
    write_text(directory / "trace.json", json.dumps(trace(plan, results)) + "\n", "trace")
    return str(directory / "run.json"), f"{directory / 'trace.json'} (for https://ui.perfetto.dev)"


def _say_where(metrics: MetricsWriter, directory: Path, files: Sequence[str]) -> None:
    print(f"{directory}: " + ", ".join((*metrics.locations, *files)), flush=True)
