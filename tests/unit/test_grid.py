"""Layouts priced by the thousand: the same numbers as one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import LocalShape
from autoshard.cost.passes import Waiting, stages_work
from autoshard.cost.program import ProgramWork, StepSeconds, price_program
from autoshard.cost.rank import End
from autoshard.cost.stage import collective_laws
from autoshard.cost.stage_program import AS_WRITTEN, UNITS, Rewrites, stage_work
from autoshard.cost.zero_sharding import Unit
from autoshard.graph.recompute import COMMON_SETS, held_bytes, replay_held_bytes, segments, waiting_twice_bytes
from autoshard.layout.strategy import even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner.grid.cuts import balanced_cuts, even_cuts
from autoshard.planner.grid.microbatch import fixed_bytes_of, unit_columns, working_bytes_of
from autoshard.planner.grid.steps import Asked, priced_steps
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.whole import Priced
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.plans.search_result import Pins
from autoshard.schedules import Work, at_least_s, step_time_s
from autoshard.spec.cluster import load_cluster
from autoshard.spec.lora import Lora
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import some

PROBLEMS = (
    ("llama3-70b", "trn1.32xlarge", 16, 1024, 8192, "mixed_precision", "nxd", 1),
    ("llama3-8b", "trn2.48xlarge", 1, 64, 4096, "fp32", "torch", 1),
    ("mixtral-8x7b", "trn1.32xlarge", 4, 64, 4096, "bf16_sr", "torch", 1),
    ("gemma2-2b", "h100-80gb", 1, 64, 8192, "fp32", "torch", 4),
    ("gpt3-175b", "trn2u.48xlarge", 6, 96, 2048, "mixed_precision", "torch", 1),
)


def priced(problem: Problem, pins: Pins) -> list[Priced]:
    table = Table(problem, COMMON_SETS)
    for mesh in legal_layouts(problem, pins, Tally()):
        for draft in mesh.drafts:
            table.add(draft)
    return [*table.price()]


@pytest.mark.parametrize("name", some(PROBLEMS, 4), ids=lambda name: name[0])
def test_grid_is_the_cost_model(name: tuple[str, str, int, int, int, str, str, int]) -> None:
    model, instance, nodes, batch, sequence, precision, backend, loss_chunks = name
    training = TrainingSpec(sequence, batch, load_precision(precision), loss_chunks=loss_chunks)
    problem = Problem(load_model(model), training, load_cluster(instance, nodes), backend)
    chunks = priced(problem, Pins())
    choose = random.Random(0)
    for _ in range(80):
        one = choose.choice(chunks)
        row = choose.randrange(len(one.step_time_s))
        expected = estimate(*problem[:3], one.strategy(row))
        assert one.memory_bytes[row] == pytest.approx(expected.fullest.total_bytes, rel=1e-12)
        assert one.exact_s([row])[0] == pytest.approx(expected.step_time_s, rel=1e-12)
        if one.at_least:
            assert one.step_time_s[row] <= expected.step_time_s * (1 + 1e-12)
        else:
            assert one.step_time_s[row] == pytest.approx(expected.step_time_s, rel=1e-12)
    assert len({one.whole.family.schedule for one in chunks}) == (2 if backend == "nxd" else 4)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3.2-1b"])
def test_a_head_that_is_not_learned_is_priced_and_held(name: str) -> None:
    """Beside adapters alone, whether it has a table of its own or the embedding's."""
    model = replace(load_model(name), lora=Lora(16, 16.0, ("q_proj", "v_proj")))
    training = TrainingSpec(4096, 16, load_precision("mixed_precision"))
    problem = Problem(model, training, load_cluster("h100-80gb", 1), "torch")
    table = Table(problem, ("none", "full"))
    for pp in (1, 2):
        for mesh in legal_layouts(problem, Pins(tp=4, pp=pp, cp=1, schedule="1f1b"), Tally()):
            for draft in mesh.drafts:
                table.add(draft)
    chunks = [*table.price()]
    assert {one.whole.family.pp for one in chunks} == {1, 2}
    for one in chunks:
        for row in range(len(one.memory_bytes)):
            expected = estimate(*problem[:3], one.strategy(row))
            assert one.memory_bytes[row] == pytest.approx(expected.fullest.total_bytes, rel=1e-12)
            assert one.exact_s([row])[0] == pytest.approx(expected.step_time_s, rel=1e-12)


def test_gradients_of_a_step_with_nothing_to_run_again_may_be_most() -> None:
    """Of one short sequence: there is no tile of scores then, and no step that could have it."""
    training = TrainingSpec(128, 1, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 4), "torch")
    table = Table(problem, ("none", "attention_norm+mlp_norm", "mlp_norm"))
    for mesh in legal_layouts(problem, Pins(tp=32, pp=4, cp=1), Tally()):
        for draft in mesh.drafts:
            table.add(draft)
    for one in table.price():
        for row in range(len(one.memory_bytes)):
            expected = estimate(*problem[:3], one.strategy(row)).fullest.total_bytes
            assert one.memory_bytes[row] == pytest.approx(expected, rel=1e-12)


def test_what_waits_twice_is_priced_by_set() -> None:
    """Where attention runs again, the MLP of Command R keeps a gathered norm of its own."""
    training = TrainingSpec(4096, 24, load_precision("mixed_precision"))
    problem = Problem(load_model("command-r-08-2024"), training, load_cluster("h100-80gb", 1), "torch")
    table = Table(problem, ("none", "attention", "core_attention", "full"))
    for mesh in legal_layouts(problem, Pins(tp=4, pp=2, cp=1, schedule="zero_bubble"), Tally()):
        for draft in mesh.drafts:
            table.add(draft)
    rows = [(one, row) for one in table.price() for row in range(len(one.memory_bytes))]
    assert {name for one, row in rows for name in one.strategy(row).recompute} >= {"attention", "core_attention"}
    for one, row in rows:
        expected = estimate(*problem[:3], one.strategy(row)).fullest.total_bytes
        assert one.memory_bytes[row] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_priced_as_one_by_one(seed: int) -> None:
    choose, number = random.Random(seed), np.random.default_rng(seed)
    pp, vpp, count = choose.choice([2, 3, 4, 8]), choose.choice([2, 3, 5]), 40
    transfer_s = number.choice([0, 0.001, 0.1, 0.5], count)
    forward_s = number.uniform(0.5, 2, (pp * vpp, count))
    backward_s = forward_s * number.uniform(1, 3, forward_s.shape)
    weight_s = backward_s * number.uniform(0.2, 0.5, forward_s.shape)
    of_any, of_pp = number.choice([1, 2, 5, 33], count), pp * number.choice([1, 2, 7], count)
    for schedule, chunks, m in (("1f1b", 1, of_any), ("gpipe", 1, of_any), ("interleaved", vpp, of_pp)):
        stages = slice(pp * chunks)
        rows = Work(pp, m, chunks, forward_s[stages], backward_s[stages], transfer_s, weight_s[stages])
        of_rows = [
            column.T.tolist() for column in (m, forward_s[stages], backward_s[stages], transfer_s, weight_s[stages])
        ]
        one_by_one = [Work(pp, one, chunks, *numbers) for one, *numbers in zip(*of_rows, strict=True)]
        for function in (at_least_s, lambda schedule, work: step_time_s(schedule, *work)):
            found = function(schedule, rows)
            assert found == pytest.approx([function(schedule, one) for one in one_by_one], rel=1e-12)


@pytest.mark.parametrize(("schedule", "pp", "vpp"), [("1f1b", 4, 1), ("zero_bubble", 3, 1), ("interleaved", 2, 3)])
def test_the_work_of_a_pipeline_is_one_by_one_that_of_many(schedule: str, pp: int, vpp: int) -> None:
    """Arrays with a row a layout, and plain numbers: in both, ends of the model come on top of the outer stages."""
    number, rows, device = np.random.default_rng(pp), 5, load_cluster("trn1.32xlarge", 1).device
    seconds = number.uniform(0.1, 1.0, (3, 3, rows))
    block, first, last = (Waiting(*part) for part in seconds)
    unit = Unit(number.uniform(1, 9, rows), 0.0)
    ends = End(first, unit, True, False), End(last, unit, False, True)
    layers = number.integers(1, 9, (pp, rows)) if vpp == 1 else number.integers(1, 9, (1, rows))
    hop_s, m = number.uniform(0, 1, rows), number.integers(1, 5, rows) * pp
    found = stages_work(schedule, (pp, m, vpp), layers, [block], ends, [unit], device, 0.01, hop_s)
    for row in range(rows):

        def of_row(part: Waiting, row: int = row) -> Waiting:
            return Waiting(*(float(column[row]) for column in part))

        unit_of_row = Unit(float(unit.parameters[row]), 0.0)
        ends_of_row = tuple(end._replace(part=of_row(end.part), unit=unit_of_row) for end in ends)
        counts = np.broadcast_to(layers[:, row], pp * vpp)
        expected = stages_work(
            schedule,
            (pp, int(m[row]), vpp),
            counts.tolist(),
            [of_row(block)] * pp * vpp,
            ends_of_row,
            [unit_of_row] * pp * vpp,
            device,
            0.01,
            float(hop_s[row]),
        )
        assert found.forward_s[:, row] == pytest.approx(expected.forward_s, rel=1e-12)
        assert found.backward_s[:, row] == pytest.approx(expected.backward_s, rel=1e-12)
        assert (found.weight_s is None) == (expected.weight_s is None) == (schedule != "zero_bubble")
        if found.weight_s is not None:
            assert found.weight_s[:, row] == pytest.approx(expected.weight_s, rel=1e-12)
        assert found.transfer_s[row] == expected.transfer_s


SHAPES = (
    ("llama3-8b", LocalShape(4, 2, 1, 1, True, "flash", "zigzag_ring")),
    ("qwen3-0.6b", LocalShape(1, 2, 1, 1, False, "flash", "zigzag_ring")),  # attention works with most
    ("llama3-8b", LocalShape(16, 1, 1, 1, False, "plain")),
    ("mixtral-8x7b", LocalShape(2, 1, 4, 1, True, "flash")),
    ("gpt3-175b", LocalShape(1, 2, 1, 1, False, "flash", "all_gather")),
    ("qwen2-7b", LocalShape(2, 2, 1, 1, True, "flash", "ulysses")),
    ("glm-5", LocalShape(4, 2, 8, 1, True, "flash", "all_gather")),
    ("deepseek-v3.2", LocalShape(1, 1, 8, 1, False, "plain")),
    ("mistral-large-4-1t-a52b", LocalShape(2, 2, 8, 1, True, "flash", "all_gather")),
)


@pytest.mark.parametrize(("name", "shape"), SHAPES, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("rewrites", [AS_WRITTEN, Rewrites(loss_chunks=4)], ids=["whole logits", "chunks"])
def test_larger_microbatches_are_the_smallest_scaled(name: str, shape: LocalShape, rewrites: Rewrites) -> None:
    model = load_model(name)

    def work(sequences: int, part: tuple[tuple[int, ...], bool, bool]) -> ProgramWork:
        of = model, 4096, 2.0, "bfloat16", replace(shape, microbatch_size=sequences), True, *part
        return stage_work(*of, rewrites)

    for part in UNITS.values():
        one, six = work(1, part), work(6, part)
        small, large = unit_columns([one]), unit_columns([six])
        assert np.array_equal(small.needs(np.array([6]))[0], large.operators)
        for own, other in ((small.forward, large.forward), (small.backward, large.backward)):
            assert own.laws == other.laws and np.array_equal(6 * own.size, other.size)
            assert np.array_equal(own.step, other.step) and np.array_equal(own.law, other.law)
        assert (
            working_bytes_of(one, 6) == six.working_bytes
            and 6 * one.at_steps.waiting_bytes == six.at_steps.waiting_bytes
        )
        assert one.parameters == six.parameters
        fixed_of_steps = [fixed_bytes_of(one.program, place) for place in range(len(one.program.steps))]
        for recompute in COMMON_SETS:
            of_one, of_six = one.recompute(recompute), six.recompute(recompute)
            assert of_one.repeated == of_six.repeated
            assert (6 * of_one.kept_bytes, 6 * of_one.segment_bytes) == (of_six.kept_bytes, of_six.segment_bytes)
            assert 6 * of_one.again_bytes == of_six.again_bytes
            held, fixed = held_bytes(one.program, recompute), fixed_of_steps
            working, tiles, forward, forward_tiles, gradients, *more, _ = one.at_steps
            put_off = [*map(sum, zip(*more, waiting_twice_bytes(one.program, recompute), strict=True))]
            held_again = replay_held_bytes(one.program, recompute)
            steps = [*zip(held, working, tiles, fixed, put_off, strict=True)]
            most = max((6 * (kept + work - same) + same + tile for kept, work, tile, same, _ in steps), default=0.0)
            waiting = [6 * (kept + work - same + waits) + same + tile for kept, work, tile, same, waits in steps]
            at_first = zip(held, forward, forward_tiles, strict=True) if not part[2] else ()
            most = max([most, *(6 * (kept + inside) + tile for kept, inside, tile in at_first)])
            for again in segments(one.program, recompute):
                for step in range(again.start, again.replay_stop) if again.recomputed else ():
                    growing = held_again[step] + forward[step] + gradients[again.last]
                    most = max(most, 6 * growing + forward_tiles[step])
                    waiting.append(6 * (growing + put_off[again.last]) + forward_tiles[step])
            assert of_six.replay_bytes == max(0.0, most - of_six.kept_bytes - six.working_bytes)
            assert of_six.for_weights_bytes == max(0.0, max(waiting, default=0.0) - most)


@pytest.mark.parametrize("instance", ["trn1.32xlarge", "h100-80gb"])
@pytest.mark.parametrize("sequences", [[1], [2, 5]], ids=str)
def test_steps_are_priced_together_as_one_by_one(sequences: list[int], instance: str) -> None:
    """Steps of all programs of several local shapes and sizes: arrays, and the same function on plain numbers."""
    cluster = load_cluster(instance, 16)
    assert (cluster.device.attention_efficiency is not None) == (instance == "h100-80gb")
    peak = cluster.device.peak_flops_per_s("bfloat16")
    asked: list[Asked] = []
    one_by_one: list[StepSeconds] = []
    for name, shape in SHAPES:
        model = load_model(name)
        law_of = collective_laws(model, cluster, shape)
        of_each = [
            [
                stage_work(model, 4096, 1.25, "bfloat16", replace(shape, microbatch_size=size), True, *unit)
                for unit in UNITS.values()
            ]
            for size in (1, *sequences)
        ]
        asked.append(Asked(unit_columns(of_each[0]), np.array(sequences), law_of))
        for work in (work for of_size in of_each[1:] for work in of_size):
            one_by_one += price_program(work, cluster.device, "bfloat16", law_of).steps
    together, starts = priced_steps(asked, cluster.device, peak)
    assert starts[-1] == len(one_by_one)
    for found, field in ((together.forward, "forward"), (together.backward, "backward")):
        expected = np.array([getattr(step, field).values for step in one_by_one]).T
        for column, plain in zip(found.values, expected, strict=True):
            assert np.broadcast_to(column, len(plain)) == pytest.approx(plain, rel=1e-12, abs=1e-15)
    assert together.put_off_s == pytest.approx([step.put_off_s for step in one_by_one], rel=1e-12)
    assert any(step.forward.context_parallel > 0 for step in one_by_one)


def test_even_cuts_are_the_strategy_s() -> None:
    for layers in range(1, 30):
        for pp in range(1, layers + 1):
            assert tuple(even_cuts(layers, pp, 1).layers(pp)[:, 0]) == even_stage_layers(layers, pp)


def partitions(total: int, parts: int, bare: bool) -> list[tuple[int, ...]]:
    """All cuts. bare: also those whose ends have no blocks."""
    ranges = [range(1 - (bare and stage in (0, parts - 1)), total + 1) for stage in range(parts)]
    return [cut for cut in product(*ranges) if sum(cut) == total]


@pytest.mark.parametrize("ends", [(0.0, 0.0), (0.1, 1.2), (0.0, 3.5), (2.0, 0.0), (0.4, 0.9), (7.0, 9.0)])
@pytest.mark.parametrize(("layers", "stages"), [(8, 4), (9, 4), (10, 3), (5, 5), (12, 2)])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("bare", [False, True])
def test_balanced_cut_is_the_best_of_all_cuts(
    layers: int, stages: int, ends: tuple[float, float], early: bool, bare: bool
) -> None:
    def slowest(cut: Sequence[int]) -> float:
        return max(max(cut), cut[0] + ends[0], cut[-1] + ends[1])

    cuts = balanced_cuts(layers, stages, np.array([ends[0]]), np.array([ends[1]]), early, bare)
    balanced = tuple(cuts.layers(stages)[:, 0])
    every = partitions(layers, stages, bare)
    assert balanced in every
    assert slowest(balanced) == pytest.approx(min(map(slowest, every)))


def test_a_heavy_head_takes_blocks_off_the_last_stage() -> None:
    head = np.array([1.2])
    late, early = (balanced_cuts(80, 8, np.array([0.01]), head, early).layers(8)[:, 0] for early in (False, True))
    assert (tuple(late), tuple(early)) == ((10, 10, 10, 10, 10, 10, 11, 9), (10, 11, 10, 10, 10, 10, 10, 9))
