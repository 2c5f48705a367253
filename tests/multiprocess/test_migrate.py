"""`autoshard migrate` with a checkpoint: weights and AdamW's state are where the new plan's ranks read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from autoshard.checkpoint.manifest import QUANTITIES, read_manifest
from autoshard.cli import main
from autoshard.interop.nxdt_training import FIXED
from autoshard.plans.validate import read_plan
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from tests.multiprocess.models import MODELS
from tests.multiprocess.test_convert_nxd_optimizer import nxd_checkpoint
from tests.multiprocess.test_convert_nxd_optimizer import run as converted
from tests.unit.weight_folders import bytes_of

CONF: dict[str, Any] = {
    "name": "hf_llama",
    "model_source": "hf",
    "trainer": {"devices": 32, "num_nodes": 1, "max_steps": 100},
    "distributed_strategy": {"tensor_model_parallel_size": 2, "zero1": True, "sequence_parallel": True},
    "data": {"micro_batch_size": 1, "global_batch_size": 64},
    "model": {"model_config": "config.json", "encoder_seq_length": 32, "fusions": {"flash_attention": False}},
    "precision": {"type": "fp32"},
}


def test_what_autoshard_run_updates_with() -> None:
    """The numbers of interop/nxdt_training.py are those of the runtime."""
    settings = OptimizerSettings(1e-3)
    updates = {"weight_decay": settings.weight_decay, "betas": [*settings.betas], "eps": settings.eps}
    assert {**updates, "clip": settings.max_gradient_norm} == FIXED


FOLDER = "tags/llama--step=7-consumed_samples=448.0.ckpt"


@pytest.mark.parametrize(("weights_only", "folder"), [(False, FOLDER), (True, FOLDER), (False, "tags")])
def test_the_checkpoint_goes_along(
    weights_only: bool, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nxd_checkpoint(tmp_path, replace(MODELS["llama"], vocab_size=256), "one group")
    (tmp_path / "config.json").write_bytes((tmp_path / "master" / "config.json").read_bytes())
    (tmp_path / "tags").mkdir()
    (tmp_path / "nxd").rename(tmp_path / FOLDER)
    monkeypatch.chdir(tmp_path)
    Path("conf.yaml").write_text(yaml.safe_dump(CONF))
    more = ("--weights-only",) if weights_only else ()
    command = ("migrate", "conf.yaml", "--checkpoint", folder, "--instance", "trn2.3xlarge", "-o", "there", *more)
    assert main(list(command)) == 0
    told = (
        "Weights of llama alone: no optimizer's state was saved there, or --weights-only left it out."
        if weights_only
        else "Weights of llama and AdamW's state after step 7: training goes on with the next one. Sequences that it "
        "has seen: 448, as its folder says in its name."
    ).replace("llama ", f"{read_plan('there/plan.json').model.name} ")
    assert f"\n{told}\nnext: read " in capsys.readouterr().out
    page, job = Path("there/MIGRATION.md").read_text(), Path("there/job.sh").read_text()
    assert f"## Checkpoint\n\n{told}\n" in page
    manifest = read_manifest(Path("there/checkpoint"))
    plan = read_plan("there/plan.json")
    converted(Path(folder), Path("direct"), "plan", plan, training=not weights_only)
    assert bytes_of(Path("there/checkpoint")) == bytes_of(Path("direct"))
    rate = "--learning-rate 0.001 --warmup-steps 0"
    if not weights_only:
        assert (manifest.step, manifest.quantities) == (7, QUANTITIES)
        assert f" run there/plan.json --resume there/checkpoint --steps 100 {rate}\n" in job
    else:
        assert f" run there/plan.json --weights there/checkpoint --steps 100 {rate}\n" in job


@pytest.mark.parametrize("saved", [False, True])
def test_masters_that_were_not_saved_are_told(
    saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nxd_checkpoint(tmp_path, replace(MODELS["few kv heads"], vocab_size=256), "kv heads twice, masters", masters=True)
    (tmp_path / "config.json").write_bytes((tmp_path / "master" / "config.json").read_bytes())
    for file in (tmp_path / "nxd" / "optim").iterdir() if not saved else ():
        state = torch.load(file, weights_only=True)
        del state["sharded_master_weights"]
        torch.save(state, file)
    monkeypatch.chdir(tmp_path)
    Path("conf.yaml").write_text(yaml.safe_dump({**CONF, "precision": {"type": "mixed_precision"}}))
    assert main(["migrate", "conf.yaml", "--checkpoint", "nxd", "--instance", "trn2.3xlarge"]) == 0
    told = "Its master weights were not saved: they begin as the weights, in bfloat16.\n"
    assert (told in capsys.readouterr().out) is not saved
