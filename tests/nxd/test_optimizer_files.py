"""What neuronx-distributed saved of its own example, model and ZeRO-1 state, is gone on from in another layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.models.huggingface import to_config
from tests.nxd.cases import FP32, MASTERS, plan_of
from tests.nxd.test_conformance import run

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool, bool]] = {
    "tp2 x dp2 to pp2": ({"tp": 2, "dp": 2}, {"pp": 2}, False, False),
    "dp2, serialized tensors, to tp2": ({"dp": 2}, {"tp": 2}, False, True),
    "tp2 x dp2, masters, to one process": ({"tp": 2, "dp": 2}, {}, True, False),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_goes_on(name: str, tmp_path: Path, example_file: Path) -> None:
    written, read, masters, xser = CASES[name]
    there, here = plan_of(**written), plan_of(**read, precision=MASTERS if masters else FP32)
    arguments = {"file": str(example_file), "folder": str(tmp_path / "nxd"), "layout": written, "masters": masters}
    expected = run("checkpoint_workers:saved_example", {**arguments, "xser": xser}, there.strategy.world_size)[0][
        "losses"
    ]
    (tmp_path / "nxd" / "config.json").write_text(json.dumps(to_config(there.model)))
    source = open_source(tmp_path / "nxd", here.model, training=True)
    convert(source, tmp_path / "step", Conversion("plan", here), lambda count: None, lambda count: None)
    arguments = {"layout": read, "folder": str(tmp_path / "step"), "masters": masters}
    found = run("checkpoint_workers:resumed_on_torch", arguments, here.strategy.world_size)[0]
    assert found["step"] == 2
    assert found["losses"] == pytest.approx(expected[2:], rel=1e-5)
    assert found["losses"] != pytest.approx(expected[:2], rel=1e-4)
