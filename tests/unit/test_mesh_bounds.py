"""Bounds of layouts before they are priced: never above a price, and a search that goes by them finds the same."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from math import inf, isnan
from typing import Any

import numpy as np
import pytest

from autoshard.backends.rules import Draft, Problem, divisors
from autoshard.cost.collectives import collective_law, group_shape
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner import priced as pricing
from autoshard.planner.axis_orders import other_orders
from autoshard.planner.candidates import check_pins
from autoshard.planner.grid.best_laws import best_law
from autoshard.planner.grid.mesh_bounds import layout_bounds, ways_at_least_s
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import by_way, legal_layouts
from autoshard.planner.priced import Clock, PricedLayouts, count_rest, price_layouts
from autoshard.planner.rejections import SLOWER, Tally
from autoshard.planner.search import search
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import KIND_FIELDS, ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import ALL, some

MODELS = ("llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gemma3-1b", "llama3.2-1b", "gpt-oss-20b")
MIXED = ("deepseek-v2-lite", "gemma3-1b", "gpt-oss-20b", "llama4-scout", "granite-4.0-h-tiny")
"""Models with blocks of several kinds."""
CLUSTERS = (("h100-80gb", 1), ("trn1.32xlarge", 1), ("b200-180gb", 2), ("trn2.3xlarge", 2))

IN_GROUPS, ANY_GROUPS = Pins(dp_replicate=2), Pins(searches_replicas=True)
"""Requests for hybrid sharding (HSDP)."""
WHOLE, HALVES, ANY_PARTS = Pins(etp=1), Pins(etp=2), Pins(searches_etp=True)
"""Requests for experts that fewer ranks cut than tp has."""


def small_model(name: str, layers: int) -> ModelSpec:
    """The first blocks of a published model."""
    model = load_model(name)
    lists = {key: getattr(model, key)[:layers] for key in KIND_FIELDS if getattr(model, key)}
    return replace(model, num_hidden_layers=layers, **lists)


def random_problem(seed: int) -> Problem:
    """A few blocks of a published model on a few devices, with less memory or more."""
    choose = random.Random(seed)
    model = small_model(choose.choice(MODELS), choose.choice([2, 3, 4]))
    instance, nodes = choose.choice(CLUSTERS)
    cluster = load_cluster(instance, nodes)
    room = choose.choice([0.05, 0.1, 0.2, 1.0]) * cluster.device.memory_bytes
    device = replace(cluster.device, memory_bytes=room + cluster.device.reserved_memory_bytes)
    precision = load_precision(choose.choice(["mixed_precision", "bf16_sr"]))
    training = TrainingSpec(choose.choice([2048, 4096]), choose.choice([8, 16, 32]), precision)
    return Problem(model, training, replace(cluster, device=device), "torch")


def bounds_of(problem: Problem, drafts: list[Draft], sets: tuple[str, ...], limit_bytes: float) -> dict[Draft, float]:
    """Seconds of a step at least, each in its own order of axes."""
    if not drafts:
        return {}
    ways = by_way(drafts)
    bounds = layout_bounds(problem, ways, sets, limit_bytes)
    places = zip(bounds.way.tolist(), bounds.schedule.tolist(), bounds.step_time_s.tolist(), strict=True)
    return {ways[way].way.scheduled(*ways[way].schedules[place]): seconds for way, place, seconds in places}


@pytest.mark.parametrize(
    ("seed", "pins"),
    [
        *((seed, Pins()) for seed in some(range(12), 2)),
        *((0, IN_GROUPS), (11, ANY_GROUPS), (0, HALVES), (1, WHOLE), (1, ANY_PARTS)),
        *([(104, IN_GROUPS), (3, HALVES), (13, WHOLE)] if ALL else [(9, Pins())]),  # 9: a stage of one kind, ZeRO-3
    ],
)
def test_no_price_is_below_a_bound(seed: int, pins: Pins) -> None:
    problem = random_problem(seed)
    sets, limit_bytes = recompute_sets(problem, pins), problem.cluster.device.memory_bytes
    ways = legal_layouts(problem, pins, Tally())
    of_ways = ways_at_least_s(problem, ways)
    bounds, others = (
        layout_bounds(problem, ways, sets, limit_bytes, other, in_any_order=True) for other in (False, True)
    )
    assert (bounds.way == others.way).all() and (bounds.schedule == others.schedule).all()
    assert (bounds.memory_bytes == others.memory_bytes).all()
    below_s = float(np.median(others.step_time_s))
    rough_s = layout_bounds(problem, ways, sets, limit_bytes, True, below_s).step_time_s
    assert (rough_s <= others.step_time_s).all()
    assert (rough_s[rough_s < below_s] == others.step_time_s[rough_s < below_s]).all()
    least: dict[Draft, tuple[float, float, float]] = {}
    of_each = [of_ways.each(place) for place in range(len(ways))]
    assert all(of_ways.own_s[place] <= each.own_s.min() for place, each in enumerate(of_each))
    assert all(of_ways.any_s[place] <= each.any_s.min() for place, each in enumerate(of_each))
    columns = *(column.tolist() for column in bounds), others.step_time_s.tolist()
    for way, schedule, own_s, any_order_s, needed, other_s in zip(*columns, strict=True):
        draft, any_s = ways[way].way.scheduled(*ways[way].schedules[schedule]), min(own_s, other_s)
        assert any_order_s == any_s or isnan(any_order_s)
        assert not isnan(any_order_s) or problem.model.is_moe
        known = of_each[way]
        least[draft] = max(own_s, float(known.own_s[schedule])), max(any_s, float(known.any_s[schedule])), needed
    assert len(least) == sum(len(way.schedules) for way in ways)
    choose, orders = random.Random(seed), Table(problem, sets)
    sample = choose.sample(sorted(least, key=lambda one: one._replace(etp=one.etp or one.tp)), min(60, len(least)))
    in_orders = [draft._replace(axis_order=order) for draft in sample for order in other_orders(problem, pins, draft)]
    for draft in in_orders:
        orders.add(draft)
    of_orders = bounds_of(problem, in_orders, sets, limit_bytes)
    chunks = price_layouts(problem, pins, Tally(), Clock(inf), exhaustive=True).chunks
    for chunk in (*chunks, *orders.price()):
        own = np.array([one.axis_order == ("pp", "dp", "cp", "tp") for one in chunk.whole.drafts.drafts])
        in_default = [one._replace(axis_order=("pp", "dp", "cp", "tp")) for one in chunk.whole.drafts.drafts]
        own_s, any_s, needed = np.array([least[one] for one in in_default]).T[:, chunk.draft]
        at_least_s = np.where(own[chunk.draft], own_s, any_s)
        in_order_s = np.array([of_orders.get(one, 0.0) for one in chunk.whole.drafts.drafts])[chunk.draft]
        at_least_s = np.maximum(at_least_s, in_order_s)
        fits = chunk.memory_bytes <= limit_bytes
        assert (at_least_s[fits] <= chunk.step_time_s[fits] * (1 + 1e-9)).all()
        assert (needed <= chunk.memory_bytes * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("model", "instance", "nodes", "precision"),
    some(
        [
            ("llama3.1-405b", "gb300-288gb", 32, "mixed_precision"),
            ("mixtral-8x7b", "trn2.48xlarge", 16, "mixed_precision"),
            ("llama2-70b", "h200-141gb", 256, "fp8"),
            ("dbrx", "gb200-186gb", 32, "mixed_precision"),
            ("llama2-70b", "h200-141gb", 256, "mixed_precision"),
            ("kimi-k2", "b200-180gb", 32, "mixed_precision"),
        ],
        4,
    ),
)
def test_no_price_on_many_nodes_is_below_a_bound(model: str, instance: str, nodes: int, precision: str) -> None:
    """Where links between nodes, latencies and domains of nodes tell orders of axes apart, and sums fill buckets."""
    training = TrainingSpec(8192, 1024, load_precision(precision))
    problem = Problem(load_model(model), training, load_cluster(instance, nodes), "torch")
    sets, limit_bytes = ("none", "mlp", "full"), problem.cluster.device.memory_bytes
    choose, drafts = random.Random(0), list[Draft]()
    for way in choose.sample(legal_layouts(problem, Pins(), Tally()), 60 if ALL else 30):
        draft = way.way.scheduled(*choose.choice(way.schedules))
        drafts += [
            draft._replace(axis_order=order) for order in (draft.axis_order, *other_orders(problem, Pins(), draft))
        ]
    least_s, every = bounds_of(problem, drafts, sets, limit_bytes), Table(problem, sets)
    for draft in drafts:
        every.add(draft)
    share = 0.0
    for chunk in every.price():
        at_least_s = np.array([least_s[one] for one in chunk.whole.drafts.drafts])[chunk.draft]
        fits = chunk.memory_bytes <= limit_bytes
        assert (at_least_s[fits] <= chunk.step_time_s[fits] * (1 + 1e-9)).all()
        share = max(share, *(at_least_s[fits] / chunk.step_time_s[fits]), 0.0)
    assert share > 0.9  # some bound is hardly below


@pytest.mark.parametrize(
    ("model", "instance", "pins", "reached"),
    [
        ("qwen3-30b-a3b", "h100-80gb", Pins(), 0.7),
        ("kimi-k2", "b200-180gb", Pins(), 0.7),
        ("llama4-scout", "h100-80gb", ANY_PARTS, 0.55),
    ],
)
def test_bounds_know_how_far_from_each_other_an_order_of_axes_puts_ranks(
    model: str, instance: str, pins: Pins, reached: float
) -> None:
    """Of a mixture on 32 nodes, in orders other than the usual one. reached: the share of most prices that bounds do,
    0.53, 0.55 and 0.43 where they take each axis to be where its links are fastest."""
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    problem = Problem(load_model(model), training, load_cluster(instance, 32), "torch")
    sets, limit_bytes = ("none", "mlp", "full"), problem.cluster.device.memory_bytes
    choose, drafts = random.Random(0), list[Draft]()
    ways = [way for way in legal_layouts(problem, pins, Tally()) if way.state_bytes <= limit_bytes]
    for way in choose.sample(ways, 100 if ALL else 40):
        draft = way.way.scheduled(*choose.choice(way.schedules))
        drafts += [draft._replace(axis_order=order) for order in other_orders(problem, pins, draft)]
    least_s, every = bounds_of(problem, drafts, sets, limit_bytes), Table(problem, sets)
    for draft in drafts:
        every.add(draft)
    shares = list[float]()
    for chunk in every.price():
        at_least_s = np.array([least_s[one] for one in chunk.whole.drafts.drafts])[chunk.draft]
        fits = chunk.memory_bytes <= limit_bytes
        assert (at_least_s[fits] <= chunk.step_time_s[fits] * (1 + 1e-9)).all()
        shares += (at_least_s[fits] / chunk.step_time_s[fits]).tolist()
    assert np.median(shares) > reached


@pytest.mark.parametrize("seed", some(range(24), 5))
def test_no_cut_and_no_sets_by_stage_are_below_a_bound(seed: int) -> None:
    """Stages with any number of blocks of several kinds, ends of the model without any, and a set for each stage."""
    choose = random.Random(seed)
    model = small_model(choose.choice(MIXED), choose.choice([5, 8]))
    cluster = load_cluster(*choose.choice(CLUSTERS))
    training = TrainingSpec(2048, choose.choice([16, 64]), load_precision("mixed_precision"))
    memory_bytes = choose.choice([0.05, 0.1, 0.2]) * cluster.device.memory_bytes + cluster.device.reserved_memory_bytes
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=memory_bytes))
    problem = Problem(model, training, cluster, "torch")
    sets = recompute_sets(problem, Pins())
    ways = [one for one in legal_layouts(problem, Pins(), Tally()) if one.way.pp > 1]
    for way in choose.sample(ways, 12):
        schedule = choose.choice(way.schedules)
        stages = way.way.pp * schedule[1]
        bounds = layout_bounds(problem, [way._replace(schedules=(schedule,))], sets, memory_bytes)
        for _ in range(6):
            cut = random_cut(choose, model.num_hidden_layers, stages)
            draft = way.way.scheduled(*schedule)._replace(stage_layers=cut)
            by_stage = tuple(choose.choice(sets) for _ in cut)
            found = estimate(model, training, cluster, Strategy(**draft._asdict(), recompute=by_stage))
            assert bounds.memory_bytes[0] <= found.fullest.total_bytes * (1 + 1e-9), (draft, by_stage)
            if found.fullest.total_bytes <= memory_bytes:
                assert bounds.step_time_s[0] <= found.step_time_s * (1 + 1e-9), (draft, by_stage)


SETS = ("none", "mlp", "attention_norm+attention+core_attention+mlp_norm", "full")


@pytest.mark.parametrize(
    ("model", "instance", "nodes", "tokens", "choices"),
    [
        # of what is gathered for experts and a shared one together, context parallelism keeps a rank's own
        ("glm-4.5", "b200-180gb", 16, 16_384, {"tp": 2, "dp": 32, "cp": 2, "ep": 32, "context_parallel": "ulysses"}),
        ("deepseek-v2-lite", "trn2.3xlarge", 8, 32_768, {"tp": 4, "dp": 4, "cp": 2, "ep": 8, "zero": 2}),
        # biases of experts have more owners: a little less memory
        ("gpt-oss-20b", "h200-141gb", 24, 4096, {"tp": 6, "dp": 16, "cp": 2, "ep": 16, "sequence_parallel": False}),
        # experts see a narrower vector, which is what is sent
        (
            "nemotron-3-ultra-550b-a55b",
            "trn3-gen2",
            1,
            16_384,
            {"tp": 4, "dp": 2, "cp": 2, "ep": 2, "sequence_parallel": False, "zero": 0, "microbatch_size": 32},
        ),
        (
            "muse-spark-open",
            "h100-80gb",
            24,
            32_768,
            {"pp": 6, "dp": 2, "cp": 16, "ep": 32, "zero": 2, "microbatch_size": 2, "schedule": "gpipe"},
        ),
        # replicas are outside of stages: experts are spread over ranks that are further apart
        (
            "llama4-maverick",
            "trn3-gen1",
            32,
            8192,
            {"tp": 64, "pp": 8, "dp": 4, "ep": 4, "axis_order": ("dp", "pp", "cp", "tp")},
        ),
        # the first block keeps the embedding's output no second time
        (
            "olmo2-1b",
            "b200-180gb",
            12,
            4096,
            {"tp": 6, "dp": 16, "sequence_parallel": False, "zero": 3, "microbatch_size": 2}
            | {"sets": ("self_attn.q_proj",)},
        ),
        # what was gathered for experts too waits for no gradients of weights
        (
            "longcat-flash",
            "gb300-288gb",
            64,
            8192,
            {"tp": 4, "pp": 2, "dp": 8, "cp": 4, "ep": 8, "microbatch_size": 2, "schedule": "zero_bubble"}
            | {"attention_kernel": "flash", "stage_layers": (13, 15), "sets": ("core_attention",)},
        ),
        # the gradient of what a shared expert reads is added to the hidden state's before that of the other experts
        (
            "qwen2-57b-a14b",
            "h100-80gb",
            64,
            8192,
            {"tp": 16, "pp": 2, "dp": 4, "cp": 4, "ep": 16, "num_virtual_stages": 2, "schedule": "interleaved"}
            | {"sequence_parallel": False, "zero": 0, "sets": ("core_attention",)},
        ),
        # each rank of a sequence has its piece of what is added to experts' answers
        (
            "gpt-oss-120b",
            "h200-141gb",
            16,
            8192,
            {"tp": 8, "pp": 2, "cp": 8, "ep": 8, "num_virtual_stages": 18, "schedule": "interleaved", "zero": 0}
            | {"attention_kernel": "flash", "sets": ("core_attention",)},
        ),
        # the first rank has the table, not the last norm too
        (
            "granite-3.1-1b-a400m",
            "gb300-288gb",
            2,
            8192,
            {"pp": 2, "dp": 2, "cp": 2, "ep": 4, "num_virtual_stages": 12, "schedule": "interleaved"}
            | {"attention_kernel": "flash", "context_parallel": "ring", "microbatch_size": 4, "loss_chunks": 4}
            | {"sets": ("mlp_norm",)},
        ),
        # blocks that take keys and values of another one take them gathered
        ("gemma4-e2b", "h100-80gb", 4, 8192, {"cp": 32}),
    ],
)
def test_no_estimate_of_a_full_size_is_below_a_bound(
    model: str, instance: str, nodes: int, tokens: int, choices: dict[str, Any]
) -> None:
    """Each with just the memory that it needs, where another set would take longer, and where its own is pinned."""
    loss_chunks = choices.get("loss_chunks", 1)
    training = TrainingSpec(tokens, 64, load_precision("mixed_precision"), loss_chunks=loss_chunks)
    problem = Problem(load_model(model), training, load_cluster(instance, nodes), "torch")
    of_draft = {name: value for name, value in choices.items() if name in Draft._fields}
    draft = Draft(1, 1, 1, 1, 1)._replace(sequence_parallel=choices.get("tp", 1) > 1)._replace(**of_draft)
    stages = draft.pp * draft.num_virtual_stages
    cut = draft.stage_layers or even_stage_layers(problem.model.num_hidden_layers, stages)
    draft = draft._replace(stage_layers=cut)
    for name in choices.get("sets", SETS):
        found = estimate(*problem[:3], Strategy(**draft._asdict(), recompute=(name,) * stages))
        needed = found.fullest.total_bytes
        usual = draft._replace(axis_order=AXIS_ORDER)
        for in_other, one in ((False, draft), (True, usual)) if draft != usual else ((False, draft),):
            ways = by_way([one._replace(stage_layers=())])
            for sets in (SETS, (name,)):
                bounds = layout_bounds(problem, ways, sets, needed * (1 + 1e-9), in_other)
                assert bounds.memory_bytes[0] <= needed * (1 + 1e-9), (name, sets)
                assert bounds.step_time_s[0] <= found.step_time_s * (1 + 1e-9), (name, sets)


@pytest.mark.parametrize(("instance", "nodes"), [("gb200-186gb", 36), ("trn3-gen2", 10)])
def test_no_price_is_below_a_bound_where_axes_do_not_fill_nodes(instance: str, nodes: int) -> None:
    """Groups are placed as badly as the worst of them where axes cut nodes unevenly, and better where others do not."""
    cluster = load_cluster(instance, nodes)
    training = TrainingSpec(4096, 8 * cluster.world_size, load_precision("mixed_precision"))
    problem, sets = Problem(small_model("dbrx", 4), training, cluster, "torch"), ("none",)
    choose, table, drafts = random.Random(1), Table(problem, sets), list[Draft]()
    for one in choose.sample(legal_layouts(problem, Pins(), Tally()), 250 if ALL else 80):
        draft = one.way.scheduled(*choose.choice(one.schedules))
        drafts += [
            draft._replace(axis_order=order) for order in (draft.axis_order, *other_orders(problem, Pins(), draft))
        ]
    bounds = bounds_of(problem, drafts, sets, 1e15)
    for draft in bounds:
        table.add(draft)
    for chunk in table.price():
        rows = range(len(chunk.draft))
        prices_s = chunk.exact_s([*rows]) if chunk.at_least else chunk.step_time_s
        for draft, price_s in zip(chunk.draft.tolist(), prices_s.tolist(), strict=True):
            assert bounds[chunk.whole.drafts.drafts[draft]] <= price_s * (1 + 1e-9)


def random_cut(choose: random.Random, layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of each stage; the first and the last may have none."""
    least = [0, *(1 for _ in range(stages - 2)), 0]
    places = choose.choices(range(stages), k=layers - sum(least))
    return tuple(blocks + places.count(stage) for stage, blocks in enumerate(least))


@pytest.mark.parametrize(("instance", "nodes"), [("trn1.32xlarge", 2), ("trn3-gen2", 2), ("gb200-186gb", 4)])
def test_no_group_along_two_axes_has_a_better_law(instance: str, nodes: int) -> None:
    """Whatever lies inside of them, between them and outside."""
    cluster = load_cluster(instance, nodes)
    for inside in divisors(world := cluster.world_size):
        for inner in divisors(of_inner := world // inside):
            for between in divisors(of_between := of_inner // inner):
                for outer in divisors(of_outer := of_between // between):
                    around = (("tp", inside), ("cp", inner), ("pp", between), ("dp", outer), ("ep", of_outer // outer))
                    shape = group_shape(tuple(reversed(around)), ("cp", "dp"), cluster)
                    for kind in ("all_gather", "reduce_scatter", "all_reduce") if shape.size > 1 else ():
                        law = collective_law(kind, shape, cluster)
                        least = best_law(cluster, kind, shape.size, 1, 1, along_two=True)
                        assert least.latency_s <= law.latency_s * (1 + 1e-12), (kind, around)
                        assert least.seconds_per_byte <= law.seconds_per_byte * (1 + 1e-12), (kind, around)


@pytest.mark.parametrize(
    ("seed", "pins"),
    [
        *((seed, Pins()) for seed in some(range(100, 110), 2)),
        *((100, IN_GROUPS), (107, ANY_GROUPS)),
        *((109, WHOLE), (114, HALVES), *([(102, ANY_PARTS), (110, WHOLE)] if ALL else [])),
    ],
)
def test_a_search_by_bounds_finds_what_an_exhaustive_one_does(
    seed: int, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(seed)
    for name, value in (("FEW", 0), ("FIRST", 20), ("NEAREST", 10**6)):
        monkeypatch.setattr(pricing, name, value)
    try:
        slow = search(*problem[:3], pins, problem.backend, exhaustive=True)
    except NoLayoutFits as error:
        with pytest.raises(NoLayoutFits) as found:
            search(*problem[:3], pins, problem.backend)
        assert str(found.value) == str(error)  # noqa: PT017
        return
    quick = search(*problem[:3], pins, problem.backend)
    assert (quick.best, quick.runners_up) == (slow.best, slow.runners_up)
    assert quick.optimality == slow.optimality or len(problem.model.kinds) > 1
    assert quick.fitting <= slow.fitting


def test_of_many_layouts_that_do_not_fit_a_bound_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, texts = random_problem(100), []
    for most in (0, 10**6):
        monkeypatch.setattr(pricing, "NEAREST", most)
        with pytest.raises(NoLayoutFits) as found:
            search(*problem[:3], Pins(), problem.backend)
        texts.append(str(found.value))
    quick, slow = (
        re.fullmatch(r"(.*: the smallest looked at needs )(at least )?([0-9.]+) GB( a device.*)", text)
        for text in texts
    )
    assert quick and slow
    assert quick[1] == slow[1]
    assert quick[2] == "at least "
    assert slow[2] is None
    assert quick[4] == slow[4]
    capacity = problem.cluster.device.memory_bytes / 1e9
    assert capacity < float(quick[3]) <= float(slow[3])


@pytest.mark.parametrize("seed", some(range(12), 2))
@pytest.mark.parametrize("pins", [Pins(), IN_GROUPS, WHOLE, ANY_PARTS], ids=str)
def test_no_layout_needs_less_than_equal_shares_of_the_state(seed: int, pins: Pins) -> None:
    problem = random_problem(seed)
    try:
        check_pins(problem, pins)
    except AutoshardError:
        return
    ways = legal_layouts(problem, pins, Tally())
    for way in random.Random(seed).sample(ways, min(40, len(ways))):
        draft = random.Random(seed).choice(way.drafts)
        table = Table(problem, recompute_sets(problem, pins))
        table.add(draft)
        assert all((way.state_bytes <= chunk.memory_bytes).all() for chunk in table.price()), draft


def test_what_is_slower_by_a_bound_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "FEW", 0)
    monkeypatch.setattr(pricing, "FIRST", 10)
    training = TrainingSpec(4096, 32, load_precision("mixed_precision"))
    model, cluster = small_model("llama3-8b", 4), load_cluster("h100-80gb", 1)
    result = search(model, training, cluster, backend="torch")
    (slower,) = (one for one in result.rejections if one.reason == SLOWER)
    assert slower.count > result.fitting and " takes at least " in slower.example
    assert result.considered == result.fitting + sum(one.count for one in result.rejections)


def test_a_stopped_search_takes_its_bounds_for_what_is_not_priced() -> None:
    problem, tally = random_problem(0), Tally()
    layouts = price_layouts(problem, Pins(), tally, Clock(1e-9))
    assert isinstance(layouts, PricedLayouts) and layouts.unpriced_at_least_s > 0
    count_rest(layouts, Pins(), tally, Clock(1e-9))
    assert tally.considered > 0
