"""Writes what a run prints: what is rehearsed, the tables at the end, and whether sharded and unsharded agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

from autoshard.layout.strategy import Strategy
from autoshard.plans.names import recompute_by_stage, short_name
from autoshard.plans.plan import Plan
from autoshard.runtime.measured import step_times
from autoshard.runtime.rehearse import Rehearsal
from autoshard.units import counted, format_bytes, format_count, format_seconds

Result = dict[str, Any]

CHECK_TOLERANCE = 1e-5
"""Largest relative difference of loss, gradient norm and any gradient after one step in FP32, or FP64.

FP32 has 6e-8; sums of thousands of terms in another order lose a digit or two. A wrong layout is off by 0.1 and more.
"""
ROUNDING_FACTOR = 3.0
"""After training in the plan's precision, sharding may change a run this many times as much as rounding alone does.

Rounding's own share is measured: the one process trains once more in the next finer precision. Many steps at a high
learning rate amplify any rounding (training is chaotic); the FP32 step is then the test that decides.
"""
CHAOTIC = 0.5
"""A quantity that rounding alone changes by more than this share is not judged: training has amplified the rounding too
far."""
LEARNT = 0.01
"""A loss below this share of the first step's is of text that is known by heart, and rounding changes it by more than
it is: its difference is held against this share of the first one."""
FALLS_IN = 10
"""A run with fewer steps need not show a falling loss: the learning rate has hardly risen, and batches differ by as
much."""
ROUNDING_FLOORS = {"loss": 1e-3, "gradient": 0.05, "parameter": 5e-3}
"""Relative differences that are always allowed: about ten times those of a bf16 run of 30 steps (2e-4, 2e-2, 2e-3)."""


@dataclass(frozen=True)
class Difference:
    """One compared quantity. value: relative difference to one process; tensor: where it is largest."""

    what: str
    value: float
    tolerance: float
    tensor: str = ""

    @property
    def ok(self) -> bool:
        return self.value <= self.tolerance  # false for NaN


@dataclass(frozen=True)
class Verdict:
    """Whether the sharded run equals one process, and the numbers behind it."""

    check: tuple[Difference, ...]
    trained: tuple[Difference, ...]
    losses: tuple[float, ...]
    losses_alone: tuple[float, ...]
    peak_memory_bytes: tuple[int, ...]
    stages_of_rank: tuple[tuple[int, ...], ...]
    step_time_s: float
    step_time_alone_s: float

    @property
    def loss_falls(self) -> bool:
        """Whether the mean loss of the last quarter of the steps is below the first step's; True for fewer than
        FALLS_IN steps."""
        last = self.losses[-max(1, len(self.losses) // 4) :]
        mean = sum(last) / len(last)
        return isfinite(mean) and (len(self.losses) < FALLS_IN or mean < self.losses[0])

    @property
    def ok(self) -> bool:
        return all(one.ok for one in (*self.check, *self.trained)) and self.loss_falls

    @property
    def line(self) -> str:
        if self.ok:
            return "OK: the sharded run equals one process"
        wrong = [f"{one.what} differs by {one.value:.1e}" for one in (*self.check, *self.trained) if not one.ok]
        return "FAILED: " + ", ".join(wrong + ([] if self.loss_falls else ["the loss does not fall"]))

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        for one in values["trained"]:
            one["tolerance"] = None if one["tolerance"] == inf else one["tolerance"]
        return {"ok": self.ok, "loss_falls": self.loss_falls, **values}


def verdict(plan: Plan, ranks: Sequence[Result | None], alone: Result | None) -> Verdict:
    """Compares what the ranks returned with what the one process returned."""
    assert alone is not None
    results = [result for result in ranks if result is not None]
    first = results[0]
    losses, losses_alone = first["trained"]["losses"], alone["trained"]["losses"]
    step = f"({first['check']['precision']}, one step)"
    check = [
        Difference(f"loss {step}", _off(first["check"]["loss"], alone["check"]["loss"]), CHECK_TOLERANCE),
        Difference(
            f"gradient norm {step}",
            _off(first["check"]["gradient_norm"], alone["check"]["gradient_norm"]),
            CHECK_TOLERANCE,
        ),
        _difference(f"gradients {step}", alone["differences"]["check"]["gradient"], CHECK_TOLERANCE),
    ]
    return Verdict(
        tuple(check),
        _after_training(plan, losses, alone),
        tuple(losses),
        tuple(losses_alone),
        tuple(result["peak_memory_bytes"] for result in results),
        tuple(tuple(result["stages"]) for result in results),
        step_times(first["trained"]).median,
        step_times(alone["trained"]).median,
    )


def _after_training(plan: Plan, losses: Sequence[float], alone: Result) -> tuple[Difference, ...]:
    """Differences after training in the plan's precision, with what rounding alone does to the one process as the
    limit."""
    name, differences = plan.training.precision.name, alone["differences"]
    after = f"({name}, after {len(losses)} steps)"

    def allowed(what: str, rounding: float) -> float:
        return inf if rounding > CHAOTIC else max(ROUNDING_FLOORS[what], ROUNDING_FACTOR * rounding)

    references = alone["trained"]["losses"]

    def worst(values: Sequence[float]) -> float:
        return max(_off(a, b, LEARNT * abs(references[0])) for a, b in zip(values, references, strict=True))

    rounded = worst(alone["rounding"]["losses"])
    loss = Difference(f"loss ({name}, worst of {len(losses)} steps)", worst(losses), allowed("loss", rounded))
    tensors = [
        _difference(
            f"{what}s {after}",
            differences["trained"][what],
            allowed(what, differences["rounding"][what]["relative_difference"]),
        )
        for what in ("gradient", "parameter")
    ]
    return (loss, *tensors)


def introduction(plan: Plan, rehearsal: Rehearsal, text: str) -> str:
    """The first lines of a rehearsal: that it is one, of which plan, and what is smaller."""
    small = rehearsal.plan
    world = small.mesh.world_size
    rows = [("", "plan", "here")] + [
        row for row in _compared(plan, small) if row[1] != row[2] or row[0] in ("layout", "schedule", "recompute")
    ]
    lines = [
        (
            f"REHEARSAL of {plan.model.name} on {plan.cluster.nodes} x {plan.cluster.instance}: "
            f"this machine is not the plan's {plan.mesh.world_size:,} devices."
        ),
        (
            f"The same axes, schedule, recompute, ZeRO and number formats run in {world} CPU "
            f"process{'es' if world > 1 else ''}, on a shrunken model."
        ),
        "",
        *_table(rows),
        "",
        f"text: {text}",
    ]
    if rehearsal.left_out:
        lines.append(
            f"not rehearsed: {', '.join(rehearsal.left_out)} "
            f"(all axes together take --processes {rehearsal.processes_for_all})"
        )
    return "\n".join(lines)


def result_tables(found: Verdict) -> str:
    """Tables of losses, differences and each rank's memory."""
    count = len(found.losses)
    shown = sorted({0, count // 2, count - 1})
    losses = [(f"step {step + 1}", f"{found.losses[step]:.4f}", f"{found.losses_alone[step]:.4f}") for step in shown]
    differences = [(one.what, f"{one.value:.1e}", _allowed(one), one.tensor) for one in (*found.check, *found.trained)]
    memory = [
        (str(rank), " ".join(map(str, stages)), format_bytes(size))
        for rank, (size, stages) in enumerate(zip(found.peak_memory_bytes, found.stages_of_rank, strict=True))
    ]
    times = (
        f"step time: {format_seconds(found.step_time_s)} sharded, {format_seconds(found.step_time_alone_s)} one process"
    )
    tables = (
        [("loss", "sharded", "one process"), *losses],
        [("largest relative difference", "value", "allowed", "where"), *differences],
        [("rank", "stages", "peak memory, libraries included"), *memory],
    )
    lines = [line for rows in tables for line in ("", *_table(rows))]
    if any(one.tolerance == inf for one in found.trained):
        lines += ["", "not judged: rounding alone changes one process as much; a lower --learning-rate would tell"]
    return "\n".join([*lines, "", times])


def run_summary(plan: Plan, results: Sequence[Result | None]) -> str:
    """The summary of a run that executed the plan as it is: first and last loss; step time, predicted and measured."""
    result = next(result for result in results if result is not None)
    trained = result["trained"]
    step_time_s = step_times(trained).median
    tokens_per_s = plan.training.tokens_per_step / step_time_s
    held_out = trained["held_out_losses"]
    compiled, planned = trained["compiled"], plan.estimate.memory[0]
    losses = trained["losses"]
    return "\n".join(
        [
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {counted(len(losses), 'step')}"
            + (f", {held_out[-1]:.4f} on held-out data" if held_out else ""),
            (
                f"step time {format_seconds(step_time_s)} (planned ~{format_seconds(plan.estimate.step_time_s)}), "
                f"{format_count(tokens_per_s)} tokens/s"
                + (f", compiled in {format_seconds(compiled['compile_time_s'])}" if compiled else "")
            ),
            (
                f"peak memory of rank 0: {format_bytes(result['peak_memory_bytes'])} "
                f"(planned ~{format_bytes(planned.total_bytes)}, "
                f"{format_bytes(planned.reserved_bytes)} of it for libraries)"
            ),
        ]
    )


def _compared(plan: Plan, small: Plan) -> list[tuple[str, str, str]]:
    def row(name: str, of: Any) -> tuple[str, str, str]:
        return name, str(of(plan)), str(of(small))

    return [
        row("layout", lambda p: short_name(p.strategy)),
        row("mesh", lambda p: " ".join(f"{a.name} {a.size}" for a in p.mesh.rank_axes)),
        row("schedule", lambda p: _schedule(p.strategy, p.num_microbatches)),
        row("blocks of each stage", lambda p: _run_lengths(p.strategy.stage_layers)),
        row("recompute", lambda p: p.strategy.uniform_recompute or recompute_by_stage(p.strategy)),
        row("blocks", lambda p: p.model.num_hidden_layers),
        row("hidden, FFN", lambda p: f"{p.model.hidden_size}, {p.model.intermediate_size}"),
        row("query, key-value heads", _heads),
        row("experts", lambda p: p.model.num_local_experts),
        row("vocabulary", lambda p: f"{p.model.vocab_size:,}"),
        row("sequence length", lambda p: f"{p.training.sequence_length:,}"),
        row("global batch", lambda p: f"{p.training.global_batch_size:,}"),
        row("precision", lambda p: p.training.precision.name),
    ]


def _heads(plan: Plan) -> str:
    """Query heads and key-value heads of each kind of attention."""
    kinds = plan.model.heads
    queries = " and ".join(dict.fromkeys(str(one.num_attention_heads) for one in kinds))
    return f"{queries}, {' and '.join(str(one.num_key_value_heads) for one in kinds)}"


def _run_lengths(values: Sequence[int]) -> str:
    """Equal neighbours folded: (3, 1, 1, 1) -> '3, 3 x 1'."""
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][1] == value:
            runs[-1] = (runs[-1][0] + 1, value)
        else:
            runs.append((1, value))
    return ", ".join(str(value) if count == 1 else f"{count} x {value}" for count, value in runs)


def _schedule(strategy: Strategy, num_microbatches: int) -> str:
    chunks = f", {strategy.num_virtual_stages} stages a rank" if strategy.num_virtual_stages > 1 else ""
    return f"{strategy.schedule}{chunks}, {num_microbatches} microbatches"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _difference(what: str, found: Result, tolerance: float) -> Difference:
    return Difference(what, found["relative_difference"], tolerance, found["tensor"])


def _allowed(one: Difference) -> str:
    return "not judged" if one.tolerance == inf else f"{one.tolerance:.0e}"


def _off(value: float, reference: float, at_least: float = 0.0) -> float:
    """Relative difference: the share of the reference, or of `at_least` where that is larger; the difference itself
    where both are 0."""
    return abs(value - reference) / (max(abs(reference), at_least) or 1.0)
