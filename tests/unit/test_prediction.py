"""Multi-token prediction: its parameters, where its weights lie in checkpoints, its price, and what refuses it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoshard.conversion.convert import Conversion, convert, source_for
from autoshard.conversion.huggingface import huggingface_source
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.graph.ir import Graph
from autoshard.graph.partition import Program
from autoshard.graph.recompute import segments
from autoshard.layout.sharding import stage_program
from autoshard.models.huggingface import to_config
from autoshard.models.registry import load_model
from autoshard.models.stage import dim_sizes, learned_count, stage_graph
from autoshard.planner.inputs import inputs_of
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import MultiTokenPrediction
from autoshard.spec.training import TrainingSpec, load_precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.unit.weight_folders import huggingface_folder, weights, write_safetensors

PREDICTING = "deepseek_v3, kimi_k2, glm4_moe, glm4_moe_lite, deepseek_v32, glm_moe_dsa"
MODULE = MultiTokenPrediction()
TINY = MODELS["deepseek v3, predicting"]
WITHOUT = MODELS["deepseek v3"]
PREFIX = "model.layers.4"


def last_stage(model: ModelSpec) -> Graph:
    return stage_graph(model, dim_sizes(model, 2, 64), (), first=False, last=True)


@pytest.mark.parametrize(
    ("name", "more", "published"),
    [
        # latent attention 187,107,328, router and 257 experts 11,320,098,816, projection 102,760,448, five norms;
        # README_WEIGHTS.md of DeepSeek-V3: 11.5 B without the two tables, and 685 B on its page with both
        ("deepseek-v3", 11_610_067_968, 684.5e9),
        ("glm-4.5", 3_988_069_632, 358.3e9),
        ("glm-4.5-air", 2_375_059_456, 110.47e9),
    ],
)
def test_parameters_are_those_of_the_checkpoints(name: str, more: int, published: float) -> None:
    model = load_model(name)
    predicting = learned_count(replace(model, multi_token_prediction=MODULE))
    assert predicting - learned_count(model) == more
    assert predicting + 2 * model.vocab_size * model.hidden_size == pytest.approx(published, rel=2e-4)


def test_the_module_is_a_block_behind_the_last_with_tables_of_the_model() -> None:
    block = stage_graph(TINY, dim_sizes(TINY, 2, 64), (3,), first=False, last=False)
    own = {tensor.name.replace("model.layers.3", PREFIX) for tensor in block.parameters()}
    own |= {f"{PREFIX}.{name}.weight" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")}
    tables = {"model.norm.weight", "lm_head.weight"}
    assert {tensor.name for tensor in last_stage(WITHOUT).parameters()} == tables
    assert {tensor.name for tensor in last_stage(TINY).parameters()} == tables | own | {"model.embed_tokens.weight"}
    assert {op.module for op in last_stage(TINY).operators} == {"head", "prediction"}


def test_recompute_sets_leave_the_module_as_they_leave_the_head() -> None:
    program = stage_program(last_stage(TINY), {"tp0": 2}, sequence_parallel=True)
    assert isinstance(program, Program)
    assert not any(segment.recomputed for segment in segments(program, "full"))


def test_a_plan_names_the_module_and_its_weight() -> None:
    request = PlanRequest(model="deepseek-v3", nodes=256, instance="h800-80gb", mtp_num_layers=1)
    model, _, _, notes = inputs_of(replace(request, mtp_loss_scaling_factor=0.3))
    assert model.multi_token_prediction == MultiTokenPrediction(1, 0.3)
    assert from_json(ModelSpec, to_json(model), "model") == model
    assert (
        "deepseek-v3: a prediction module runs with the head; its loss is part of the one that training reports, not "
        "of that on held-out text; it weighs 0.3"
    ) in notes
    assert inputs_of(request)[0].multi_token_prediction == MODULE
    assert inputs_of(replace(request, mtp_num_layers=0))[0].multi_token_prediction is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"mtp_num_layers": 2},
            "mtp_num_layers=2 is not supported: published checkpoints have 1 module; 1 works",
        ),
        (
            {"mtp_num_layers": 0, "mtp_loss_scaling_factor": 0.3},
            "mtp_loss_scaling_factor=0.3 goes with mtp_num_layers=1, not 0",
        ),
        (
            {"mtp_loss_scaling_factor": -1.0},
            "mtp_loss_scaling_factor=-1.0 of multi_token_prediction must be a finite number above 0",
        ),
        (
            {"model": "qwen3-8b"},
            f"multi_token_prediction of qwen3-8b must be absent with model_type=qwen3; that is of {PREDICTING}",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], told: str) -> None:
    request = PlanRequest(model="glm-4.5-air", nodes=8, instance="trn2.48xlarge", mtp_num_layers=1)
    with pytest.raises(AutoshardError) as raised:
        inputs_of(replace(request, **changes))  # type: ignore[arg-type]
    assert str(raised.value) == told


def test_a_checkpoint_is_read_with_its_module_and_trained_with_or_without(tmp_path: Path) -> None:
    folder = huggingface_folder(tmp_path / "hf", TINY)
    source = huggingface_source(folder)
    assert source.model.multi_token_prediction == MODULE  # the weight of its loss is no part of a checkpoint
    assert source_for(source, plan_of(TINY, strategy(), 2, FP32)) is source
    without = source_for(source, plan_of(WITHOUT, strategy(), 2, FP32))
    assert not any(name.startswith(PREFIX) for name in without.regions)
    assert without.regions.keys() == huggingface_source(huggingface_folder(tmp_path / "plain", WITHOUT)).regions.keys()
    with pytest.raises(AutoshardError) as raised:
        source_for(huggingface_source(tmp_path / "plain"), plan_of(TINY, strategy(), 2, FP32))
    assert str(raised.value) == (
        f"the Hugging Face checkpoint {tmp_path / 'plain'} has no prediction module, and the plan trains one "
        "(mtp_num_layers=1): plan without it, or give weights that have it"
    )


def test_what_we_write_has_both_tables_twice_as_published(tmp_path: Path) -> None:
    folder = huggingface_folder(tmp_path / "hf", TINY)
    assert to_config(TINY)["num_nextn_predict_layers"] == 1
    convert(huggingface_source(folder), tmp_path / "out", Conversion("hf"), lambda size: None, lambda size: None)
    again = huggingface_source(tmp_path / "out")
    assert replace(again.model, name="hf") == huggingface_source(folder).model
    from safetensors.numpy import load_file

    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in weights(TINY, "F32").items():
        np.testing.assert_array_equal(found[name], value)
    np.testing.assert_array_equal(found[f"{PREFIX}.embed_tokens.weight"], found["model.embed_tokens.weight"])
    np.testing.assert_array_equal(found[f"{PREFIX}.shared_head.head.weight"], found["lm_head.weight"])


def test_a_module_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    folder = huggingface_folder(tmp_path / "hf", TINY)
    own = weights(TINY, "F32")
    del own[f"{PREFIX}.hnorm.weight"]
    write_safetensors(folder / "model.safetensors", own, "F32")
    with pytest.raises(AutoshardError, match=r"has no tensor model\.layers\.4\.hnorm\.weight, which the model of "):
        huggingface_source(folder)


@pytest.mark.parametrize("pins", [Pins(pp=2), Pins(pp=1, dp=8), Pins(tp=2, pp=2, zero=3)])
def test_searched_plans_are_priced_as_estimated(pins: Pins) -> None:
    """The search prices layouts by the thousand; the last stage has the module beside its blocks."""
    model = replace(TINY, hidden_size=512, vocab_size=4096, num_hidden_layers=4)
    cluster = load_cluster("cpu", nodes=1)
    cluster = replace(cluster, devices_per_node=8, devices_per_chip=8, intra_node=((8, cluster.intra_node[-1][1]),))
    training = TrainingSpec(256, 32, load_precision("mixed_precision"))
    found = search(model, training, cluster, pins, "torch")
    cost = estimate(model, training, cluster, found.best.strategy)
    assert cost.step_time_s == pytest.approx(found.best.estimate.step_time_s, rel=1e-12)
    alone = estimate(replace(model, multi_token_prediction=None), training, cluster, found.best.strategy)
    assert cost.step_time_s > alone.step_time_s and cost.fullest.total_bytes >= alone.fullest.total_bytes


def test_the_prediction_module_of_qwen3_next_is_left_out(tmp_path: Path) -> None:
    model = MODELS["qwen3 next"]
    folder = huggingface_folder(tmp_path / "hf", model)
    own = huggingface_source(folder).regions
    more = {
        "mtp.fc.weight": np.zeros((4, 8), np.float32),
        "mtp.layers.0.input_layernorm.weight": np.zeros(4, np.float32),
    }
    write_safetensors(folder / "model.safetensors", {**weights(model, "F32"), **more}, "F32")
    assert huggingface_source(folder).regions.keys() == own.keys()
