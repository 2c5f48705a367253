"""What the backward of an exchange works with, by hand."""

from dataclasses import replace

import pytest

from autoshard.cost.working_bytes import working_bytes
from autoshard.graph.partition import OperatorStep, RedistributeStep
from autoshard.layout.sharding import stage_program
from autoshard.models.stage import dim_sizes, stage_graph
from tests.multiprocess.models import MODELS

SEQ, EXPERTS, TOP_K = 32, 4, 2


@pytest.mark.parametrize(("element_bytes", "in_fp32"), [(2, 4), (4, 2)])
def test_a_norm_over_several_dims_computes_whole_tensors_in_fp32(element_bytes: int, in_fp32: int) -> None:
    """Of queries, whose gradient is there before and behind it."""
    model = MODELS["olmo2"]
    graph = stage_graph(model, dim_sizes(model, 1, SEQ), range(1), False, False, element_bytes=element_bytes)
    program = stage_program(graph, {}, False)
    step = next(
        one for one in program.steps if isinstance(one, OperatorStep) and one.operator.name.endswith("self_attn.q_norm")
    )
    queries = SEQ * model.num_attention_heads * model.head_dim
    statistics = 4 * SEQ
    assert working_bytes(program, step) - statistics == (2 * element_bytes + in_fp32 * 4) * queries


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("seq", [SEQ, 8])
def test_gradients_of_queries_and_keys_come_when_probabilities_are_gone(name: str, seq: int) -> None:
    """In bf16: where scores are written out, their gradient is there with that of values, while probabilities in FP32
    and their gradient are there of one head. The output's gradient is gone by then. Of few tokens the gradients of
    queries and keys, which come later, are more. A softcap, as Gemma 2's, needs no more: its slopes are made when the
    gradient of the probabilities is gone."""
    model = MODELS[name]
    softcap = model.attention_scores is not None and model.attention_scores.attn_logit_softcapping
    assert bool(softcap) == (name == "gemma2")
    graph = stage_graph(model, dim_sizes(model, 1, seq), range(1), False, False, "plain", element_bytes=2)
    program = stage_program(graph, {}, False)
    step = next(one for one in program.steps if isinstance(one, OperatorStep) and one.operator.kind == "attention")
    queries, keys = (seq * heads * model.head_dim for heads in (model.num_attention_heads, model.num_key_value_heads))
    scores = model.num_attention_heads * seq * seq
    assert (scores > queries + keys) == (seq == SEQ)
    assert working_bytes(program, step) == 2 * (max(scores, queries + keys) + keys) + (4 + 4) * seq * seq


@pytest.mark.parametrize("ep", [2, 4])
def test_pieces_of_several_experts_are_copied_when_they_are_exchanged(ep: int) -> None:
    """Experts' answers come back, [expert, batch, capacity, hidden] in bf16: their gradients are there as they are, and
    as they are sent. Of several experts, what a rank has received is put in order besides."""
    model = replace(MODELS["mixtral"], num_local_experts=EXPERTS, num_experts_per_tok=TOP_K)
    graph = stage_graph(model, dim_sizes(model, ep, SEQ), range(1), False, False, element_bytes=2)
    program = stage_program(graph, {"ep": ep}, False)
    step = next(
        one
        for one in program.steps
        if isinstance(one, RedistributeStep) and "w2" in one.source and one.transitions[0].forward == "all_to_all"
    )
    answers = 2 * ep * EXPERTS // ep * program.graph.sizes["capacity"] * model.hidden_size
    copied = ep < EXPERTS
    assert working_bytes(program, step) == (2 + copied) * answers
