"""The kernel that chooses keys: of equal scores the first, whatever the tiles; and its products are those counted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from autoshard.audits.recorder import Recorder
from autoshard.cost.estimate import estimate
from autoshard.graph import score_tiles
from autoshard.graph.count import operator_work
from autoshard.graph.operator_kind import DOCUMENT_STARTS
from autoshard.graph.partition import OperatorStep, Program, partition
from autoshard.layout.documents import with_documents
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.models.weights import parameter_dtypes
from autoshard.plans.plan import make_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.indexer import best, choose_blocks, choose_keys, choose_pools
from autoshard.runtime.torch_backend.kernels import kernel
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.parameters import initial_parameter
from autoshard.runtime.torch_backend.rotation import rope_frequencies
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.torch_backend.turns import choosing
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.indexer import Indexer
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import strategy

MODEL = MODELS["deepseek v3.2"]
POOLS = Indexer(6, 12, 8, index_kpool=4)
assert MODEL.latent_attention is not None
WITHOUT_POSITIONS = replace(
    MODEL,
    latent_attention=replace(MODEL.latent_attention, qk_rope_head_dim=0),
    position_types=("nope",) * MODEL.num_hidden_layers,
    indexer=POOLS,
)


def test_of_equal_scores_the_first_are_taken() -> None:
    scores = torch.tensor([[1.0, 0, 0, 2, 0], [0, 0, 0, 0, 0], [-1, 5, -1, 5, 5], [3, 2, 1, 0, -1]])
    assert best(scores, 3).int().tolist() == [[1, 1, 0, 1, 0], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [1, 1, 1, 0, 0]]
    assert best(scores, 5).all() and best(scores, 9).all()


M3 = MODELS["minimax m3"]


def blocks_program(blocks: BlockIndexer, seq: int, batch: int = 2) -> tuple[Program, OperatorStep]:
    model = replace(M3, block_indexer=blocks)
    graph = stage_graph(model, dim_sizes(model, batch, seq), (1,), False, False, element_bytes=4)
    one = partition(graph, {}, {op.name: {} for op in graph.operators})
    steps = (step for step in one.steps if isinstance(step, OperatorStep))
    return one, next(step for step in steps if step.operator.kind == "choose_blocks")


@pytest.mark.parametrize("local", [1, 2])
def test_a_query_sees_its_own_block_and_the_best_of_those_before(local: int) -> None:
    """Three blocks of 4 keys at most, each as good as the best of its keys up to the query, for each key-value head."""
    program, step = blocks_program(BlockIndexer(12, 4, 3, local), seq=22)
    inputs = [value.double() for value in inputs_of(program, step)]
    seen = choose_blocks(Context(program, None), step)(*inputs)
    assert seen.dtype == torch.bool and seen.shape == (2, 22, 4, 6)
    h, q_proj, k_proj, q_norm, k_norm = inputs

    def made(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normal = x / (x.square().mean(-1, keepdim=True) + M3.norm_eps).sqrt() * (1 + weight)
        angles = torch.arange(22).double().unsqueeze(1) / 1e4 ** (torch.arange(0, 4, 2).double() / 4)  # 4 of 12 turn
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        first, second, rest = normal.split((2, 2, 8), -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)

    q, k = made(torch.einsum("bse,hde->bshd", h, q_proj), q_norm), made((h @ k_proj.T).unsqueeze(2), k_norm)
    scores = torch.einsum("bqhd,bkd->bqhk", q, k.squeeze(2))
    for row, place, of_head in product(range(2), range(22), range(4)):
        own = place // 4
        best_of = [float(scores[row, place, of_head, 4 * n : min(4 * n + 4, place + 1)].max()) for n in range(own + 1)]
        order = sorted(range(own + 1), key=lambda n: (n <= own - local, -best_of[n], n))
        expected = [n in order[:3] for n in range(6)]
        assert seen[row, place, of_head].tolist() == expected, (row, place, of_head)


@pytest.mark.parametrize("at_once", [16, 100, 700])
def test_tiles_choose_the_same_blocks(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, step = blocks_program(BlockIndexer(12, 3, 4, 2), seq=40)
    inputs = inputs_of(program, step)
    whole = choose_blocks(Context(program, None), step)(*inputs)
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 4)
    assert torch.equal(choose_blocks(Context(program, None), step)(*inputs), whole)


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("length", [40, 42])
def test_a_few_tiles_hold_as_much_as_all(blocks: bool, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors without values only a few are computed. The last tile of 42 places has 2, the others 4."""
    one = BlockIndexer(12, 3, 4, 2)
    program, step = blocks_program(one, length) if blocks else program_of(Indexer(6, 12, 8), length)
    inputs = inputs_of(program, step)
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", 4 * length * 2)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 4)

    def held(few: bool) -> tuple[int, int]:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        recorder = Recorder(mode, {}, lambda name: ())
        with mode, recorder, choosing(recorder.turns) if few else nullcontext():
            kernel(Context(program, None), step)(*map(mode.from_tensor, inputs))
        memory = recorder.memory
        return max(size for _, size in memory.levels(0, memory.events + 1)), memory.events

    (few_bytes, few_events), (all_bytes, all_events) = held(True), held(False)
    assert few_bytes == all_bytes
    assert few_events < 0.7 * all_events


def test_an_audit_sees_tiles_as_wide_as_when_they_have_values() -> None:
    """How many keys a tile scores is a number, which fake tensors do not know."""
    program, step = blocks_program(BlockIndexer(12, 3, 4, 2), seq=40)
    inputs = inputs_of(program, step)

    def largest(tensors: list[torch.Tensor]) -> int:
        with Sizes() as seen:
            kernel(Context(program, None), step)(*tensors)
        return seen.largest

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, Recorder(mode, {}, lambda name: ()):
        forms_alone = largest([mode.from_tensor(one) for one in inputs])
    assert forms_alone == largest(inputs)


class Sizes(TorchDispatchMode):
    """The largest tensor that was made, elements."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.largest = max(self.largest, out.numel())
        return out


def test_nothing_of_a_choice_of_blocks_is_kept_for_backward() -> None:
    program, step = blocks_program(BlockIndexer(12, 4, 3), seq=16)
    inputs = [value.requires_grad_() for value in inputs_of(program, step)]
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda x: x):
        seen = kernel(Context(program, None), step)(*inputs)
    assert not kept and not seen.requires_grad


def test_products_of_blocks_are_those_counted() -> None:
    """Within 6 %: keys behind the first queries of a tile, and the rest of its last block, are scored in vain."""
    program, step = blocks_program(BlockIndexer(128, 64, 16), seq=4096, batch=1)
    inputs = inputs_of(program, step)
    with FlopCounterMode(display=False) as counter:
        kernel(Context(program, None), step)(*inputs)
    assert counter.get_total_flops() == pytest.approx(operator_work(program, step).flops, rel=0.06)


def program_of(indexer: Indexer, seq: int, batch: int = 2) -> tuple[Program, OperatorStep]:
    model = replace(MODEL if indexer.index_kpool is None else WITHOUT_POSITIONS, indexer=indexer)
    graph = stage_graph(model, dim_sizes(model, batch, seq), (0,), False, False, element_bytes=4)
    one = partition(graph, {}, {op.name: {} for op in graph.operators})
    steps = [step for step in one.steps if isinstance(step, OperatorStep)]
    steps = [step for step in steps if step.operator.kind in ("choose_keys", "choose_pools")]
    return one, steps[0]


def inputs_of(program: Program, step: OperatorStep) -> list[torch.Tensor]:
    graph, generator = program.graph, torch.Generator().manual_seed(0)
    shapes = [[graph.sizes[dim] for dim in graph.tensors[name].dims] for name in step.operator.inputs]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_a_query_sees_itself_and_as_many_keys_before_it_as_there_are() -> None:
    program, step = program_of(Indexer(6, 12, 5), seq=16)
    seen = choose_keys(Context(program, None), step)(*inputs_of(program, step))
    assert seen.dtype == torch.bool and seen.shape == (2, 16, 16)
    assert not seen.triu(1).any()
    assert seen.sum(-1).tolist() == [[min(place + 1, 5) for place in range(16)]] * 2


def test_positions_may_turn_the_ends_of_queries_and_keys() -> None:
    """The same as where they turn the starts, with each head's numbers the other way round."""
    program, step = program_of(Indexer(6, 12, 5), seq=16)
    at_end, other = program_of(Indexer(6, 12, 5, turns_end=True), seq=16)
    inputs = inputs_of(program, step)
    swapped = [*inputs]
    for place, dim in ((2, 1), (3, 0), (4, 0), (5, 0)):
        swapped[place] = inputs[place].roll(-8, dim)  # 8 of 12 numbers turn
    expected = choose_keys(Context(program, None), step)(*inputs)
    assert torch.equal(choose_keys(Context(at_end, None), other)(*swapped), expected)
    assert not torch.equal(choose_keys(Context(program, None), step)(*swapped), expected)


LARGE = MODELS["mistral large 4"]


@pytest.mark.parametrize("layer", [0, 1], ids=["without positions", "with positions"])
@pytest.mark.parametrize("documents", [False, True])
def test_queries_made_of_the_hidden_state_grow_with_their_place(layer: int, documents: bool) -> None:
    """6 heads of 12 numbers, of which 8 turn, at frequencies that exp of a parameter scales."""
    graph = stage_graph(LARGE, dim_sizes(LARGE, 2, 16), (layer,), False, False, element_bytes=8)
    starts = torch.tensor([[0] * 6 + [6] * 10, [0] * 16])
    graph = with_documents(graph) if documents else graph
    program = partition(graph, {}, {op.name: {} for op in graph.operators})
    steps = (step for step in program.steps if isinstance(step, OperatorStep))
    step = next(step for step in steps if step.operator.kind == "choose_keys")
    made = dict(zip(step.operator.inputs, inputs_of(program, step), strict=True))
    inputs = [made[name].double() for name in step.operator.inputs if name != DOCUMENT_STARTS]
    seen = choose_keys(Context(program, None), step)(*inputs, *((starts,) if documents else ()))
    h, _, wq_b, wk, norm, norm_bias, of_heads, *others = inputs
    q_norm, q_bias, scale, bias, *exponents = others
    assert len(exponents) == layer
    q = torch.nn.functional.layer_norm(h, (64,), q_norm, q_bias, 1e-6)
    first = starts if documents else torch.zeros_like(starts)
    logs = (torch.arange(16) - first + 1).float().log().double()
    q = torch.einsum("bse,hde->bshd", q, wq_b) * (scale * logs.unsqueeze(-1) + bias).unsqueeze(-1)
    k = torch.nn.functional.layer_norm(h @ wk.T, (12,), norm, norm_bias, 1e-6).unsqueeze(2)
    for one in exponents:
        frequencies = rope_frequencies(8, 1e4, LARGE.rope_scaling) * one.exp()
        angles = torch.outer(torch.arange(16).double(), frequencies).unsqueeze(1)
        q, k = (
            torch.cat((turned(x[..., :8], angles), x[..., 8:]), -1)  # the factor of YaRN is 1
            for x in (q, k)
        )
    scores = torch.einsum("bqhd,bkd->bqhk", q, k.squeeze(2)).relu()
    scores = torch.einsum("bqhk,bqh->bqk", scores, h @ of_heads.T)
    place = torch.arange(16)
    hidden = (place > place.unsqueeze(1)) | (place < first.unsqueeze(-1))
    order = scores.masked_fill(hidden, -torch.inf).argsort(stable=True, descending=True).argsort(-1)
    assert torch.equal(seen, (order < 5) & ~hidden)


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbours turned."""
    turn = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)


@pytest.mark.parametrize(("at_once", "tile"), [(16, (1, 1)), (500, (4, 1)), (2000, (4, 6)), (800, (4, 2))])
def test_tiles_change_nothing(at_once: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    program, step = program_of(Indexer(6, 12, 5), seq=40)
    inputs = inputs_of(program, step)
    whole = choose_keys(Context(program, None), step)(*inputs)
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 4)
    assert score_tiles.choice_tile(6, 40, 40, 2) == tile
    assert torch.equal(choose_keys(Context(program, None), step)(*inputs), whole)


def test_a_query_sees_its_own_pool_up_to_itself_and_the_best_of_those_before() -> None:
    """Two pools of 4 tokens of as many as have ended, the first of equal ones, and no key behind the query."""
    program, step = program_of(POOLS, seq=22)
    inputs = [value.double() for value in inputs_of(program, step)]
    seen = choose_pools(Context(program, None), step)(*inputs)
    assert seen.dtype == torch.bool and seen.shape == (2, 22, 22)
    h, compressed, wq_b, wk, norm, norm_bias, of_heads, gate, bias = inputs
    q = torch.einsum("bsr,hdr->bshd", compressed, wq_b)
    k = torch.nn.functional.layer_norm(h @ wk.T, (12,), norm, norm_bias, 1e-6)
    for row in range(2):
        for place in range(22):
            scores = []
            for pool in range((place + 1) // 4):
                tokens = slice(4 * pool, 4 * pool + 4)
                weights = (h[row, tokens] @ gate.T + bias).softmax(0)
                key = (weights * k[row, tokens]).sum(0)
                scores.append(float((h[row, place] @ of_heads.T) @ (q[row, place] @ key).relu()))
            best_two = sorted(range(len(scores)), key=lambda pool: (-scores[pool], pool))[:2]
            first = (place + 1) // 4 * 4
            expected = [key // 4 in best_two or first <= key <= place for key in range(22)]
            assert seen[row, place].tolist() == expected, (row, place)


def test_a_sequence_shorter_than_a_pool_sees_all_before_it() -> None:
    program, step = program_of(Indexer(6, 12, 8, index_kpool=8), seq=6)
    seen = choose_pools(Context(program, None), step)(*inputs_of(program, step))
    assert torch.equal(seen[0], torch.ones(6, 6, dtype=torch.bool).tril())


@pytest.mark.parametrize("at_once", [16, 100, 700])
def test_tiles_choose_the_same_pools(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, step = program_of(POOLS, seq=40)
    inputs = inputs_of(program, step)
    whole = choose_pools(Context(program, None), step)(*inputs)
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 4)
    assert torch.equal(choose_pools(Context(program, None), step)(*inputs), whole)


@pytest.mark.parametrize("indexer", [Indexer(6, 12, 5), POOLS])
def test_nothing_is_kept_for_backward(indexer: Indexer) -> None:
    program, step = program_of(indexer, seq=16)
    inputs = [value.requires_grad_() for value in inputs_of(program, step)]
    kept: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda x: x):
        seen = kernel(Context(program, None), step)(*inputs)
    assert not kept and not seen.requires_grad


@pytest.mark.parametrize("indexer", [Indexer(64, 12, 64), Indexer(64, 12, 64, index_kpool=4)])
def test_products_are_those_counted(indexer: Indexer) -> None:
    """Within 4 %: the last keys of a tile, of which there are 32, lie behind its first queries."""
    program, step = program_of(indexer, seq=4096, batch=1)
    inputs = inputs_of(program, step)
    with FlopCounterMode(display=False) as counter:
        kernel(Context(program, None), step)(*inputs)
    assert counter.get_total_flops() == pytest.approx(operator_work(program, step).flops, rel=0.04)


def test_checkpoints_hold_an_indexer_in_the_dtype_of_masters() -> None:
    """As a manifest says, though a run in mixed precision holds it in BF16, for it is not learned."""
    precision = load_precision("mixed_precision")
    training, cluster, layout = TrainingSpec(16, 1, precision), local_cluster(1), strategy()
    layout = replace(layout, stage_layers=(MODEL.num_hidden_layers,))
    plan = make_plan(MODEL, training, cluster, "torch", layout, estimate(MODEL, training, cluster, layout))
    settings = optimizer_settings(precision, 1e-3, layout.zero, seed=0)
    session = Session(plan, 0, torch.device("cpu"), settings, seed=0)
    expected = parameter_dtypes(MODEL, "F32")
    state = session.optimizer.state()
    pairs = [(piece.name, one[0]) for shard, one in zip(session.shards(), state, strict=True) for piece in shard.pieces]
    assert any("indexer" in name for name, _ in pairs)
    assert all(expected[name] == "F32" and one.dtype == torch.float32 for name, one in pairs)
    session.optimizer.load_state(state, 0)
    assert session.optimizer.masters()["model.layers.0.self_attn.indexer.wq_b.weight"].dtype == torch.bfloat16


def test_pools_begin_as_means_of_what_gates_of_one_weigh() -> None:
    """As in transformers: gates of ones, and nothing added by the place of a token."""
    program, step = program_of(POOLS, seq=16)
    gate, bias = (program.graph.tensors[name] for name in step.operator.inputs[-2:])
    made = [initial_parameter(WITHOUT_POSITIONS, one, program.graph.sizes, seed=0) for one in (gate, bias)]
    assert torch.equal(made[0], torch.ones(12, 64)) and not made[1].any()
