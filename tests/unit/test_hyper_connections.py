"""Residuals of several streams: what passes from block to block is as many times as wide."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.cost.local_shape import hidden_bytes, local_shape
from autoshard.cost.program import ProgramWork
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.count import operator_steps, operator_work, parameter_elements
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import Program
from autoshard.graph.recompute import kept_activations
from autoshard.layout.sharding import stage_program
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.spec.hyper_connections import HyperConnections
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import strategy

MODEL = MODELS["deepseek v4"]
SEQ, WIDTH, STREAMS = 16, 64, 4
PREFIX = "model.layers.0."


def program(axes: dict[str, int], sp: bool = True) -> Program:
    sizes = dim_sizes(MODEL, 1, SEQ, axes.get("tp0", 1))
    return stage_program(stage_graph(MODEL, sizes, (0,), False, False), axes, sequence_parallel=sp)


def test_what_passes_from_block_to_block_has_all_streams() -> None:
    """16 tokens of 4 x 64 numbers of 2 bytes; ranks of tp share the sequence."""
    training = TrainingSpec(SEQ, 8, load_precision("mixed_precision"))
    for tp, cp, share in ((1, 1, 1), (2, 1, 2), (2, 2, 4)):
        shape = local_shape(strategy(tp=tp, cp=cp))
        assert hidden_bytes(MODEL, training, shape) == SEQ * STREAMS * WIDTH * 2 // share
    found = program({"tp0": 2})
    (hidden,) = (tensor for tensor in found.graph.inputs() if tensor.name == "hidden")
    assert hidden.dims == ("batch", "seq", "stream", "embed")
    assert found.states["hidden"] == ("seq",) == found.states[found.outputs[0]]
    assert found.local_bytes[found.outputs[0]] == SEQ * STREAMS * WIDTH * 2 // 2


def test_what_runs_again_keeps_all_streams_of_its_input() -> None:
    kept = kept_activations(program({}), "full")
    assert kept == {"hidden": SEQ * STREAMS * WIDTH * 2, "input_ids": SEQ * 8}
    none = kept_activations(program({}), "none")
    assert none["hidden"] == none[f"{PREFIX}attention_residual"] == SEQ * STREAMS * WIDTH * 2
    assert none[f"{PREFIX}attn_hc"] == none[f"{PREFIX}attn_hc:products"] == SEQ * (4 + 4 + 16) * 4  # FP32


def test_flops_by_hand() -> None:
    work = {
        one.operator.name.removeprefix(PREFIX): operator_work(program({}), one)
        for step in program({}).steps
        for one in operator_steps(step)
    }
    numbers = SEQ * STREAMS * WIDTH
    divisions = 2 * 4 - 1  # of 24 numbers a token, though 16 are divided
    assert work["attn_hc"].flops == (2 * 24 + 2) * numbers + 4 * divisions * SEQ * 24
    assert work["attn_hc.collapsed"].flops == 2 * numbers
    assert work["attention_residual"].flops == 2 * (STREAMS + 1) * numbers


def test_parameters_of_streams() -> None:
    """Of each part of a block a matrix of 24 rows, 24 numbers and 3; of the head 4 rows, 4 numbers and one."""
    graph = stage_graph(MODEL, dim_sizes(MODEL, 1, SEQ), range(4), True, True)
    found = {one.name: graph.num_elements(one.name) for one in graph.parameters()}
    assert [found[f"{PREFIX}attn_hc.{part}"] for part in ("fn", "base", "scale")] == [24 * STREAMS * WIDTH, 24, 3]
    assert [found[f"model.hc_head.{part}"] for part in ("fn", "base", "scale")] == [4 * STREAMS * WIDTH, 4, 1]
    assert {f"{PREFIX}attn_hc.fn", "model.hc_head.fn"} <= graph.matrices
    assert not {f"{PREFIX}attn_hc.base", "model.hc_head.scale"} & graph.matrices


def test_streams_that_nothing_mixes_by_hand() -> None:
    """8 weights a token, and no matrix: what is added to streams is kept, and no stream."""
    model = replace(MODEL, hyper_connections=HyperConnections(STREAMS, None, 1e-6))
    graph = stage_graph(model, dim_sizes(model, 1, SEQ), (0,), False, False)
    found = {one.name: graph.num_elements(one.name) for one in graph.parameters()}
    assert [found[f"{PREFIX}attn_hc.{part}"] for part in ("fn", "base", "scale")] == [8 * STREAMS * WIDTH, 8, 2]
    unmixed = stage_program(graph, {}, sequence_parallel=True)
    work = {
        one.operator.name.removeprefix(PREFIX): operator_work(unmixed, one)
        for step in unmixed.steps
        for one in operator_steps(step)
    }
    numbers = SEQ * STREAMS * WIDTH
    assert work["attn_hc"].flops == (2 * 8 + 2) * numbers
    assert work["attention_residual"].flops == 2 * numbers
    (adds,) = (op for op in graph.operators if op.name == f"{PREFIX}attention_residual")
    assert KINDS["expand_streams"].saved_inputs(adds, graph) == (0, 2)
    assert from_json(ModelSpec, to_json(model), "model") == model


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"hc_mult": 1}, "hc_mult=1 of hyper_connections must be a whole number from 2 to "),
        ({"hc_sinkhorn_iters": 0}, "hc_sinkhorn_iters=0 of hyper_connections must be a whole number from 1 to "),
        ({"hc_eps": 0.0}, "hc_eps=0.0 of hyper_connections must be a finite number above 0"),
        ({"hc_magnitude": -1.0}, "hc_magnitude=-1.0 of hyper_connections must be a finite number above 0"),
    ],
)
def test_streams_that_are_none_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        replace(HyperConnections(4, 20, 1e-6), **fields)
    assert str(error.value).startswith(text)


def test_streams_go_with_their_families() -> None:
    with pytest.raises(AutoshardError) as error:
        replace(MODEL, hyper_connections=None)
    assert str(error.value) == ("model_type=deepseek_v4 of tiny-llama needs hyper_connections, which is absent")
    with pytest.raises(
        AutoshardError,
        match=r"^hyper_connections of tiny-llama must be absent with model_type=llama; that is of deepseek_v4, "
        r"glm5_next_text, hy_v4$",
    ):
        replace(MODELS["llama"], hyper_connections=MODEL.hyper_connections)
    with pytest.raises(AutoshardError, match=r"^hyper_connections=4 .* must be null or an object with hc_mult$"):
        replace(MODEL, hyper_connections=4)  # type: ignore[arg-type]


def test_a_table_of_experts_takes_the_room_of_fp32() -> None:
    """It is not learned, and its numbers have four bytes where weights have two: each counts as two weights."""
    found = program({})
    (table,) = (one for one in found.graph.parameters() if not one.differentiable)
    assert (table.name, table.element_bytes) == (f"{PREFIX}mlp.gate.tid2eid", 2)
    assert ProgramWork(found).frozen == 2 * parameter_elements(found)[table.name]
