"""A migration as a page: what changed, what that does to time and memory, what is not carried over, how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from autoshard.backends.registry import BACKENDS
from autoshard.explanation.compare import compare
from autoshard.migration.migrate import Migration
from autoshard.plans.differences import loses
from autoshard.plans.plan import Plan
from autoshard.spec.stack import STACKS
from autoshard.units import format_bytes, format_number, format_seconds, percent

PLAN, CHECKPOINT, JOB, PAGE = "plan.json", "checkpoint", "job.sh", "MIGRATION.md"


def run_words(migration: Migration, folder: Path, begins: str | None) -> tuple[str, ...]:
    """The words of `python` that go on with the training: a program and its arguments.

    folder: of the migration. begins: the option that takes its checkpoint, --resume or --weights; None without one.
    """
    resume = () if begins is None else (begins, str(folder / CHECKPOINT))
    options = (word for option in migration.learning.options for word in option)
    return ("-m", "autoshard", "run", str(folder / PLAN), *resume, *options)


def page(migration: Migration, folder: Path, position: str) -> str:
    """The page as Markdown. position: sentences on the checkpoint; empty without one."""
    return "\n".join(_lines(migration, folder, position)) + "\n"


def _lines(migration: Migration, folder: Path, position: str) -> Iterator[str]:
    before, after = migration.before, migration.after
    found = compare(before, after)
    yield f"# {before.model.name}: from NxD to {'native PyTorch' if after.cluster.stack is not None else 'torch'}"
    yield ""
    yield f"`{migration.file}` as NxD Training ran it, and the plan that autoshard found for the same training."
    yield ""
    yield "| | before | after |"
    yield "|---|---|---|"
    yield f"| software | {_software(before)} | {_software(after)} |"
    for what, one, other in found.different:
        yield f"| {what} | {one} | {other} |"
    yield f"| step | {_step(before)} | {_step(after)} |"
    yield f"| fullest device | {_memory(before)} | {_memory(after)} |"
    yield ""
    ratio = after.estimate.step_time_s / before.estimate.step_time_s
    yield f"A step takes {ratio:.2f} times as long: {loses(before.estimate, after.estimate)}."
    yield ""
    for what, same in found.same:
        if what in ("model", "sequences", "tokens a sequence", "precision"):
            yield f"- {what}: {same}, as before"
    yield ""
    yield "## Checkpoint"
    yield ""
    yield position or "None was given: training starts from random weights, or from `--weights`."
    yield ""
    yield "## Differs, or is not carried over"
    yield ""
    for sentence in (*migration.learning.differs, *migration.warnings):
        yield f"- {sentence}"
    yield "- data: autoshard has an order of samples of its own (`--data`, `--seed`); NxD Training's is not taken over"
    if migration.left_out:
        yield f"- keys of the file that neither plan nor job holds: {', '.join(migration.left_out)}"
    yield ""
    yield "## Notes of the plan"
    yield ""
    for note in after.notes:
        yield f"- {note}"
    yield ""
    yield "## Go on"
    yield ""
    yield f"    autoshard doctor {shlex.quote(str(folder / PLAN))}"
    yield f"    sbatch {shlex.quote(str(folder / JOB))}        # add --data and --tokenizer to its last line first"
    yield ""
    yield "Predictions of a cost model; nothing here was measured on these devices."


def _software(plan: Plan) -> str:
    stack = plan.cluster.stack
    if stack is not None:
        return f"{STACKS[stack].label} ({stack})"
    return ", ".join(BACKENDS[plan.backend].packages) or f"backend {plan.backend}"


def _step(plan: Plan) -> str:
    estimate = plan.estimate
    rate = f"~{format_number(estimate.tokens_per_s)} tokens/s"
    return f"~{format_seconds(estimate.step_time_s)}, {rate}, MFU ~{estimate.mfu:.1%}"


def _memory(plan: Plan) -> str:
    estimate = plan.estimate
    used, capacity = estimate.fullest.total_bytes, estimate.memory_capacity_bytes
    fits = f"fits with {percent(estimate.fits_probability)} probability"
    return f"~{format_bytes(used)} of {format_bytes(capacity)}, {fits}"
