"""A checkpoint of any layout loads under any other: every pair, with all ranks of both in this one process."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from autoshard.checkpoint.directory import LocalStore
from autoshard.checkpoint.layout import Shard, parameter_shapes, rank_shards
from autoshard.checkpoint.manifest import Manifest
from autoshard.files.codec import to_json
from autoshard.graph.partition import Program
from autoshard.layout.strategy import Strategy
from autoshard.models.stage import dim_sizes
from autoshard.models.weights import parameter_dims
from autoshard.plans.plan import Plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.optimizer import ShardedOptimizer
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.parameters import local_piece, padded
from autoshard.runtime.torch_backend.sharded_weights import ShardedWeights
from autoshard.runtime.torch_backend.sums import Sums
from autoshard.runtime.trainer.shard_files import read_rank, write_rank
from autoshard.spec.lora import Lora
from autoshard.spec.training import ADAMW, MUON
from benchmarks.random_layouts import legal
from tests.cases import ALL, some
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy

UNEVEN_VOCABULARY = replace(MODELS["few kv heads"], vocab_size=91)
ADAPTED = replace(UNEVEN_VOCABULARY, lora=Lora(4, 8.0, ("down_proj", "q_proj", "v_proj")))
BY_MUON = "muon"
OWN = {"few kv heads": UNEVEN_VOCABULARY, "adapters": ADAPTED, BY_MUON: UNEVEN_VOCABULARY}
LAYOUTS: dict[str, dict[str, Strategy]] = {
    "few kv heads": {
        "one process": strategy(),
        "tp": strategy(tp=2),
        "tp, kv replicated": strategy(tp=4),
        "dp": strategy(dp=4),
        "dp of 3": strategy(dp=3),
        "dp, no ZeRO-1": strategy(dp=2, zero=0),
        "pp": strategy(pp=4),
        "pp, uneven": strategy(pp=2, layers=(3, 1)),
        "pp, embedding and head alone": strategy(pp=3, dp=2, layers=(0, 4, 0)),
        "interleaved": strategy(pp=2, vpp=2),
        "cp": strategy(cp=2),
        "tp x pp x dp": strategy(tp=2, pp=2, dp=2),
        "tp x cp x dp, kv replicated": strategy(tp=4, cp=2, dp=2),
        "tp x cp x dp, cp innermost": strategy(tp=2, cp=2, dp=2, order="dp-pp-tp-cp"),
        "tp x dp, no ZeRO-1": strategy(tp=2, dp=2, zero=0, sp=False),
        "dp of 3, ZeRO-3": strategy(dp=3, zero=3),
        "HSDP of 2 x 3": strategy(dp=6, zero=3, dp_replicate=2),
        "tp x HSDP, ZeRO-1": strategy(tp=4, dp=4, dp_replicate=2),
    },
    "tied": {
        "one process": strategy(),
        "tp": strategy(tp=2),
        "pp": strategy(pp=2),
        "pp, embedding and head alone": strategy(pp=3, layers=(0, 4, 0)),
        "tp x pp x dp": strategy(tp=2, pp=2, dp=2),
        "pp x dp, ZeRO-3": strategy(pp=2, dp=2, zero=3),
    },
    "mixtral": {
        "one process": strategy(),
        "ep": strategy(dp=4, ep=2),
        "ep x tp": strategy(dp=2, ep=2, tp=2),
        "ep x pp": strategy(dp=4, ep=4, pp=2),
        "ep x dp, ZeRO-3": strategy(dp=4, ep=2, zero=3),
        "ep x HSDP": strategy(dp=4, ep=2, zero=3, dp_replicate=2),
        "ep over tp x dp x pp": strategy(tp=2, dp=4, pp=2, ep=4, etp=1),
        "ep over tp, parts of experts, ZeRO-3": strategy(tp=4, dp=3, ep=2, etp=2, zero=3),
    },
    "gpt2": {
        "one process": strategy(),
        "tp": strategy(tp=2),
        "pp x dp": strategy(pp=2, dp=3),
    },
    "mistral large 4": {
        "one process": strategy(),
        "a stage for each block": strategy(pp=4),
        "interleaved": strategy(pp=2, vpp=2),
        "tp x pp x dp, ZeRO-3": strategy(tp=2, pp=2, dp=2, ep=2, zero=3),
    },
    "3 kv heads": {
        "one process": strategy(),
        "tp x dp, padded": strategy(tp=2, dp=3),
    },
    "3 heads share": {
        "one process": strategy(),
        "tp x dp, padded": strategy(tp=4, dp=5),
    },
    "adapters": {
        "one process": strategy(),
        "tp, kv replicated": strategy(tp=4),
        "tp x pp x dp, ZeRO-3": strategy(tp=2, pp=2, dp=3, zero=3),
        "HSDP": strategy(dp=4, zero=3, dp_replicate=2),
    },
    BY_MUON: {
        "one process": strategy(),
        "tp, kv replicated": strategy(tp=4),
        "tp x pp x dp, ZeRO-3": strategy(tp=2, pp=2, dp=3, zero=3),
        "dp of 3": strategy(dp=3),
    },
}
PAIRS = [
    (model, source, target)
    for model, layouts in LAYOUTS.items()
    for (i, source), (j, target) in product(enumerate(layouts), enumerate(layouts))
    if ALL or (j - i) % len(layouts) == 1 % len(layouts)
]
"""By default each layout reads the next one, in a circle."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint, and what the optimizer of each rank held when it was written."""

    plan: Plan
    folder: Path
    manifest: Manifest
    states: tuple[list[tuple[torch.Tensor, ...]], ...]
    shards: tuple[tuple[Shard, ...], ...]


@dataclass(frozen=True)
class Held:
    """Of a stage's module, what the optimizer asks for."""

    program: Program
    parameters: dict[str, nn.Parameter]
    sharded: ShardedWeights
    later: None = None

    def parameter(self, name: str) -> nn.Parameter:
        return self.parameters[name]


class Groups:
    """Groups of a rank among ranks that do not exist."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.mesh, self.rank = plan.mesh, rank

    def __getitem__(self, axes: tuple[str, ...]) -> Group:
        (ranks,) = (one for one in self.mesh.groups(axes) if self.rank in one)
        handle: Any = None
        return Group(str(axes), handle, tuple(ranks), ranks.index(self.rank))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def saved(model: str, layout: str, root: Path) -> Saved:
    optimizer = MUON if model == BY_MUON else ADAMW
    plan = plan_of(OWN.get(model) or MODELS[model], LAYOUTS[model][layout], 4, FP32, optimizer=optimizer)
    return saved_of(plan, root / f"{model} {layout}")


def saved_of(plan: Plan, folder: Path) -> Saved:
    store = LocalStore(folder)
    states = tuple(state_of(plan, rank) for rank in range(plan.mesh.world_size))
    shards = tuple(rank_shards(plan, rank) for rank in range(plan.mesh.world_size))
    files = [write_rank(store, 1, rank, shards[rank], state) for rank, state in enumerate(states)]
    manifest = Manifest(1, to_json(plan.model), {}, "F32", 1e-3, 0, {}, plan.mesh.world_size, tuple(files))
    return Saved(plan, store.being_written(1), manifest, states, shards)


def state_of(plan: Plan, rank: int) -> list[tuple[torch.Tensor, ...]]:
    """What the rank's own optimizer holds when the whole parameters are those of `whole_parameters`."""
    whole = whole_parameters(plan)
    pipeline_rank, index = plan.mesh.coordinates(rank)
    groups: Any = Groups(plan, rank) if plan.mesh.world_size > 1 else None
    modules: list[Any] = []
    held: list[tuple[Program, dict[str, torch.Tensor]]] = []
    for stage in (stage for stage in plan.stages if stage.pipeline_rank == pipeline_rank):
        program = plan.program(stage.layers, stage.has_embedding, stage.has_head)
        local = {
            tensor.name: local_piece(whole[tensor.name], tensor.dims, program.states[tensor.name], plan.mesh, index)
            for tensor in program.graph.parameters()
        }
        held.append((program, local))
    tied: dict[str, Any] = {}
    if plan.model.shares_embedding and plan.strategy.pp > 1 and pipeline_rank in (0, plan.strategy.pp - 1):
        tied = {name: groups["pp",] for name in whole if "embed" in name or "wte" in name}
    settings = OptimizerSettings(1e-3, zero=plan.strategy.zero)
    place = (torch.float32, torch.device("cpu"))
    for program, local in held:
        sharded = ShardedWeights(program, plan.mesh, groups, settings, frozenset(tied), "none", *place)
        for name, bucket in sharded.bucket_of.items():
            bucket.fill(name, local.pop(name))
        modules.append(Held(program, {name: nn.Parameter(value) for name, value in local.items()}, sharded))
    optimizer = ShardedOptimizer(modules, plan.mesh, groups, Sums.on(place[1], None, None), settings, tied)
    masters = ((bucket.key.moments, bucket.master.detach()) for bucket in optimizer.buckets)
    return [(master, 2 * master, master**2)[: 1 + moments] for moments, master in masters]


def whole_parameters(plan: Plan) -> dict[str, torch.Tensor]:
    """Random ones, padded with zeros as the plan pads them."""
    dims, _ = parameter_dims(plan.model)
    sizes = dim_sizes(plan.model, 1, 1, plan.strategy.tp)
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in sorted(parameter_shapes(plan.model).items()):
        found[name] = padded(torch.randn(shape, generator=generator), [sizes[dim] for dim in dims[name]])
    return found


@pytest.mark.parametrize(("model", "source", "target"), PAIRS)
def test_every_layout_reads_every_other(model: str, source: str, target: str, root: Path) -> None:
    assert_read(saved(model, source, root), saved(model, target, root))


@pytest.mark.parametrize("seed", some(range(12), step=3))
def test_random_layouts_read_each_other(seed: int, tmp_path: Path) -> None:
    """Of any family, on 1 to 16 ranks, with all that a layout may have at once."""
    draw = Random(seed)
    name = draw.choice([*MODELS])
    one, other = (
        saved_of(legal(draw, {name: MODELS[name]}, local_cluster(draw.choice((1, 2, 4, 8, 16))), 16, FP32)[1], folder)
        for folder in (tmp_path / "one", tmp_path / "other")
    )
    assert_read(one, other)
    assert_read(other, one)
    assert_written_once(one)


def assert_read(written: Saved, wanted: Saved) -> None:
    """Each rank of one layout reads from the other's checkpoint exactly what its own optimizer would hold."""
    for rank, state in enumerate(wanted.states):
        read = read_rank(written.folder, written.manifest, wanted.shards[rank]).state
        assert len(read) == len(state)
        for found, expected in zip(read, state, strict=True):
            for one, other in zip(found, expected, strict=True):
                assert torch.equal(one, other)


@pytest.mark.parametrize(("model", "layout"), [(model, layout) for model in LAYOUTS for layout in LAYOUTS[model]])
def test_every_element_is_written_once(model: str, layout: str, root: Path) -> None:
    assert_written_once(saved(model, layout, root))


def assert_written_once(one: Saved) -> None:
    shapes = parameter_shapes(one.plan.model)
    counts = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for shards in one.shards:
        for shard in shards:
            for piece in shard.pieces:
                if piece.writes:
                    counts[piece.name][piece.box.slices((0,) * len(shapes[piece.name]))] += 1
    assert all(bool((count == 1).all()) for count in counts.values())
