"""Which part of a sequence each rank has, what it computes and what it sends; by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.cost.collectives import CollectiveLaw
from autoshard.cost.program import ProgramWork, price_program
from autoshard.cost.working_bytes import tile_bytes, working_bytes
from autoshard.graph.count import backward_collectives, forward_collectives, loop_sizes, operator_work
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program
from autoshard.layout.context_parallel import sequence_pieces, with_context_parallel
from autoshard.layout.sharding import stage_program
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.spec.cluster import load_cluster
from tests.multiprocess.models import MODELS

SEQ, BATCH = 64, 1
HEADS, KV_HEADS, HEAD_DIM = 8, 4, 8
QUERIES = BATCH * HEADS * HEAD_DIM * SEQ
KEYS = BATCH * KV_HEADS * HEAD_DIM * SEQ


def attention(kind: str, cp: int, model: str = "llama", element_bytes: int = 2) -> tuple[Program, OperatorStep]:
    graph = stage_graph(
        MODELS[model], dim_sizes(MODELS[model], BATCH, SEQ), range(1), False, False, element_bytes=element_bytes
    )
    program = stage_program(with_context_parallel(graph, kind, cp), {"cp": cp} if cp > 1 else {}, False)
    found = [s for s in program.steps if isinstance(s, OperatorStep) and s.operator.kind == "attention"]
    return program, found[0]


def flops(kind: str, cp: int, model: str = "llama") -> float:
    return operator_work(*attention(kind, cp, model)).flops


def test_pieces_of_four_ranks() -> None:
    assert sequence_pieces("zigzag_ring", 4) == (0, 7, 1, 6, 2, 5, 3, 4)
    assert sequence_pieces("ring", 4) == sequence_pieces("ulysses", 4) == (0, 1, 2, 3)
    assert sequence_pieces("all_gather", 1) == (0,)


def test_zigzag_shares_the_work_evenly_and_contiguous_pieces_do_not() -> None:
    """Causal: query i sees i + 1/2 keys. The last of 4 ranks has queries 48 .. 63, which see 56 on average; all, 32."""
    whole = 4 * QUERIES * 32
    assert flops("all_gather", 1) == whole
    assert flops("zigzag_ring", 4) == flops("ulysses", 4) == whole / 4
    assert flops("ring", 4) == flops("all_gather", 4) == whole / 4 * 56 / 32


def test_work_under_a_sliding_window() -> None:
    """Window 9: queries behind the ninth see 9 keys, those before 4.5 on average. Of 4 ranks the last is full."""
    each = 4 * QUERIES / 4
    assert flops("ring", 4, "mistral") == each * 9
    assert flops("ulysses", 4, "mistral") == pytest.approx(each * (9 * 4.5 + 55 * 9) / 64)
    # pieces of 8 queries: the first sees 4, the second (8.5 + 7 * 9) / 8, the others 9; rank 2 and 3 are full
    assert flops("zigzag_ring", 4, "mistral") == each * 9


def test_a_ring_sends_keys_and_values_on_and_their_gradients_home() -> None:
    """4 ranks: 3 hops of K and V (bf16); backward 3 again, and 4 of their gradients in FP32."""
    program, step = attention("zigzag_ring", 4)
    pair = 2 * KEYS // 4
    assert list(forward_collectives(program, step)) == [("send_recv", ("cp",), 2 * pair)] * 3
    sent = sorted(backward_collectives(program, step))
    assert sent == [("send_recv", ("cp",), 2 * pair)] * 3 + [("send_recv", ("cp",), 4 * pair)] * 4


def test_backward_of_a_ring_holds_gradients_of_three_pairs_and_a_tile_of_scores() -> None:
    """Beyond the gradients that it returns, those of q in FP32 and, of keys and values, three in FP32 and what travels
    in bf16. Of a tile the probabilities, and the gradient of scores twice, in FP32 and in bf16; all scores of a piece
    are one tile here."""

    def inside(kind: str, cp: int) -> float:
        program, step = attention(kind, cp)
        return KINDS["attention"].inner_backward_bytes(step.operator, program.graph, loop_sizes(program, step))

    q, k = QUERIES / 4, KEYS / 4
    assert inside("zigzag_ring", 4) == (4 - 2) * q + (3 * 4 + 2) * 2 * k
    assert inside("ring", 2) == (4 - 2) * 2 * q + 3 * 4 * 2 * 2 * k
    for kind, cp, length in (("zigzag_ring", 4, SEQ / 8), ("ring", 2, SEQ / 2)):
        program, step = attention(kind, cp)
        assert tile_bytes(program, step) == (4 + 4 + 2) * HEADS * length**2
    assert inside("ulysses", 4) == inside("all_gather", 1) == 0
    program, step = attention("zigzag_ring", 4)
    statistics = 4 * HEADS * SEQ / 4
    expected = 2 * (2 * q + 2 * k) + statistics + inside("zigzag_ring", 4)
    assert working_bytes(program, step) == expected + tile_bytes(program, step)


def test_ulysses_exchanges_queries_keys_values_and_the_output() -> None:
    program, step = attention("ulysses", 4, element_bytes=4)
    sizes = [QUERIES, KEYS, KEYS, QUERIES]  # elements: over 4 ranks, 4 bytes each
    assert list(forward_collectives(program, step)) == [("all_to_all", ("cp",), size) for size in sizes]
    assert sorted(backward_collectives(program, step)) == sorted(forward_collectives(program, step))


@pytest.mark.parametrize("kind", ["ring", "zigzag_ring", "ulysses"])
def test_nothing_is_gathered(kind: str) -> None:
    program, step = attention(kind, 2)
    moved = [one for s in program.steps if s is not step for one in forward_collectives(program, s)]
    assert moved == []


def test_the_model_graph_knows_nothing_of_it() -> None:
    model = MODELS["llama"]
    graph = stage_graph(model, dim_sizes(model, 1, 8), range(1), True, True)
    assert with_context_parallel(graph, "ring", 1) is graph
    told = with_context_parallel(graph, "ring", 2)
    assert [replace(op, attributes={}) for op in told.operators] == [
        replace(op, attributes={}) for op in graph.operators
    ]


def test_a_ring_hides_behind_the_attention_to_the_piece_at_hand() -> None:
    """3 hops of 4 pieces: three quarters of the attention run while something is on its way."""
    program, step = attention("zigzag_ring", 4)
    index = program.steps.index(step)
    device, work = load_cluster("trn1.32xlarge", 1).device, ProgramWork(program)
    slow = price_program(work, device, "bfloat16", lambda *_: CollectiveLaw(1.0, 0.0)).steps[index].forward
    assert slow.context_parallel == pytest.approx(3 - slow.attention * 3 / 4)
    law = CollectiveLaw(slow.attention / 4, 0.0)
    assert price_program(work, device, "bfloat16", lambda *_: law).steps[index].forward.context_parallel == 0
