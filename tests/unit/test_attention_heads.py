"""Blocks of one model with other heads: their dims, parameters and work, and how tensor parallelism splits them."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.backends.mesh_rules import heads_of_blocks_split_alike, padding_is_the_smaller_part
from autoshard.backends.problem import Draft, Problem
from autoshard.backends.rules import context_parallelism_works
from autoshard.errors import AutoshardError
from autoshard.graph.count import operator_steps, operator_work, saved_activations
from autoshard.layout.mesh import build_mesh
from autoshard.layout.sharding import stage_program
from autoshard.models.padding import heads_of_kinds, key_value_heads, padding_notes
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.spec.attention_heads import GlobalAttention
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS

SEQ = 64


def wide(key_value: int = 2, width: int = 16, shared: bool = True, **fields: Any) -> ModelSpec:
    """Three blocks with a window, of 8 query and 4 key-value heads of 8 numbers, and one with other heads."""
    return replace(MODELS["gemma4"], global_attention=GlobalAttention(key_value, width, shared), **fields)


def test_dims_and_sizes_of_both_kinds_of_heads() -> None:
    model = wide()
    assert [model.heads_of(layer).kind for layer in range(4)] == ["", "", "", "global_"]
    assert model.heads[1].query_dims == ("global_kvhead", "global_group", "global_headdim")
    sizes = dim_sizes(model, 1, SEQ)
    assert [sizes[dim] for heads in model.heads for dim in heads.query_dims] == [4, 2, 8, 2, 4, 16]
    assert MODELS["gemma3"].heads_of(3) == MODELS["gemma3"].heads[0]


def test_values_may_be_narrower_than_keys() -> None:
    model = MODELS["mimo"]
    local, other = model.heads
    assert (local.value_dims, local.output_dims) == (("kvhead", "valuedim"), ("kvhead", "group", "valuedim"))
    assert other.value_dims == ("global_kvhead", "global_valuedim")
    sizes = dim_sizes(model, 1, SEQ)
    assert [sizes[dim] for dim in (*local.key_dims, local.value_dims[1], *other.value_dims)] == [4, 12, 8, 2, 8]
    graph = stage_graph(model, sizes, (1,), False, False)
    dims = {name: graph.tensors[f"model.layers.1.self_attn.{name}"].dims for name in ("v_proj.weight", "o_proj.weight")}
    assert dims == {"v_proj.weight": ("kvhead", "valuedim", "embed"), "o_proj.weight": ("embed", *local.output_dims)}
    usual = replace(model, model_type="gemma4_text", hidden_act="gelu_pytorch_tanh", v_head_dim=None)
    assert (usual.value_head_dim, model.value_head_dim) == (12, 8)
    with pytest.raises(
        AutoshardError,
        match=r"^v_head_dim=8 of tiny-llama must be absent .* of mimo_v2_flash$",
    ):
        replace(usual, v_head_dim=8)


def test_parameters_of_both_kinds_of_heads_counted_by_hand() -> None:
    """Queries and output 8 x 8 x 64 each, keys and values 4 x 8 x 64; of the last block 8 x 16 x 64 and 2 x 16 x 64,
    where keys may be values, and norms of 16 numbers, not 8."""
    own, other = 2 * 8 * 8 * 64 + 2 * 4 * 8 * 64 + 2 * 8, 2 * 8 * 16 * 64 + 2 * 16
    usual = parameter_count(replace(MODELS["gemma4"], global_attention=None))
    assert parameter_count(wide()) == usual - own + other + 2 * 16 * 64
    assert parameter_count(wide(shared=False)) == usual - own + other + 2 * 2 * 16 * 64


@pytest.mark.parametrize(("layer", "heads", "width", "keys"), [(0, 8, 8, None), (3, 8, 16, SEQ / 2)])
def test_flops_of_attention_are_those_of_its_own_heads(layer: int, heads: int, width: int, keys: float | None) -> None:
    model = wide()
    graph = stage_graph(model, dim_sizes(model, 1, SEQ), (layer,), False, False)
    program = stage_program(graph, {}, False)
    step = next(one for step in program.steps for one in operator_steps(step) if one.operator.kind == "attention")
    window = 5
    keys = keys or ((window / 2) * window + window * (SEQ - window)) / SEQ
    assert operator_work(program, step).flops == pytest.approx(2 * 2 * SEQ * heads * width * keys)
    statistics = [size for name, size in saved_activations(program, step).items() if name.endswith("log_sum_exp")]
    assert statistics == [4 * SEQ * heads]


def axes(tp: int, counts: tuple[int, ...], kv_inner: bool = True, etp: int | None = None) -> list[tuple[str, int]]:
    mesh = build_mesh(tp, 1, 1, 1, tp // etp if etp else 1, counts, kv_inner, etp=etp)
    return [(axis.name, axis.size) for axis in mesh.axes if axis.size > 1]


def test_axes_that_blocks_with_other_heads_share() -> None:
    assert axes(4, (8, 4)) == [("tp", 4)]
    assert axes(8, (8, 4)) == [("tp2", 2), ("tp0", 4)]
    assert axes(16, (8, 2)) == [("tp1", 2), ("tp2", 4), ("tp0", 2)]
    assert axes(16, (8, 2), kv_inner=False) == [("tp0", 2), ("tp2", 4), ("tp1", 2)]
    assert axes(16, (8, 8)) == axes(16, (8,)) == [("tp1", 2), ("tp0", 8)]
    assert axes(8, (8, 4), etp=4) == [("tp2", 2), ("etp0", 4)]
    assert axes(16, (8, 2), etp=4) == [("tp1", 2), ("tp2", 2), ("etp2", 2), ("etp0", 2)]
    with pytest.raises(AutoshardError, match=r"tp=6 cuts 3 key-value heads of blocks with a window and 2 of those"):
        axes(6, (3, 2))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_every_kind_of_block_splits_its_heads_over_tp(tp: int) -> None:
    """Keys of a kind are whole on as many ranks as its heads leave over, and gradients are summed over these."""
    model = wide()
    mesh = build_mesh(tp, 1, 1, 1, 1, key_value_heads(model, tp))
    for layer in (0, 3):
        heads = model.heads_of(layer)
        graph = stage_graph(model, dim_sizes(model, 1, SEQ, tp), (layer,), False, False)
        program = stage_program(graph, mesh.stage_axes, True)
        name = f"model.layers.{layer}.{heads.attention_name}"
        whole = graph.num_elements(f"{name}.k_proj.weight")
        split = min(tp, heads.num_key_value_heads)
        assert program.local_bytes[f"{name}.k_proj.weight"] == 2 * whole // split
        assert mesh.size(program.gradient_sync.get(f"{name}.k_proj.weight", ())) == tp // split
        assert program.local_bytes[f"{name}.q_proj.weight"] == 2 * graph.num_elements(f"{name}.q_proj.weight") // tp
        assert f"{name}.q_proj.weight" not in program.gradient_sync


def test_each_kind_of_heads_has_padding_of_its_own() -> None:
    model = wide(key_value=1, num_attention_heads=6, num_key_value_heads=3)
    assert heads_of_kinds(model, 2) == ((4, 2), (1, 6))
    assert padding_notes(model, 2)[0].startswith("6 attention heads padded to 8 (key-value heads 3 to 4) for tp=2")
    assert padding_notes(model, 4)[1].startswith("6 attention heads of blocks with full attention padded to 8 for tp=4")


def test_layouts_must_suit_the_heads_of_every_block() -> None:
    training, cluster = TrainingSpec(SEQ, 16, load_precision("mixed_precision")), load_cluster("cpu", nodes=1)
    problem = Problem(wide(), training, cluster, "torch")
    assert heads_of_blocks_split_alike(problem, Draft(8, 1, 1, 1, 1)) is None
    ulysses = Draft(2, 1, 1, 2, 1, context_parallel="ulysses")
    found = context_parallelism_works(problem, ulysses)
    assert found is not None
    assert found.startswith("context_parallel=ulysses: tp=2 x cp=2 must divide num_global_key_value_heads=2 of")
    assert context_parallelism_works(problem._replace(model=MODELS["gemma3"]), ulysses) is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((3, 16), "num_global_key_value_heads=3 of tiny-llama must divide num_attention_heads=8 and be at most "),
        ((8, 16), "num_global_key_value_heads=8 of tiny-llama must divide num_attention_heads=8 and be at most "),
        ((2, 15), "global_head_dim=15 of tiny-llama must be even: rotary positions turn pairs of numbers"),
    ],
)
def test_heads_that_do_not_fit(given: tuple[int, int], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        wide(*given)
    assert str(error.value).startswith(text)


def test_blocks_without_a_window_may_have_other_query_heads() -> None:
    model = MODELS["laguna"]
    assert [(one.num_attention_heads, one.num_query_groups, one.rotary_dim) for one in model.heads] == [
        (8, 2, 16),
        (12, 3, 8),
    ]
    sizes = dim_sizes(model, 1, SEQ, tp=8)
    assert (sizes["kvhead"], sizes["group"], sizes["global_kvhead"], sizes["global_group"]) == (4, 2, 4, 4)
    (note,) = padding_notes(model, 8)[:1]
    assert note.startswith("12 attention heads of blocks with full attention padded to 16 for tp=8: 25.0% of")
    few = replace(model, global_attention=GlobalAttention(1, 16, num_global_attention_heads=1))
    training, cluster = TrainingSpec(SEQ, 16, load_precision("mixed_precision")), load_cluster("cpu", nodes=1)
    found = padding_is_the_smaller_part(Problem(few, training, cluster, "torch"), Draft(2, 1, 1, 1, 1))
    assert found == ("tp=2 would pad num_global_attention_heads=1 of tiny-llama to 2; the nearest tp that fits here: 1")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_global_attention_heads": 0}, "num_global_attention_heads=0 of global_attention must be a whole number "),
        (
            {"num_global_attention_heads": 6},
            "num_global_key_value_heads=4 of tiny-llama must divide num_global_attention_heads=6 and be at most ",
        ),
        (
            {"global_partial_rotary_factor": 1.5},
            "global_partial_rotary_factor=1.5 of global_attention must be a finite number above 0 and at most 1",
        ),
        (
            {"global_partial_rotary_factor": 0.2},
            "global_head_dim=16 times partial_rotary_factor=0.2 of tiny-llama must be even",
        ),
    ],
)
def test_other_query_heads_that_do_not_fit(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        replace(MODELS["laguna"], global_attention=GlobalAttention(4, 16, **fields))
    assert str(error.value).startswith(text)


def test_other_families_have_the_same_heads_in_all_blocks() -> None:
    with pytest.raises(AutoshardError, match="must be absent with model_type=gemma2; that is of gemma4_text, "):
        replace(MODELS["gemma2"], global_attention=GlobalAttention(2, 16))
