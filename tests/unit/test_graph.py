"""The operator graph: counts against published formulas, states and collectives against hand-worked cases."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.graph.count import (
    Collective,
    OperatorWork,
    operator_work,
    parameter_elements,
    total_flops,
)
from autoshard.graph.ir import Graph, GraphBuilder
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program
from autoshard.graph.recompute import BLOCK_MODULES, canonical, kept_activations, recomputing, segments
from autoshard.graph.redistribute import NoTransition, redistribute
from autoshard.layout.mesh import build_mesh
from autoshard.layout.sharding import stage_program
from autoshard.models import load_model
from autoshard.models.stage import dim_sizes, padded_vocab_size, parameter_count, stage_graph
from autoshard.spec.model import ModelSpec
from tests.spmd.check import microbatch_collectives


def block(model: ModelSpec, axes: dict[str, int], seq: int, batch: int = 1, kernel: str = "flash") -> Program:
    """One transformer block, sequence parallel over tp."""
    tp = prod(size for name, size in axes.items() if name.startswith("tp"))
    graph = stage_graph(model, dim_sizes(model, batch, seq, tp), range(1), False, False, kernel)
    return stage_program(graph, axes, sequence_parallel=tp > 1)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt3-175b", 174_604_259_328),
    ],
)
def test_parameters_counted_on_the_graph_are_the_published_ones(name: str, published: int) -> None:
    assert parameter_count(load_model(name)) == published


def test_forward_flops_are_2n_plus_attention() -> None:
    model, seq = load_model("llama3-8b"), 8192
    graph = stage_graph(model, dim_sizes(model, 1, seq), range(model.num_hidden_layers), True, True)
    # 2 FLOPs a token for every weight but the embedding's, which is looked up; causal attention: 2 matrix products over
    # half of the (query, key) pairs, 4 * seq^2 / 2 * hidden
    weights = parameter_count(model) - model.vocab_size * model.hidden_size - 65 * model.hidden_size
    attention = 4 * seq * seq / 2 * model.hidden_size * model.num_hidden_layers
    assert total_flops(graph) == 2 * weights * seq + attention


def test_kept_activations_of_gpt3_are_korthikantis_without_dropout() -> None:
    model, seq, tp = load_model("gpt3-175b"), 2048, 8
    kept = kept_activations(block(model, {"tp": tp}, seq), "none")
    elements = seq * model.hidden_size / tp
    # Korthikanti et al. 2022, eq. 4: 34 s b h / t bytes a layer, of which dropout masks are 2
    large = sum(size for name, size in kept.items() if not name.endswith(("statistics", "log_sum_exp")))
    assert large == 32 * elements
    # statistics: one FP32 number for each local row of both norms, one for each row and head of the attention
    assert kept["transformer.h.0.ln_1:statistics"] == 4 * seq / tp
    assert kept["transformer.h.0.attn.core_attention:log_sum_exp"] == 4 * seq * 96 / tp


def test_plain_attention_keeps_the_probabilities() -> None:
    model, seq, tp = load_model("gpt3-175b"), 2048, 8
    plain = kept_activations(block(model, {"tp": tp}, seq, kernel="plain"), "none")
    # 5 a s^2 b / t in the same equation, of which the softmax output is 2 and dropout's mask and output 3
    assert plain["transformer.h.0.attn.core_attention:probabilities"] == 2 * 96 * seq**2 / tp


def test_full_recompute_keeps_the_blocks_input_alone() -> None:
    program = block(load_model("llama3-70b"), {"tp": 8}, 8192)
    assert kept_activations(program, "full") == {"hidden": 2 * 8192 * 8192 / 8}


def test_the_embeddings_unsummed_output_is_not_kept_for_replay() -> None:
    model, seq, tp = load_model("llama3-70b"), 8192, 8
    graph = stage_graph(model, dim_sizes(model, 1, seq, tp), range(1), first=True, last=False)
    kept = kept_activations(stage_program(graph, {"tp": tp}, sequence_parallel=True), "full")
    # the vocabulary-parallel embedding gives partial sums of the whole sequence; the block starts from its own piece
    assert kept == {"model.embed_tokens@seq": 2 * seq * model.hidden_size / tp}


def test_each_larger_recompute_set_keeps_less_and_repeats_more() -> None:
    program = block(load_model("llama3-70b"), {"tp": 8}, 8192)
    kept = [sum(kept_activations(program, name).values()) for name in ("none", "core_attention+mlp", "full")]
    repeated = [
        sum(one.replay_stop - one.start for one in segments(program, name) if one.recomputed)
        for name in ("none", "core_attention+mlp", "full")
    ]
    assert kept == sorted(kept, reverse=True)
    assert repeated == sorted(repeated)
    assert repeated[0] == 0


def test_shards_of_a_block_have_one_pattern() -> None:
    """What a set keeps is found once for all of them; how large it is differs."""
    of_two, of_eight = (block(load_model("llama3-70b"), {"tp": tp}, 8192) for tp in (2, 8))
    assert recomputing(of_two).pattern is recomputing(of_eight).pattern
    for name in ("none", "core_attention+mlp", "full"):
        ours, theirs = (kept_activations(program, name) for program in (of_two, of_eight))
        assert ours == {buffer: 4 * size for buffer, size in theirs.items()}
    other = block(load_model("gpt-neox-20b"), {"tp": 2}, 8192)
    assert recomputing(other).pattern is not recomputing(of_two).pattern


def test_a_set_is_written_in_one_way() -> None:
    assert canonical("mlp.act_fn+mlp_norm+core_attention") == "core_attention+mlp_norm+mlp.act_fn"
    assert canonical("+".join(reversed(BLOCK_MODULES))) == "full"
    assert canonical("none") == "none"
    assert canonical("selective") == "core_attention"  # Megatron's word and NxD Training's
    for wrong in ("", "mlp+", "none+mlp", "full+mlp", "a b"):
        with pytest.raises(AutoshardError, match=r"must be none, selective, full, or modules \(attention_norm, "):
            canonical(wrong)


def test_two_operators_of_a_block_can_run_again() -> None:
    """The product that the last projection reads is made anew from what the first two projections gave."""
    program, name = block(load_model("llama3-70b"), {"tp": 8}, 8192), "mlp.act_fn+mlp.down_proj"
    kept, again = kept_activations(program, "none"), kept_activations(program, name)
    (output,) = (op.output for op in program.graph.operators if op.name == "model.layers.0.mlp.act_fn")
    assert kept.keys() - again.keys() == {output}
    assert kept[output] == 2 * 8192 * 28672 / 8
    (segment,) = (one for one in segments(program, name) if one.recomputed)
    repeated = program.steps[segment.start : segment.replay_stop]
    assert [one.operator.name for one in repeated if isinstance(one, OperatorStep)] == ["model.layers.0.mlp.act_fn"]


def test_full_recompute_repeats_nothing_behind_the_last_saved_tensor() -> None:
    program = block(load_model("llama3-70b"), {"tp": 8}, 8192)
    (segment,) = segments(program, "full")
    names = [one.operator.name.rsplit(".", 1)[-1] for one in program.steps if isinstance(one, OperatorStep)]
    assert names[-2:] == ["down_proj", "mlp_residual"]
    # down_proj keeps its input, which act_fn makes: neither the product nor its reduce-scatter runs again
    last = program.steps[segment.replay_stop - 1]
    assert isinstance(last, OperatorStep)
    assert last.operator.name == "model.layers.0.mlp.act_fn"


def test_a_sequence_parallel_block_has_megatrons_collectives() -> None:
    program = block(load_model("llama3-70b"), {"tp": 8}, 8192)
    hidden = 8192 * 8192 * 2
    # two pairs of all-gather and reduce-scatter forward; backward the duals, and both gathers again for the weights
    assert microbatch_collectives(program) == {
        Collective("forward", "all_gather", ("tp",), hidden): 2,
        Collective("forward", "reduce_scatter", ("tp",), hidden): 2,
        Collective("backward", "all_gather", ("tp",), hidden): 4,
        Collective("backward", "reduce_scatter", ("tp",), hidden): 2,
    }
    gathers = [one for one in program.steps if isinstance(one, GatherEinsumStep)]
    assert [len(one.einsums) for one in gathers] == [3, 2]  # q, k and v share one gather, gate and up another


def test_without_sequence_parallelism_it_has_four_all_reduces() -> None:
    model = load_model("llama3-70b")
    graph = stage_graph(model, dim_sizes(model, 1, 8192, 8), range(1), False, False)
    program = stage_program(graph, {"tp": 8}, sequence_parallel=False)
    hidden = 8192 * 8192 * 2
    assert microbatch_collectives(program) == {
        Collective("forward", "all_reduce", ("tp",), hidden): 2,
        Collective("backward", "all_reduce", ("tp",), hidden): 2,
    }


def test_expert_parallelism_is_two_all_to_alls_each_way() -> None:
    model = load_model("mixtral-8x7b")
    program = block(model, {"ep": 8}, 4096, batch=8)
    # 8 sequences on 8 ranks: each dispatches 4096 * 2 slots of 4096 bf16 numbers
    slots = 4096 * 2 * 4096 * 2
    assert microbatch_collectives(program) == {
        Collective("forward", "all_to_all", ("ep",), slots): 2,
        Collective("backward", "all_to_all", ("ep",), slots): 2,
    }


def test_what_waits_for_the_end_of_the_step() -> None:
    mesh = build_mesh(tp=32, pp=8, dp=2, cp=1, ep=1, num_key_value_heads=8)
    sync = block(load_model("llama3-70b"), mesh.stage_axes, 8192, batch=2).gradient_sync
    prefix = "model.layers.0"
    assert sync[f"{prefix}.self_attn.q_proj.weight"] == ("dp",)
    assert sync[f"{prefix}.self_attn.k_proj.weight"] == ("dp", "tp1")  # replicated 4 times over tp1
    assert sync[f"{prefix}.input_layernorm.weight"] == ("dp", "tp1", "tp0")  # each rank sees its piece of the sequence


def test_work_is_divided_by_the_axes_that_split_it() -> None:
    model = load_model("llama3-70b")
    whole = {one.name: one for one in _work(block(model, {}, 8192))}
    for one in _work(block(model, {"tp": 8}, 8192)):
        assert one.flops == whole[one.name].flops / 8


def test_the_fullest_context_parallel_rank_sees_nearly_every_key() -> None:
    model = load_model("llama3-8b")
    (alone,) = [one.flops for one in _work(block(model, {}, 8192)) if one.kind == "attention"]
    (fullest,) = [one.flops for one in _work(block(model, {"cp": 4}, 8192)) if one.kind == "attention"]
    # the last quarter of the queries sees 7/8 of the keys on average: 7/32 of all pairs; causal ones are 16/32
    assert fullest == alone * 7 / 16


@given(cp=st.sampled_from([1, 2, 4]), window=st.sampled_from([1, 64, 512, 4096, 8192]))
def test_attention_pairs_under_a_window_are_counted_as_they_are(cp: int, window: int) -> None:
    model = replace(load_model("llama3-8b"), sliding_window=window)
    seq = 2048
    (work,) = [one for one in _work(block(model, {"cp": cp} if cp > 1 else {}, seq)) if one.kind == "attention"]
    first = seq - seq // cp
    pairs = sum(min(query + 1, window) for query in range(first, seq))
    # the count takes a query's own key as half, as the published formula does
    assert work.flops == pytest.approx(4 * pairs * model.hidden_size, rel=2 / min(window, seq))


def test_the_vocabulary_is_padded_only_where_it_must_be() -> None:
    assert padded_vocab_size(128256, 32) == 128256
    assert padded_vocab_size(50257, 8) == 50304  # a multiple of 8 * 8
    assert padded_vocab_size(50257, 1) == 50257


def test_local_parameters_add_up_to_the_whole() -> None:
    model = load_model("llama3-70b")
    whole = sum(parameter_elements(block(model, {}, 8192)).values())
    mesh = build_mesh(tp=32, pp=1, dp=1, cp=1, ep=1, num_key_value_heads=8)
    program = block(model, mesh.stage_axes, 8192)
    local = parameter_elements(program)
    copies = {
        name: prod(n for n, entry in zip(program.axes.values(), program.states[name], strict=True) if entry == "I")
        for name in local
    }
    assert sum(size * 32 / copies[name] for name, size in local.items()) == whole


def small_graph() -> Graph:
    b = GraphBuilder({"a": 8, "b": 8}, element_bytes=4)
    x = b.hidden_input("x", "a b")
    b.elementwise("gelu", "y", x)
    return b.build()


def steps(source: tuple[str, ...], target: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    found = redistribute(small_graph(), "x", source, target, dict.fromkeys(("p", "q")[: len(source)], 2))
    return [(one.forward, one.axes) for one in found]


def test_axes_with_the_same_change_go_together() -> None:
    assert steps(("P", "P"), ("a", "a")) == [("reduce_scatter", ("p", "q"))]


def test_an_outer_axis_leaves_a_dim_only_after_the_inner_one() -> None:
    # p outside, q inside: gathering over p alone would interleave the pieces, so q is gathered too and taken again
    assert steps(("a", "a"), ("R", "a")) == [("all_gather", ("p", "q")), ("slice", ("q",)), ("identity", ("p",))]


def test_an_inner_axis_leaves_alone() -> None:
    assert steps(("a", "a"), ("a", "R")) == [("all_gather", ("q",))]


def test_nothing_becomes_partial() -> None:
    with pytest.raises(NoTransition, match="nothing turns I into P"):
        steps(("I",), ("P",))


def test_a_dim_that_does_not_divide_is_refused() -> None:
    with pytest.raises(NoTransition, match="a=8 does not divide over p=3"):
        redistribute(small_graph(), "x", ("P",), ("a",), {"p": 3})


ENTRIES = st.sampled_from(["a", "b", "I", "R", "P"])


@given(source=st.tuples(ENTRIES, ENTRIES), target=st.tuples(ENTRIES, ENTRIES))
def test_every_redistribution_ends_where_it_should(source: tuple[str, str], target: tuple[str, str]) -> None:
    becomes_partial = any(t == "P" and s != "P" for s, t in zip(source, target, strict=True))
    if becomes_partial:
        with pytest.raises(NoTransition):
            redistribute(small_graph(), "x", source, target, {"p": 2, "q": 2})
        return
    found = redistribute(small_graph(), "x", source, target, {"p": 2, "q": 2})
    current = dict(zip(("p", "q"), source, strict=True))
    for one in found:
        assert 0 < one.payload_bytes <= 8 * 8 * 4
        for axis in one.axes:
            assert one.source_dim in (None, current[axis])
            current[axis] = one.target_dim or "?"
    for axis, entry in zip(("p", "q"), target, strict=True):
        assert current[axis] in (entry, "?")


def _work(program: Program) -> list[OperatorWork]:
    found: list[OperatorWork] = []
    for step in program.steps:
        if isinstance(step, OperatorStep):
            found.append(operator_work(program, step))
        elif isinstance(step, GatherEinsumStep):
            found += [operator_work(program, one) for one in step.einsums]
    return found
