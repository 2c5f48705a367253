"""What NxD is told for the six published layouts and on trn2, word for word. REGENERATE=1 writes the file anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

from autoshard.runtime.nxd_backend.configuration import neuronx_distributed_config
from autoshard.runtime.nxd_backend.traps import nxd_repairs
from tests.unit.plan_examples import plan_70b
from tests.unit.published_plans import published_plans
from tests.unit.test_nxd_configuration import changed

GOLDEN = Path(__file__).parent / "nxd_configurations.json"


def test_the_published_layouts() -> None:
    lnc_1 = changed(plan_70b(), "trn2.48xlarge", 4, 1, tp=32, pp=8, dp=2)
    lnc_2 = changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)
    plans = {**published_plans(), "70B on trn2, lnc 1": lnc_1, "70B on trn2, lnc 2": lnc_2}
    ours = {
        name: {"neuronx_distributed_config": neuronx_distributed_config(plan), "repairs": list(nxd_repairs(plan))}
        for name, plan in plans.items()
    }
    if os.environ.get("REGENERATE"):
        GOLDEN.write_text(json.dumps(ours, indent=1) + "\n")
    assert ours == json.loads(GOLDEN.read_text(encoding="utf-8"))
