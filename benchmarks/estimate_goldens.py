"""Records estimates of random layouts, term by term, which a refactoring of the cost model must not change.

    python -m benchmarks.estimate_goldens --write             replaces tests/golden/estimates.json
    python -m benchmarks.estimate_goldens --rows 10000 > new  every term of other layouts; the same in another tree,
    python -m benchmarks.estimate_goldens --compare old new   then the largest difference of the two

Layouts are drawn from all that are legal, over generations, families, backends, schedules, stages of ZeRO, axis orders
and context and expert parallelism. In half of them, stages have their own recompute sets and, with one chunk a rank,
their own numbers of blocks.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.values import Estimate
from autoshard.files.codec import to_json
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import EVERY_SET
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

KEPT = Path(__file__).parents[1] / "tests" / "golden" / "estimates.json"
ROWS = 320
"""How many layouts are kept."""
PROBLEMS = (
    ("llama3-70b", "trn1.32xlarge", 16, 256, 8192, "mixed_precision", "nxd"),
    ("llama3-8b", "trn1.32xlarge", 1, 64, 4096, "bf16_sr", "nxd"),
    ("llama3-8b", "trn2.48xlarge", 1, 64, 4096, "fp32", "torch"),
    ("mixtral-8x7b", "trn1.32xlarge", 4, 64, 4096, "bf16_sr", "torch"),
    ("mixtral-8x7b", "h100-80gb", 4, 128, 4096, "mixed_precision", "torch"),
    ("qwen3-30b-a3b", "trn2.48xlarge", 2, 128, 8192, "mixed_precision", "torch"),
    ("gpt3-175b", "trn2u.48xlarge", 6, 96, 2048, "mixed_precision", "torch"),
    ("llama3-70b", "h100-80gb", 16, 128, 8192, "mixed_precision", "torch"),
    ("gpt-neox-20b", "h100-80gb", 2, 64, 2048, "mixed_precision", "torch"),
)
"""(model, instance, nodes, sequences a step, tokens a sequence, precision, backend)."""
STACKS = (
    COMPILED,
    Software(
        "fused",
        compute_slowdown=1.07,
        link_slowdown=1.3,
        cpu_s_per_operator=2e-5,
        replay_slowdown=1.1,
        attention_efficiency=0.55,
        wave_elements=2.0**17,
        tensor_overlap=0.4,
        norm_passes=3.0,
        loss_passes=2.0,
        stall_s=1e-6,
        transfer_share=0.4,
        quantized_efficiency=0.9,
        overlap=0.5,
        activation_scale=1.1,
        norm_copies=1.5,
        logits_bytes=3.0,
        working_scale=1.2,
        reserved_bytes=5e8,
        accumulation_share=0.0,
        keeps_loss=True,
        copy_launch_s=1e-6,
        step_overhead_s=0.01,
    ),
    Software(
        "gathering",
        plain_attention_passes=(4.0, 8.0),
        misaligned_slowdown=1.5,
        whole_logits=True,
        replays_head=True,
        score_copies=1.0,
        logits_bytes=2.0,
        hands_over="nothing",
    ),
    Software(
        "sharded",
        overlap=0.6,
        contention=0.3,
        keeps_loss=True,
        hands_over="nothing",
        sharded_parameters=True,
        sharded_gradients=True,
    ),
)
"""Training stacks. The last one shares parameters by itself, so layouts of ZeRO-1 are priced only with it."""


def problem_of(number: int) -> Problem:
    model, instance, nodes, batch, sequence, precision, backend = PROBLEMS[number]
    training = TrainingSpec(sequence, batch, load_precision(precision))
    return Problem(load_model(model), training, load_cluster(instance, nodes), backend)


def drawn(rows: int, seed: int) -> Iterator[tuple[int, int, Strategy]]:
    """Yields (problem, stack, layout), one problem after the other."""
    choose = random.Random(seed)
    for number in range(len(PROBLEMS)):
        problem = problem_of(number)
        by_kind: dict[tuple[object, ...], list[Draft]] = {}
        for mesh in legal_layouts(problem, Pins(), Tally()):
            for draft in mesh.drafts:
                if draft.microbatch_size <= 4:
                    kind = (draft.schedule, draft.zero, draft.cp > 1, draft.ep > 1, draft.pp > 1)
                    by_kind.setdefault(kind, []).append(draft)
        for _ in range(rows // len(PROBLEMS) + (number < rows % len(PROBLEMS))):
            draft = choose.choice(choose.choice([*by_kind.values()]))
            stack = choose.choice([0, 0, 0, 1, 2, 3]) if draft.cp == 1 else 0
            stack = 0 if stack == 3 and draft.zero > 1 else stack
            yield number, stack, _with_stages(choose, problem, draft)


def _with_stages(choose: random.Random, problem: Problem, draft: Draft) -> Strategy:
    stages, layers = draft.pp * draft.num_virtual_stages, problem.model.num_hidden_layers
    sets = [choose.choice(EVERY_SET) for _ in range(choose.choice([1, 1, 2, 3]))]
    recompute = tuple(sets[min(len(sets) - 1, stage * len(sets) // stages)] for stage in range(stages))
    cut = [*even_stage_layers(layers, stages)]
    if draft.num_virtual_stages == 1 and choose.random() < 0.5:
        for _ in range(stages):
            source, target = choose.randrange(stages), choose.randrange(stages)
            if cut[source] > 1:
                cut[source], cut[target] = cut[source] - 1, cut[target] + 1
    return Strategy(**draft._asdict() | {"recompute": recompute, "stage_layers": tuple(cut)})


def priced(number: int, stack: int, strategy: Strategy) -> Estimate:
    return estimate(*problem_of(number)[:3], strategy, STACKS[stack])


def terms(found: Estimate) -> list[float]:
    """All numbers of an estimate: seconds; bytes of the fullest rank, of all ranks together and of each one."""
    by_rank = [[float(term.value) for term in rank.terms] for rank in found.memory]
    fullest = [float(term.value) for term in found.fullest.terms]
    seconds = [float(term.value) for term in found.time_terms]
    return [*seconds, *fullest, *map(sum, zip(*by_rank, strict=True)), *map(sum, by_rank)]


def written(strategy: Strategy) -> list[Any]:
    """A strategy as JSON values: its fields in their order, runs of equal stages as '3*full,5*none'. The last ones are
    left out where they are their defaults."""
    values = [_runs(value) if type(value) is tuple else value for value in asdict(strategy).values()]
    defaults = [field.default for field in fields(Strategy)]
    while values[-1] == defaults[len(values) - 1]:
        values.pop()
    return values


def read(values: list[Any]) -> Strategy:
    """The strategy that `written` gave these values for."""
    found = dict(zip((field.name for field in fields(Strategy)), values, strict=False))
    runs: dict[str, tuple[Any, ...]] = {name: _of_runs(found[name]) for name in ("recompute", "axis_order")}
    layers = tuple(map(int, _of_runs(found["stage_layers"])))
    return Strategy(**found | runs | {"stage_layers": layers})


def _runs(values: tuple[object, ...]) -> str:
    return ",".join(f"{len([*run])}*{value}" for value, run in groupby(values))


def _of_runs(runs: str) -> tuple[str, ...]:
    return tuple(value for run in runs.split(",") for count, value in [run.split("*")] for _ in range(int(count)))


def compact(found: Estimate) -> list[float]:
    """The numbers that are recorded, with 12 digits: seconds, memory of the fullest rank and of all together."""
    several = terms(found)[: len(found.time_terms) + 2 * len(found.fullest.terms)]
    return [int(term) if term == int(term) else float(f"{term:.12g}") for term in several]


def _compare(old: Path, new: Path) -> None:
    worst, count = 0.0, 0
    with old.open() as ours, new.open() as theirs:
        for one, other in zip(map(json.loads, ours), map(json.loads, theirs), strict=True):
            assert one[:3] == other[:3], "other layouts were drawn"
            scale = max(map(abs, one[3]))
            for a, b in zip(one[3], other[3], strict=True):
                difference = abs(a - b) / max(abs(a), 1e-12 * scale)
                if difference > worst:
                    worst = difference
                    print(f"{worst:.3g}", one[:3], a, b)
            count += 1
    print(f"{count} layouts, largest difference {worst:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", type=Path, nargs=2)
    given = parser.parse_args()
    if given.compare:
        _compare(*given.compare)
        return
    rows: list[list[Any]] = []
    for number, stack, strategy in drawn(given.rows, given.seed):
        found = priced(number, stack, strategy)
        if given.write:
            rows.append([number, stack, written(strategy), compact(found)])
        else:
            sys.stdout.write(json.dumps([number, stack, to_json(strategy), terms(found)]) + "\n")
    if given.write:
        KEPT.write_text("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
