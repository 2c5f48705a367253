"""Attention to blocks of keys that an indexer chooses for each key-value head (MiniMax-M3): hand-computed numbers, how
ranks share its work, and exact refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoshard.cost.compute import operator_needs
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import _facts
from autoshard.graph.count import forward_collectives, operator_work
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep
from autoshard.graph.recompute import kept_activations
from autoshard.layout.sharding import stage_program
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, learned_count, parameter_count, stage_graph
from autoshard.planner.inputs import inputs_of
from autoshard.planner.request import PlanRequest
from autoshard.runtime.options import RunOptions
from autoshard.runtime.rehearse import rehearse
from autoshard.runtime.run import _backend
from autoshard.spec.block_indexer import BlockIndexer
from autoshard.spec.dropout import Dropout
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy

M3, TINY = load_model("minimax-m3"), MODELS["minimax m3"]
SEQ, PREFIX = 64, "model.layers.1.self_attn."
MASK = f"{PREFIX}core_attention:mask_in_numbers"


def block_program(model: ModelSpec, axes: dict[str, int], sp: bool = True, kernel: str = "flash") -> Program:
    sizes = dim_sizes(model, 1, SEQ, tp=axes.get("tp0", 1))
    return stage_program(stage_graph(model, sizes, (1,), False, False, kernel), axes, sequence_parallel=sp)


def chooses(program: Program) -> OperatorStep:
    operators = (step for step in program.steps if isinstance(step, OperatorStep))
    (found,) = (step for step in operators if step.operator.kind == "choose_blocks")
    return found


def test_the_matrices_of_an_indexer_are_held_and_not_learned() -> None:
    """Queries of 4 heads, a key, both norms: (4 + 1) x 128 x 6144 + 2 x 128, in 57 blocks; and biases of experts."""
    assert parameter_count(M3) - learned_count(M3) == 57 * (5 * 128 * 6144 + 2 * 128 + 128)


def test_flops_and_scores_by_hand() -> None:
    program = stage_program(stage_graph(M3, dim_sizes(M3, 1, 4096), (3,), False, False), {}, sequence_parallel=False)
    work = operator_work(program, chooses(program))
    assert work.flops == 2 * 4096 * (5 * 128 * 6144 + 4 * 128 * 2048)  # 2,048 keys before a query, on average
    assert work.backward_flops_ratio == 0
    assert operator_needs(program, chooses(program)).scores_bytes == 2 * 4 * 4096 * 2048


def test_what_attention_keeps_of_its_mask_by_hand() -> None:
    """64 queries of 4 heads to 32 blocks, a byte each; plain attention keeps its probabilities alone."""
    assert kept_activations(block_program(TINY, {}), "none")[MASK] == SEQ * 4 * 32
    assert MASK not in kept_activations(block_program(TINY, {}, kernel="plain"), "none")
    again = kept_activations(block_program(TINY, {}), "core_attention")
    assert MASK not in again and again[f"{PREFIX}indexer"] == SEQ * 4 * 32
    program = block_program(TINY, {})
    (attends,) = (op for op in program.graph.operators if op.kind == "attention")
    assert program.graph.tensors[attends.inputs[3]].dims == ("batch", "seq", "kvhead", "key_block")
    tile = KINDS["attention"].tile_bytes(attends, program.graph, program.graph.sizes)
    assert tile == (2 * 4 + 2) * 8 * 64 * 64  # probabilities, their gradient, and that in BF16, of 8 heads


def test_blocks_with_full_attention_take_the_fused_kernel() -> None:
    graph = stage_graph(TINY, dim_sizes(TINY, 1, SEQ), (0,), False, False)
    (attends,) = (op for op in graph.operators if op.kind == "attention")
    assert len(attends.inputs) == 3 and not {"chosen", "chosen_block"} & attends.attributes.keys()
    assert KINDS["attention"].tile_bytes(attends, graph, graph.sizes) == 0


@pytest.mark.parametrize("sp", [True, False])
def test_ranks_of_tp_choose_for_their_own_heads(sp: bool) -> None:
    """No rank sends its choice: the queries that it is for are there, and the hidden state is gathered for them."""
    program = block_program(TINY, {"tp0": 2}, sp)
    step = chooses(program)
    assert step.choice["tp0"] == "kvhead" and not list(forward_collectives(program, step))
    assert [program.states[name] for name in step.operator.inputs[1:]] == [("kvhead",), ("I",), ("I",), ("I",)]
    moved = [one for one in program.steps if isinstance(one, RedistributeStep) and one.source == f"{PREFIX}indexer"]
    assert not moved


def test_ranks_that_share_a_sequence_gather_keys_and_keep_the_mask_of_their_own_queries() -> None:
    program = block_program(TINY, {"cp": 2})
    step = chooses(program)
    assert step.choice["cp"] == "seq"
    assert list(forward_collectives(program, step)) == [("all_gather", ("cp",), 2 * SEQ * 12)]
    assert kept_activations(program, "none")[MASK] == SEQ / 2 * 4 * 32


BLOCKS = BlockIndexer(12, 2, 3)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "llama",
            {"block_indexer": BLOCKS},
            "block_indexer of tiny-llama must be absent with model_type=llama; that is of minimax_m3_vl_text",
        ),
        (
            "minimax m3",
            {"block_indexer": None},
            (
                "block_indexer of tiny-llama must be the sizes of the blocks that are block_sparse_attention in "
                "layer_types, and absent without such blocks"
            ),
        ),
        (
            "minimax m3",
            {"layer_types": ()},
            (
                "block_indexer of tiny-llama must be the sizes of the blocks that are block_sparse_attention in "
                "layer_types, and absent without such blocks"
            ),
        ),
        (
            "minimax m3",
            {"block_indexer": 4},
            "block_indexer=4 of tiny-llama must be null or an object with index_head_dim",
        ),
        (
            "minimax m3",
            {"partial_rotary_factor": 1.0, "block_indexer": BlockIndexer(6, 2, 3)},
            "index_head_dim=6 of tiny-llama must be at least 8, the numbers of a head that positions turn",
        ),
        (
            "minimax m3",
            {"position_types": ("nope",) * 4},
            "position_types of tiny-llama must be absent: positions turn the heads of each indexer",
        ),
        (
            "minimax m3",
            {"dropout": Dropout(attention=0.1)},
            (
                "dropout.attention=0.1 of tiny-llama must be 0: no kernel drops probabilities of the keys that an "
                "indexer chose"
            ),
        ),
        (
            "minimax m3",
            {"layer_types": ("sliding_attention", *("block_sparse_attention",) * 3)},
            "layer_types='sliding_attention' of tiny-llama must be one of: full_attention, block_sparse_attention",
        ),
    ],
)
def test_what_a_model_cannot_have_is_named(name: str, change: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(MODELS[name], **change)
    assert str(raised.value) == text


def test_documents_of_a_row_cannot_be_kept_apart() -> None:
    with pytest.raises(AutoshardError) as raised:
        _backend(plan_of(TINY, strategy(), 1), RunOptions(document_mask=True), in_cluster=False)
    assert str(raised.value) == (
        "document_mask: the indexer of tiny-llama chooses blocks of whole rows; leave it out, or give each document a "
        "row"
    )


def test_a_plan_says_what_is_chosen_and_how_attention_is_computed() -> None:
    *_, notes = inputs_of(PlanRequest(model="minimax-m3", nodes=64, instance="h800-80gb"))
    assert notes[0] == (
        "minimax-m3: in 57 of 60 blocks a query sees 16 of the blocks of 128 keys before it at most; indexers are "
        "loaded, not learned; attention computes the scores of all keys, and MFU counts it alone"
    )
    found = dict(_facts(plan_of(TINY, strategy(), 1), ("attention",)))
    assert found["attention"] == (
        "flash kernel: scores are never stored; where blocks of keys are chosen, a mask hides all but 3 of 2 keys for "
        "the queries of a key-value head, and scores are computed in tiles"
    )


def test_a_rehearsal_chooses_some_of_its_blocks() -> None:
    assert M3.block_indexer is not None
    assert M3.block_indexer.shrunk(8, 64) == BlockIndexer(8, 8, 3)
    small = rehearse(plan_of(TINY, strategy(tp=2), 2), 2, 96).plan.model
    assert small.block_indexer == BlockIndexer(small.head_dim, 2, 3)
