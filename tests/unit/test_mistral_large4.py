"""Mistral Large 4: queries that grow with their place, frequencies that a tensor scales, blocks without positions, and
compressed keys of another block."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoshard.audits.expected import expectation
from autoshard.checkpoint.layout import rank_shards
from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.errors import AutoshardError
from autoshard.graph.count import parameter_elements
from autoshard.graph.ir import Graph
from autoshard.graph.operators import KINDS
from autoshard.graph.recompute import kept_activations
from autoshard.layout.buckets import bucket_elements, held_elements, tied_parameters
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import from_config, to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, parameter_count, stage_graph
from autoshard.models.weights import checkpoint_parts, not_learned
from autoshard.plans.plan_json import plan_to_dict
from autoshard.plans.validate import plan_from_dict
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import LLAMA, MODELS
from tests.multiprocess.plans import case
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan, weights, write_safetensors

MODEL, SHARED = MODELS["mistral large 4"], MODELS["mistral large 4, shared keys"]
FULL = load_model("mistral-large-4-1t-a52b")
SEQ = 16
EXPONENTS = "model.rotary_emb.alpha"


def graph_of(layers: tuple[int, ...], model: ModelSpec = MODEL, ends: bool = False) -> Graph:
    return stage_graph(model, dim_sizes(model, 1, SEQ), layers, ends, ends)


def test_blocks_without_positions_have_a_whole_key_for_each_head() -> None:
    """Of 20 numbers of a head 8 turn: block 0 has no positions, block 1 has some."""
    without, turned = (
        {one.name.rpartition("self_attn.")[2]: graph.num_elements(one.name) for one in graph.parameters()}
        for graph in (graph_of((0,)), graph_of((1,)))
    )
    assert without["kv_a_proj_with_mqa.weight"] == 12 * 64
    assert without["kv_b_proj.weight"] == 8 * (20 + 10) * 12
    assert turned["kv_a_proj_with_mqa.weight"] == (12 + 8) * 64
    assert turned["kv_b_proj.weight"] == 8 * (12 + 10) * 12
    ropes = [[op.name for op in graph_of((layer,)).operators if op.kind == "scaled_rope"] for layer in (0, 1)]
    assert ropes == [[], [f"model.layers.1.self_attn.{part}_rope" for part in ("k", "q")]]
    chosen = [next(op for op in graph_of((at,)).operators if op.kind == "choose_keys") for at in (0, 1)]
    assert [op.attributes["rotary_dim"] for op in chosen] == [0, 8]
    assert [EXPONENTS in op.inputs for op in chosen] == [False, True]


def test_an_indexer_reads_the_hidden_state_and_is_not_learned() -> None:
    graph = graph_of((1,))
    (op,) = (op for op in graph.operators if op.kind == "choose_keys")
    assert op.inputs[0] == op.inputs[1] == "model.layers.1.input_layernorm"
    names = [name.rpartition("self_attn.")[2] for name in op.inputs[2:]]
    assert names == [
        *("indexer.wq_b.weight", "indexer.wk.weight", "indexer.k_norm.weight", "indexer.k_norm.bias"),
        *("indexer.weights_proj.weight", "indexer.q_input_norm.weight", "indexer.q_input_norm.bias"),
        *("indexer.softmax_scaling.scale", "indexer.softmax_scaling.bias", EXPONENTS),
    ]
    assert {*op.inputs[2:]} <= not_learned(MODEL)
    assert "model.layers.1.self_attn.softmax_scaling.scale" not in not_learned(MODEL)


def test_queries_that_grow_are_kept_for_both_numbers_of_a_head() -> None:
    """160 numbers of a token, as they are before and behind: attention keeps the latter."""
    program = stage_program(graph_of((1,)), {}, sequence_parallel=False)
    kept = kept_activations(program, "none")
    name = "model.layers.1.self_attn"
    assert kept[f"{name}.q_rope"] == kept[f"{name}.softmax_scaling"] == 2 * SEQ * 8 * 20
    (op,) = (op for op in program.graph.operators if op.kind == "log_scale")
    sizes = {dim: float(size) for dim, size in program.graph.sizes.items()}
    assert KINDS["log_scale"].flops(op, program.graph, sizes) == SEQ * 8 * 20


def test_exponents_are_one_tensor_of_all_blocks_and_stages() -> None:
    """Four stages of a block each: the first one has no positions, the second one writes the tensor."""
    assert [part.tensor for part in checkpoint_parts(MODEL) if part.parameter == EXPONENTS] == ["lerope.alpha"]
    four = case(4, "mistral large 4, a stage for each block")
    stages = four.stage_programs
    assert [EXPONENTS in program.graph.tensors for program in stages] == [False, True, False, True]
    pieces = [[piece for shard in rank_shards(four, rank) for piece in shard.pieces] for rank in range(4)]
    writes = [[piece.writes for piece in one if piece.name == EXPONENTS] for one in pieces]
    assert writes == [[], [True], [], [False]]
    two = case(2, "mistral large 4, pp, uneven, zero bubble")
    assert EXPONENTS in two.stage_programs[0].graph.tensors and EXPONENTS in two.stage_programs[1].graph.tensors
    assert tied_parameters(*two.stage_programs) == frozenset()
    bare = replace(MODEL, position_types=("nope",) * 4)
    # in two blocks 8 numbers of a token less, and of each of 8 heads 8 more; and the exponents of 4 frequencies
    assert parameter_count(MODEL) - parameter_count(bare) == 2 * 8 * (64 - 8 * 12) + 4


def test_a_rank_has_the_exponents_of_its_stages_once() -> None:
    """Blocks 1 and 3 have positions, and lie on the two stages of one rank."""
    chunks = case(2, "mistral large 4, pp, interleaved")
    programs = [chunks.stage_programs[index] for index in (1, 3)]
    assert [EXPONENTS in program.graph.tensors for program in programs] == [True, True]
    assert [EXPONENTS in elements for elements in held_elements(programs)] == [True, False]
    apart = sum(sum(parameter_elements(program).values()) for program in programs)
    assert sum(bucket_elements(programs, chunks.mesh, frozenset(), 0).values()) == apart - 4
    assert expectation(chunks, 1).parameter_elements == apart - 4


def test_keys_of_an_earlier_block_are_taken_compressed() -> None:
    whole = graph_of((0, 1, 2, 3), SHARED, ends=True)
    assert SHARED.kinds == (0, 1, 2, 3) and [SHARED.keys_of(layer) for layer in range(4)] == [0, 1, 0, 1]
    ups = {op.name: op.inputs[0] for op in whole.operators if op.name.endswith("kv_b_proj")}
    assert ups["model.layers.2.self_attn.kv_b_proj"] == "model.layers.0.self_attn.kv_a_layernorm"
    assert ups["model.layers.3.self_attn.kv_b_proj"] == "model.layers.1.self_attn.kv_a_layernorm"
    (joined,) = (op for op in whole.operators if op.name == "model.layers.3.self_attn.keys")
    assert joined.inputs[1] == "model.layers.1.self_attn.k_rope"
    held = {tensor.name for tensor in whole.parameters()}
    assert not [name for name in held if "layers.3." in name and "kv_a" in name]
    given = [tensor.name for tensor in graph_of((3,), SHARED).inputs() if not tensor.counted]
    assert given == ["model.layers.1.self_attn.kv_a_layernorm", "model.layers.1.self_attn.k_rope"]
    assert SHARED.needs_one_stage and not MODEL.needs_one_stage


def test_some_of_the_blocks_have_keys_to_take() -> None:
    assert SHARED.some_blocks((0, 1, 2)).kv_source_layers == (0, 1, 0)
    assert SHARED.some_blocks((0, 3)).kv_source_layers == ()
    longer = replace(
        SHARED,
        num_hidden_layers=6,
        mlp_layer_types=("dense",) * 5 + ("sparse",),
        position_types=("rope",) * 6,
        kv_source_layers=(0, 0, 2, 2, 2, 0),
    )
    assert longer.some_blocks((1, 3, 4, 5)).kv_source_layers == (0, 1, 1, 0)


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ((0, 1, 2, 3), "kv_source_layers of tiny-llama must be absent where each block makes keys of its own"),
        ((0, 1, 0), "kv_source_layers of tiny-llama has 3 entries; num_hidden_layers=4 needs one for each block"),
        (
            (0, 1, 0, 4),
            (
                "kv_source_layers of tiny-llama says block 4 for block 3; it must be itself, or an earlier block that "
                "makes keys of its own"
            ),
        ),
        (
            (0, 1, 1, 1),
            "kv_source_layers of tiny-llama says block 1 for block 2; both must have positions, or neither of them",
        ),
        (
            (0.0, 1, 0, 1),
            "kv_source_layers=(0.0, 1, 0, 1) of tiny-llama must have the number of a block for each",
        ),
    ],
)
def test_sources_that_cannot_be(sources: tuple[int, ...], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(SHARED, kv_source_layers=sources)
    assert str(raised.value) == text


def test_other_families_take_no_compressed_keys() -> None:
    with pytest.raises(AutoshardError) as raised:
        replace(LLAMA, kv_source_layers=(0, 0, 2, 3))
    assert str(raised.value) == (
        "kv_source_layers of tiny-llama must be absent with model_type=llama; that is of mistral_large4_text"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kv_source_layers": [0, 1, 0]}, "kv_source_layers=a list of 3 of m must be a list of 4 blocks, one a block"),
        (
            {"kv_source_layers": [0, 1, 1, 3], "no_rope_layers": [1, 0, 1, 1]},
            (
                "kv_source_layers of m says block 1 for block 2; it must be 2: transformers hands on the keys of the "
                "last block before it that others take keys of and whose no_rope_layers is the same"
            ),
        ),
        (
            {"kv_source_layers": [0, 1, 1, 0], "no_rope_layers": [1, 1, 1, 1]},
            (
                "kv_source_layers of m says block 0 for block 3; it must be 3 or 1: transformers hands on the keys of "
                "the last block before it that others take keys of and whose no_rope_layers is the same"
            ),
        ),
    ],
)
def test_keys_that_transformers_would_not_hand_on(change: dict[str, object], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        from_config({**to_config(MODEL), **change}, "m")
    assert str(raised.value) == text


@pytest.mark.parametrize("model", [MODEL, SHARED], ids=["own keys", "shared keys"])
def test_a_config_is_read_as_it_was_written(model: ModelSpec) -> None:
    assert from_config(to_config(model), model.name) == model


def test_weights_go_through_a_pipelines_checkpoint_and_back(tmp_path: Path) -> None:
    """What sees, and the module that drafts tokens, are left out, as transformers leaves out the latter."""
    folder = huggingface_folder(tmp_path / "hf", MODEL)
    own = weights(MODEL, "F32")
    assert "layers.3.experts.7.w3.weight" in own and "layers.0.attention.ssmax_scaling.s" in own
    more = {"vision_encoder.ln_pre.weight": np.zeros(4, np.float32), "mtp_dspark.norm.weight": np.zeros(4, np.float32)}
    write_safetensors(folder / "model.safetensors", {**own, **more}, "F32")
    plain = huggingface_folder(tmp_path / "plain", MODEL)
    to = plan(MODEL, tp=2, pp=2, layers=(2, 2))
    for source, target in (("hf", Conversion("plan", to)), ("cut", Conversion("hf"))):
        name = "cut" if source == "hf" else "back"
        convert(open_source(tmp_path / source), tmp_path / name, target, lambda count: None, lambda count: None)
    assert bytes_of(tmp_path / "back") == bytes_of(plain)


def test_a_full_model_is_described_by_its_blocks() -> None:
    """18 of 72 blocks have no positions, and the first one no experts. transformers' class has as many parameters, and
    a buffer of 32 exponents."""
    assert parameter_count(FULL) == 1_050_118_202_880 + 32
    assert FULL.kinds == (0, 1, 3) and FULL.position_types.count("nope") == 18
    assert FULL.kind_counts(0, 72) == ((0, 1), (1, 53), (3, 18))


def test_a_choice_that_blocks_of_one_kind_alone_have_is_refused() -> None:
    """kv_b_proj makes wider heads in blocks without positions: a plan that says one of these dims says it of all."""
    data = plan_to_dict(case(2, "mistral large 4, shared keys, tp"))
    data["operators"]["model.layers.*.self_attn.kv_b_proj"]["choice"]["tp"] = "kv_b"
    with pytest.raises(
        AutoshardError,
        match=r"kv_b_proj\.choice\.tp is 'kv_b'; with this strategy .* it can be: kvhead, batch, seq, kv_rank, I, R$",
    ):
        plan_from_dict(data)
