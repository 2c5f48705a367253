"""What is dropped: at the right rate, independently everywhere, and the same in every layout. One process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autoshard.audits.recorder import Recorder
from autoshard.graph.operator_kind import SEQUENCE_KEYS
from autoshard.graph.partition import OperatorStep
from autoshard.graph.redistribute import local_sizes
from autoshard.layout.context_parallel import sequence_pieces
from autoshard.plans.plan import Plan
from autoshard.runtime.torch_backend.attention import attention, plain_attention, weighing
from autoshard.runtime.torch_backend.context import Context, in_pieces
from autoshard.runtime.torch_backend.dropout import Mask, dropout, dropped_product, sequence_keys
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.parameters import assemble, local_piece
from autoshard.spec.dropout import Dropout
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import plan_of, strategy
from tests.spmd.dropping import mask as mask_in_numpy

DROPPING = replace(LLAMA, dropout=Dropout(0.1, 0.2, 0.3))
RATE = 0.1


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one.flatten(), other.flatten())).double())[0, 1])


def test_the_rate_and_independence() -> None:
    """524,288 elements: five standard deviations of the rate are 0.0021, of a correlation 0.0069."""
    shape, keys = (torch.arange(64), torch.arange(2048)), sequence_keys(seed=0, step=0, sequences=4)
    first, second = (Mask(f"model.layers.{layer}.mlp.dropout", shape, RATE) for layer in (0, 1))
    found = first.kept(first.rows(keys))
    assert abs(1 - float(found.double().mean()) - RATE) < 0.0021
    later, other_seed = sequence_keys(0, 1, 4), sequence_keys(1, 0, 4)
    others = [second.kept(second.rows(keys)), *(first.kept(first.rows(one)) for one in (later, other_seed))]
    others += [found.roll(shift, dim) for dim in range(3) for shift in (1, 2)]  # neighbours along each dim
    assert max(abs(correlation(found, other)) for other in others) < 0.0069
    for dims in ((0, 1), (0, 2), (1, 2)):  # no sequence, token or feature is dropped more often than others
        share = 1 - found.double().mean(dims)
        deviation = (RATE * (1 - RATE) / (found.numel() / share.numel())) ** 0.5
        assert float((share - RATE).abs().max()) < 5 * deviation


def test_the_mask_is_the_one_that_numpy_computes() -> None:
    keys, places = sequence_keys(3, 5, 6), (torch.tensor([7, 2, 100_000]), torch.arange(40, 90))
    found = Mask("transformer.drop", places, 0.3)
    expected = mask_in_numpy(keys.numpy(), "transformer.drop", [one.numpy() for one in places], 0.3)
    assert found.kept(found.rows(keys)).numpy().tolist() == expected.tolist()


@pytest.mark.parametrize(("rate", "kept"), [(1e-12, 1.0), (1 - 1e-12, 0.0)])
def test_a_rate_next_to_none_and_to_all(rate: float, kept: float) -> None:
    """Beyond what 32 bits tell apart: one element of 4 billion."""
    keys, mask = sequence_keys(0, 0, 2), Mask("transformer.drop", (torch.arange(8), torch.arange(64)), rate)
    assert float(mask.kept(mask.rows(keys)).double().mean()) == kept


LAYOUTS = {
    "tp": strategy(tp=4, kernel="plain"),
    "tp, no sequence parallel": strategy(tp=4, sp=False, kernel="plain"),
    "kv replicated": strategy(tp=8, kernel="plain"),
    "dp": strategy(dp=4, mbs=1, kernel="plain"),
    "dp x cp x tp, zigzag": strategy(dp=2, cp=2, tp=2, mbs=2, attention="zigzag_ring", kernel="plain"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_drops_what_one_device_drops(layout: str) -> None:
    chosen = LAYOUTS[layout]
    alone = dict(kept_by(plan_of(DROPPING, strategy(mbs=4, kernel="plain"), 1)))
    apart = dict(kept_by(plan_of(DROPPING, replace(chosen, microbatch_size=4 // chosen.dp), 1)))
    assert (len(alone), len(apart)) == (7, 7 if chosen.cp == 1 else 5)
    for name, found in apart.items():
        assert 0 < found.double().mean() < 1
        assert torch.equal(found, alone[name]), name


def kept_by(plan: Plan) -> Iterator[tuple[str, torch.Tensor]]:
    """Of each operator that drops, what is kept, put together from the pieces that its ranks work on.

    Without attention where ranks share a sequence: those of this test cannot talk.
    """
    program, mesh = plan.program(range(2), True, True), plan.mesh
    order = in_pieces(16, sequence_pieces(plan.strategy.context_parallel, plan.strategy.cp)).argsort()
    keys = sequence_keys(seed=0, step=7, sequences=4)
    for step in program.steps:
        if not isinstance(step, OperatorStep) or SEQUENCE_KEYS not in step.operator.inputs:
            continue
        name, state = step.operator.output, program.states[step.operator.output]
        is_attention = step.operator.kind == "attention"
        if is_attention and plan.strategy.cp > 1:
            continue
        dims = ("batch", "kvhead", "group", "seq", "keys") if is_attention else program.graph.tensors[name].dims
        held = {}
        for rank in range(mesh.world_size):
            _, index = mesh.coordinates(rank)
            context = Context(program, MeshGroups(mesh, rank, ()))
            own = local_piece(keys, ("batch",), program.states[SEQUENCE_KEYS], mesh, index)
            shape = local_sizes(program.graph, program.graph.tensors[name].dims, state, program.axes)
            held[rank] = (kept_in_attention if is_attention else kept_in)(context, step, own, shape)
        whole = assemble(held, dims, state, mesh)
        yield name, whole.index_select(dims.index("seq"), order)


def kept_in(context: Context, step: OperatorStep, keys: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return dropout(context, step)(torch.ones(shape), keys) > 0


def kept_in_attention(context: Context, step: OperatorStep, keys: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Of equal weights and values that tell which key they are of."""
    batch, queries, kv_heads, group, _ = shape
    weights, v = torch.ones(batch, kv_heads * group, queries, 16), torch.eye(16).expand(batch, kv_heads, 16, 16)
    return weighing(context, step)(weights, v, keys).view(batch, kv_heads, group, queries, 16) > 0


def test_gradients_are_those_of_the_same_mask() -> None:
    """In FP64, against finite differences: the attention that drops, and dropout itself. Attention's backward writes
    over what it has read: it runs once, where gradcheck would run it again."""
    plan = plan_of(DROPPING, strategy(kernel="plain"), 1)
    program = plan.program(range(1), True, True)
    context, keys = Context(program, None), sequence_keys(0, 0, 1)
    steps = {one.operator.name: one for one in program.steps if isinstance(one, OperatorStep)}
    run = dropout(context, steps["model.embed_dropout"])
    x = torch.randn(1, 16, 64, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: run(x, keys), x, fast_mode=True)
    attend = attention(context, steps["model.layers.0.self_attn.core_attention"])
    q, k, v = (torch.randn(1, 16, *heads, 8, dtype=torch.float64, requires_grad=True) for heads in ((4, 2), (4,), (4,)))
    out = attend(q, k, v, keys)
    weights = torch.randn_like(out)
    for x, grad in zip((q, k, v), torch.autograd.grad(out, (q, k, v), weights), strict=True):
        along = torch.randn_like(x)
        ahead, behind = ((attend(*_moved((q, k, v), x, by * along), keys) * weights).sum() for by in (1e-5, -1e-5))
        assert (ahead - behind).item() / 2e-5 == pytest.approx((grad * along).sum().item(), 1e-6, 1e-8)


def test_no_more_than_two_tensors_of_scores_are_there() -> None:
    """The probabilities, and beside them forward what is left of them, backward their gradient."""
    heads, length = 32, 256
    mask = Mask("", tuple(map(torch.arange, (heads, 1, length, length))), RATE)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = Recorder(mode, {}, lambda name: ())
    with mode, recorder:
        q, k, v = (torch.ones(1, heads, length, 8, requires_grad=True) for _ in range(3))
        keys = torch.zeros(1, dtype=torch.int64)
        out = plain_attention(q, k, v, None, weigh=lambda weights, v: dropped_product(weights, v, keys, mask))
        out.backward(torch.ones_like(out))
    memory, scores_bytes = recorder.memory, 4 * heads * length**2
    assert 2 * scores_bytes < max(size for _, size in memory.levels(0, memory.events + 1)) < 3 * scores_bytes


def _moved(inputs: tuple[torch.Tensor, ...], one: torch.Tensor, by: torch.Tensor) -> list[torch.Tensor]:
    return [x + by if x is one else x for x in inputs]


def test_nothing_is_dropped_without_gradients() -> None:
    program = plan_of(DROPPING, strategy(kernel="plain"), 1).program(range(1), True, True)
    step = next(one for one in program.steps if isinstance(one, OperatorStep) and one.operator.kind == "dropout")
    x = torch.randn(1, 16, 64)
    with torch.no_grad():
        assert dropout(Context(program, None), step)(x, sequence_keys(0, 0, 1)) is x
