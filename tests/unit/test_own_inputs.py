"""Blocks with an input of their own, and with keys and values of another one, as in Gemma 4 E2B and E4B."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.errors import AutoshardError
from autoshard.graph.ir import Graph
from autoshard.graph.partition import Program, RedistributeStep
from autoshard.graph.recompute import kept_activations
from autoshard.layout.mesh import build_mesh
from autoshard.layout.sharding import stage_program
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.models.weights import checkpoint_parts
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import LLAMA, MODELS
from tests.unit.weight_folders import bytes_of, huggingface_folder, weights, write_safetensors

MODEL = MODELS["gemma4 e"]
E2B = load_model("gemma4-e2b")
SEQ = 16
KEYS = "model.layers.1.global_self_attn.k_rope"
EMBEDDED = "model.embed_scale"


def graph_of(layers: tuple[int, ...], ends: bool = False, model: ModelSpec = MODEL, tp: int = 1) -> Graph:
    return stage_graph(model, dim_sizes(model, 1, SEQ, tp), layers, ends, ends)


def alone(layer: int) -> Program:
    return stage_program(graph_of((layer,)), {}, sequence_parallel=False)


def test_last_blocks_take_keys_and_values_of_the_last_block_of_their_kind_that_has_some() -> None:
    """35 blocks, of which every fifth has no window; the first 15 have keys."""
    assert [E2B.keys_of(layer) for layer in (0, 12, 13, 14, 15, 18, 19, 33, 34)] == [0, 12, 13, 14, 13, 13, 14, 13, 14]
    assert E2B.kinds == (0, 4, 15, 19)
    whole = graph_of((0, 1, 2, 3), ends=True)
    inputs = {op.name: op.inputs[1:3] for op in whole.operators if op.kind == "attention"}
    assert inputs["model.layers.3.global_self_attn.core_attention"] == (KEYS, "model.layers.1.global_self_attn.v_norm")
    assert inputs["model.layers.2.self_attn.core_attention"] == (
        "model.layers.0.self_attn.k_rope",
        "model.layers.0.self_attn.v_norm",
    )
    assert whole.tensors[KEYS].role == "activation"
    held = [tensor.name for tensor in whole.parameters()]
    assert not [name for name in held if name.startswith(("model.layers.2.", "model.layers.3.")) and "k_" in name]
    assert whole.tensors["model.layers.2.wide_mlp.up_proj.weight"].dims == ("dense_ffn", "embed")
    assert whole.sizes["dense_ffn"] == 2 * whole.sizes["ffn"]


def test_a_block_alone_is_given_what_others_make_and_keep() -> None:
    """The keys of block 1, and the embedding, are counted where they are made."""
    graph = graph_of((3,))
    given = {tensor.name: tensor for tensor in graph.inputs()}
    assert {*given} == {"hidden", "input_ids", EMBEDDED, KEYS, KEYS.replace("k_rope", "v_norm")}
    assert [name for name, one in given.items() if not one.counted] == [
        KEYS,
        KEYS.replace("k_rope", "v_norm"),
        EMBEDDED,
    ]
    for recompute in ("none", "full", "core_attention"):
        assert not {KEYS, EMBEDDED} & kept_activations(alone(3), recompute).keys()


@pytest.mark.parametrize("recompute", ["none", "attention_norm", "core_attention"])
def test_blocks_apart_keep_what_the_whole_model_keeps(recompute: str) -> None:
    whole = kept_activations(stage_program(graph_of((0, 1, 2, 3)), {}, sequence_parallel=False), recompute)
    apart = [kept_activations(alone(layer), recompute) for layer in range(4)]
    assert sum(whole.values()) == sum(size for one in apart for size in one.values())


def test_keys_that_others_read_stay_where_everything_runs_again() -> None:
    """Four blocks each keep 64 numbers of a token, in 2 bytes, and its identifier, in 8. Keys and values that
    are taken, 2 x (4 x 8 + 1 x 16) numbers, the whole model alone keeps: no block knows that another reads its own."""
    whole = kept_activations(stage_program(graph_of((0, 1, 2, 3)), {}, sequence_parallel=False), "full")
    apart = [kept_activations(alone(layer), "full") for layer in range(4)]
    assert sum(size for one in apart for size in one.values()) == SEQ * 4 * (64 * 2 + 8)
    assert sum(whole.values()) == SEQ * (4 * 64 * 2 + 8 + 2 * (4 * 8 + 16) * 2)


def test_gradients_of_copied_keys_wait_for_the_end_of_a_step() -> None:
    """Four ranks have the one key-value head of block 1 each, and no collective brings it to block 3, or a gradient
    back: that of its weights is a partial sum, whether block 1 stands beside block 3 or not."""
    mesh = build_mesh(4, 1, 1, 1, 1, 1, False)
    programs = [
        stage_program(graph_of(layers, tp=4), mesh.stage_axes, sequence_parallel=True) for layers in ((1, 3), (3,))
    ]
    for program in programs:
        assert KEYS not in [step.source for step in program.steps if isinstance(step, RedistributeStep)]
    assert programs[0].states[KEYS] == programs[1].states[KEYS]


def test_blocks_have_their_parts_of_two_tensors_and_share_a_norm() -> None:
    parts = [part for part in checkpoint_parts(MODEL) if "per_layer_model_projection" in part.tensor]
    assert [(part.tensor, part.parameter, part.index, part.parts) for part in parts] == [
        (f"model.{name}", f"model.layers.{layer}.{name}", layer, 4)
        for layer in range(4)
        for name in ("per_layer_model_projection.weight",)
    ]
    (norm,) = (part for part in checkpoint_parts(MODEL) if "per_layer_projection_norm" in part.tensor)
    assert norm.parameter == "model.per_layer_projection_norm.weight"
    whole = graph_of((0, 1, 2, 3), ends=True)
    readers = [op.name for op in whole.operators if norm.parameter in op.inputs]
    assert readers == [f"model.layers.{layer}.per_layer_projection_norm" for layer in range(4)]
    without = replace(MODEL, hidden_size_per_layer_input=None)
    # of each block a table of 96 tokens, three matrices of 6 x 64 and a norm; and one norm of 6 for all
    assert parameter_count(MODEL) - parameter_count(without) == 4 * (96 * 6 + 3 * 6 * 64 + 64) + 6


def test_some_of_the_blocks_have_keys_to_take() -> None:
    assert MODEL.some_blocks((0, 1, 3)).num_kv_shared_layers == 1
    some = MODEL.some_blocks((0, 2, 3))  # no block is left whose keys the last one could take
    assert (some.num_kv_shared_layers, some.dense_intermediate_size) == (0, 0)
    assert E2B.some_blocks((0, 4, 15, 19)).num_kv_shared_layers == 2
    assert E2B.some_blocks((0, 4, 5)).num_kv_shared_layers == 0


@pytest.mark.parametrize("start", ["model.", "model.language_model."])
def test_keys_that_a_checkpoint_has_for_blocks_without_are_left_out(start: str, tmp_path: Path) -> None:
    """As transformers does, in checkpoints of models that see images too."""
    plain, more = (huggingface_folder(tmp_path / name, MODEL) for name in ("plain", "more"))
    named = {start + name.removeprefix("model."): value for name, value in weights(MODEL, "F32").items()}
    own = f"{start}layers.3.self_attn"
    unread = {f"{own}.{name}.weight": np.zeros(4, np.float32) for name in ("k_proj", "v_proj", "k_norm")}
    write_safetensors(more / "model.safetensors", {**named, **unread}, "F32")
    done = convert(open_source(more), tmp_path / "again", Conversion("hf"), lambda count: None, lambda count: None)
    assert done is not None
    assert bytes_of(tmp_path / "again") == bytes_of(plain)
    strange = {f"{start}layers.1.self_attn.k_bias": np.zeros(4, np.float32)}
    write_safetensors(more / "model.safetensors", {**named, **strange}, "F32")
    with pytest.raises(AutoshardError, match=rf"has tensor {re.escape(*strange)}, which the model of"):
        open_source(more)


def test_other_families_have_no_such_blocks() -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(LLAMA, num_kv_shared_layers=1)
    assert str(raised.value) == (
        "num_kv_shared_layers=1 of tiny-llama must be 0 with model_type=llama; that is of gemma4_text"
    )
    with pytest.raises(AutoshardError) as raised:
        replace(LLAMA, hidden_size_per_layer_input=4)
    assert str(raised.value) == (
        "hidden_size_per_layer_input=4 of tiny-llama must be absent with model_type=llama; that is of gemma4_text"
    )
    with pytest.raises(AutoshardError) as raised:
        replace(MODEL, dense_intermediate_size=96)
    assert str(raised.value) == (
        "dense_intermediate_size=96 of tiny-llama must be twice intermediate_size=96, the width of the MLPs of its "
        "last 2 blocks, or 0 where these are as wide as the others"
    )
    with pytest.raises(AutoshardError, match=r"^dense_intermediate_size=192 of tiny-llama must be the width "):
        replace(MODEL, num_kv_shared_layers=0)
