"""Gates that are cut off, and blocks of which only some cut them off."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.spec.clamped_gate import ClampedGate
from autoshard.spec.model import ModelSpec
from tests.multiprocess.models import MODELS
from tests.spmd.pointwise import pointwise

GATED = MODELS["gpt oss"]
LAYERS = GATED.num_hidden_layers


def test_without_an_alpha_the_activated_gate_is_cut_off() -> None:
    # silu(1) = 0.7310586 and silu(-1) = -0.2689414; only from above is it cut off, here at 0.5
    gate, raised = np.array([1.0, 1.0, -1.0, -1.0]), np.array([2.0, 0.1, -3.0, 0.1])
    found, _ = pointwise(ClampedGate(7.0, swiglu_limit_shared=0.5).expression(0.5), (gate, raised))
    assert found == pytest.approx([0.25, 0.05, 0.1344707, -0.02689414], rel=1e-6)


def test_with_an_alpha_the_gate_itself_is() -> None:
    # 0.5 sigmoid(2 * 0.5) = 0.3655293, times u + 1
    gate, raised = np.array([1.0, 1.0, 1.0]), np.array([2.0, 0.1, -3.0])
    found, _ = pointwise(ClampedGate(0.5, 2.0).expression(0.5), (gate, raised))
    assert found == pytest.approx([0.3655293 * 1.5, 0.3655293 * 1.1, 0.3655293 * 0.5], rel=1e-6)


def activations(model: ModelSpec) -> list[str]:
    """The kinds of the operators that activate the MLPs of a model, in the order of its blocks."""
    graph = stage_graph(model, dim_sizes(model, 1, 16), range(model.num_hidden_layers), first=True, last=True)
    return [str(op.attributes.get("function", op.kind)) for op in graph.operators if op.name.endswith(".act_fn")]


def test_blocks_may_differ_in_whether_gates_are_cut_off() -> None:
    some = replace(GATED, gate_types=("routed", *("free",) * (LAYERS - 1)))
    cut, usual = activations(GATED)[0], activations(some)[1]
    assert activations(GATED) == [cut] * LAYERS
    assert activations(some) == [cut, *[usual] * (LAYERS - 1)]
    assert (usual, cut) == ("silu_mul", "pointwise")
    assert some.some_blocks((1, 0)).gate_types == ("free", "routed")
    assert (GATED.kinds, some.kinds) == ((0, 1), (0, 1, 2))
    assert from_json(ModelSpec, to_json(some), "model") == some


@pytest.mark.parametrize(
    ("model", "fields", "text"),
    [
        (
            "gpt oss",
            {"clamped_gate": None, "gate_types": ("free",) * LAYERS},
            "gate_types of tiny-llama must be absent without a clamped_gate, which says the limits",
        ),
        (
            "llama",
            {"clamped_gate": ClampedGate(7.0)},
            (
                "clamped_gate of tiny-llama must be absent with model_type=llama; that is of gpt_oss, step3p5, "
                "deepseek_v4, glm5_next_text, hy_v4, minimax_m3_vl_text"
            ),
        ),
        (
            "gpt oss",
            {"gate_types": ("both",) * LAYERS},
            (
                "swiglu_limit_shared=None of tiny-llama must be a limit where gate_types has shared or both, and "
                "absent where it has neither"
            ),
        ),
        (
            "gpt oss",
            {"clamped_gate": ClampedGate(7.0, swiglu_limit_shared=16.0)},
            (
                "swiglu_limit_shared=16.0 of tiny-llama must be a limit where gate_types has shared or both, and "
                "absent where it has neither"
            ),
        ),
        (
            "gpt oss",
            {"clamped_gate": ClampedGate(7.0, swiglu_limit_shared=16.0), "gate_types": ("both",) * LAYERS},
            "gate_types of tiny-llama has both: model_type=gpt_oss has no shared expert; ",
        ),
        (
            "gpt oss",
            {"gate_types": ("cut",) * LAYERS},
            "gate_types='cut' of tiny-llama must be one of: free, routed, shared, both",
        ),
    ],
)
def test_gates_that_do_not_fit_are_refused(model: str, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        replace(MODELS[model], **fields)
    assert str(error.value).startswith(text)


def test_gates_cut_off_before_silu() -> None:
    assert ClampedGate(7.0, cuts_before_silu=True).expression(7.0) == (
        "(mul (maximum (minimum x1 7.0) -7.0) (silu (minimum x0 7.0)))"
    )
    with pytest.raises(AutoshardError) as error:
        ClampedGate(7.0, 1.7, cuts_before_silu=True)
    assert str(error.value) == (
        "cuts_before_silu=True of clamped_gate goes without swiglu_alpha=1.7, with which g is cut off in any case"
    )


@pytest.mark.parametrize("field", ["swiglu_alpha", "swiglu_limit_shared"])
def test_a_number_that_is_none_is_refused(field: str) -> None:
    fields: dict[str, Any] = {field: 0.0}
    with pytest.raises(AutoshardError, match=f"{field}=0.0 of clamped_gate must be a finite number above 0"):
        replace(ClampedGate(7.0), **fields)
