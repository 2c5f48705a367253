"""TrainingSpec and the three precisions."""

import dataclasses
import json

import pytest

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.spec.training import DTYPE_BYTES, PRECISIONS, Precision, TrainingSpec, load_precision


def test_a_step_of_1024_sequences_of_8192_tokens_has_8_million_tokens() -> None:
    assert TrainingSpec(8192, 1024, PRECISIONS["mixed_precision"]).tokens_per_step == 8_388_608


@pytest.mark.parametrize(
    # AdamW state of one parameter: the parameter, its accumulated gradient, a master copy if any, two moments
    ("name", "state_bytes"),
    [("mixed_precision", 2 + 4 + 4 + 8), ("bf16_sr", 2 + 2 + 0 + 4), ("fp32", 4 + 4 + 0 + 8)],
)
def test_bytes_of_state_per_parameter(name: str, state_bytes: int) -> None:
    precision = PRECISIONS[name]
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    assert state_bytes == (
        DTYPE_BYTES[precision.parameter_dtype]
        + DTYPE_BYTES[precision.gradient_accumulation_dtype]
        + master
        + 2 * DTYPE_BYTES[precision.optimizer_dtype]
    )


@pytest.mark.parametrize("name", PRECISIONS)
def test_json_gives_the_same_value_back(name: str) -> None:
    training = TrainingSpec(4096, 512, load_precision(name), expert_capacity_factor=1.25)
    assert from_json(TrainingSpec, json.loads(json.dumps(to_json(training))), "training") == training


def test_a_precision_of_ones_own_has_a_name_of_its_own() -> None:
    mixed = PRECISIONS["mixed_precision"]
    own = dataclasses.replace(mixed, name="bf16_reduce", gradient_reduce_dtype="bfloat16")
    assert TrainingSpec(4096, 512, own).precision.gradient_reduce_dtype == "bfloat16"
    with pytest.raises(AutoshardError) as raised:
        TrainingSpec(4096, 512, dataclasses.replace(own, name="mixed_precision"))
    assert str(raised.value) == (
        "gradient_reduce_dtype='bfloat16' of precision mixed_precision must be 'float32'; "
        "a mixture of one's own needs a name of its own"
    )


def test_errors_name_the_field() -> None:
    with pytest.raises(AutoshardError) as raised:
        load_precision("bf16")
    assert str(raised.value) == (
        "precision='bf16' of the training must be one of: mixed_precision, bf16_sr, fp32, "
        "fp8, fp8_block, mxfp8, nvfp4, cfp8"
    )
    with pytest.raises(AutoshardError, match=r"^sequence_length=0 of the training must be a whole number from 1 to "):
        TrainingSpec(0, 1024, PRECISIONS["fp32"])
    with pytest.raises(
        AutoshardError, match=r"^global_batch_size=1\.5 of the training must be a whole number from 1 to "
    ):
        TrainingSpec(8192, 1.5, PRECISIONS["fp32"])  # type: ignore[arg-type]
    with pytest.raises(AutoshardError, match=r"^compute_dtype='int8' of precision odd must be one of: bfloat16, "):
        Precision("odd", "bfloat16", "int8", None, "float32", "float32", "float32")
    with pytest.raises(AutoshardError, match=r"^training lacks precision$"):
        from_json(TrainingSpec, {"sequence_length": 8192, "global_batch_size": 1024}, "training")
    with pytest.raises(
        AutoshardError, match=r"^expert_capacity_factor=-1 of the training must be a finite number above 0$"
    ):
        TrainingSpec(8192, 1024, PRECISIONS["fp32"], -1)
    fields = to_json(TrainingSpec(8192, 1024, PRECISIONS["fp32"]))
    with pytest.raises(AutoshardError, match=r"^training\.precision must be an object with named fields, not 'fp32'$"):
        from_json(TrainingSpec, {**fields, "precision": "fp32"}, "training")
