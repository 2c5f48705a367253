"""`autoshard migrate`: a configuration of NxD Training becomes a plan for native PyTorch, a job and a page."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.interop.nxdt_training import read_learning
from autoshard.migration.migrate import consumed_samples, migrate
from autoshard.migration.target import Target
from autoshard.models.huggingface import to_config
from autoshard.models.registry import load_model
from autoshard.plans.validate import read_plan
from autoshard.units import percent
from tests.cases import some
from tests.unit.written_files import PUBLIC, UNNAMED, imported

OPTIMIZER = {
    "name": "adamw_fp32OptState",
    "lr": "1.5e-4",  # YAML 1.1 reads 1.5e-4 as a text
    "weight_decay": 0.01,
    "betas": [0.9, 0.999],
    "sched": {"name": "CosineAnnealing", "warmup_steps": 2000, "min_lr": 3e-5, "max_steps": "${trainer.max_steps}"},
}
HF_DECAY = (
    "NxD Training's Hugging Face models decay by 0.01, whatever model.optim.weight_decay says: autoshard run decays "
    "by 0.1"
)
HF_NORMS = "model.do_layer_norm_weight_decay is not True, so NxD Training decays norms too: autoshard run does not"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(data: dict[str, Any], name: str = "conf.yaml") -> str:
    Path(name).write_text(yaml.safe_dump(data))
    return name


def with_optimizer(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "model": {**data["model"], "optim": OPTIMIZER}}


@pytest.mark.parametrize("name", [*some(PUBLIC, step=2), "megatron_mistral"])
def test_the_published_configurations(name: str) -> None:
    """Model, batch, sequences and precision stay; the layout is another one, for native PyTorch."""
    data = {**PUBLIC, **UNNAMED}[name]
    given = {"model": "llama2-7b"} if name == "hf_llama_7B" else {}
    before = imported(data, **given)
    found = migrate(written(data), given, Target())
    assert found.before == before
    after = found.after
    coefficient = {"hf_mixtral_8x7b": 0.01}.get(name, 0.0)
    assert after.model == replace(before.model, router_aux_loss_coef=coefficient)
    assert after.training == before.training
    assert (after.backend, after.cluster.instance, after.cluster.stack) == ("torch", "trn2.48xlarge", "neuron-compiled")
    peaks = [
        plan.cluster.world_size * plan.cluster.device.peak_flops_per_s("bfloat16") for plan in (found.before, after)
    ]
    assert 0.7 < peaks[1] / peaks[0] < 1.5 or after.cluster.nodes == 1


def test_how_it_learns() -> None:
    found = read_learning(written(with_optimizer(PUBLIC["hf_llama3_70B"])))
    assert found.options == (
        ("--steps", "30000"),
        ("--learning-rate", "0.00015"),
        ("--warmup-steps", "2000"),
        ("--lr-schedule", "cosine"),
    )
    assert found.differs == (
        "model.optim.sched.min_lr=3e-05: our schedules fall to zero and have no such part",
        HF_DECAY,
        HF_NORMS,
        "model.optim.betas=[0.9, 0.999]: autoshard run has [0.9, 0.95]",
        "model.optim.eps is not set, so NxD Training has 1e-06: autoshard run has 1e-08",
    )
    assert "model.optim.lr" not in found.left_out and "seed" in found.left_out


def test_a_silent_file_learns_by_nxd_trainings_defaults() -> None:
    """Torch's AdamW, a rate without warm-up, no clipping; the job has the rate, and sentences have the rest."""
    data = deepcopy(PUBLIC["hf_llama3_8B"])
    del data["trainer"]["gradient_clip_val"], data["model"]["optim"]["lr"]
    found = read_learning(written(data))
    assert found.options == (("--steps", "30000"), ("--learning-rate", "0.001"), ("--warmup-steps", "0"))
    betas = "model.optim.betas is not set, so NxD Training has [0.9, 0.999]: autoshard run has [0.9, 0.95]"
    clip = "trainer.gradient_clip_val is not set, so NxD Training clips nothing: autoshard run clips at 1"
    assert found.differs == (HF_DECAY, HF_NORMS, betas, clip)


def test_which_weights_decay_and_how_fast() -> None:
    """Models of Hugging Face have a decay of their own; do_layer_norm_weight_decay spares their norms, and nothing in
    NxD Training's GPT."""
    llama, gpt = deepcopy(PUBLIC["hf_llama3_8B"]), deepcopy(UNNAMED["megatron_gpt"])
    for data in (llama, gpt):
        data["model"]["do_layer_norm_weight_decay"] = True
        data["model"]["optim"] |= {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    assert read_learning(written(llama)).differs == (HF_DECAY,)
    all_decay = (
        "model.do_layer_norm_weight_decay=True: NxD Training decays norms and biases too, autoshard run does not"
    )
    assert read_learning(written(gpt)).differs == (all_decay,)
    gpt["model"]["do_layer_norm_weight_decay"] = False
    assert read_learning(written(gpt)).differs == ()
    gpt["model"]["optim"]["weight_decay"] = 0.3
    assert read_learning(written(gpt)).differs == ("model.optim.weight_decay=0.3: autoshard run has 0.1",)
    del gpt["model"]["optim"]["weight_decay"]
    for name, decay in (("adamw", 0.01), ("adamw_fp32OptState", 0.0)):
        gpt["model"]["optim"]["name"] = name
        told = f"model.optim.weight_decay is not set, so NxD Training has {decay}: autoshard run has 0.1"
        assert read_learning(written(gpt)).differs == (told,)


@pytest.mark.parametrize(
    ("name", "moe", "coefficient"),
    [
        ("hf_mixtral_8x7b", {"router_aux_loss_coef": 0.5}, 0.25),
        ("hf_mixtral_8x7b", {"router_aux_loss_coef": 0.5, "output_router_logits": False}, 0),
        ("hf_mixtral_8x7b", {}, 0.01),
        ("megatron_mixtral", {"router_aux_loss_coef": 0.5, "output_router_logits": True}, 0.25),
        ("megatron_mixtral", {"router_aux_loss_coef": 0.5}, 0),
        ("megatron_mixtral", {"output_router_logits": True}, 0),
    ],
)
def test_the_routers_loss(name: str, moe: dict[str, Any], coefficient: float) -> None:
    """NxD's is divided by top_k=2, a plan's is not."""
    data = deepcopy({**PUBLIC, **UNNAMED}[name])
    data["model"]["moe"] = {"num_experts": 8, "top_k": 2, "capacity_factor": 2.0, **moe}
    found = read_learning(written(data))
    assert found.router_aux_loss_coef == coefficient
    told = (
        f"router_aux_loss_coef={coefficient:g} of the plan's model: tokens of one layer and of all replicas are "
        "balanced together, NxD Training's loss balances those of all layers and of one replica"
    )
    assert (told in found.differs) == (coefficient > 0)
    assert not any("router" in key for key in found.left_out)


def test_the_routers_loss_is_the_yamls_not_the_config_jsons() -> None:
    """NxD Training overwrites what config.json says of it; backend nxd has no such loss, and runs the rest."""
    data = deepcopy(PUBLIC["hf_mixtral_8x7b"])
    config = {**to_config(load_model("mixtral-8x7b")), "output_router_logits": True, "router_aux_loss_coef": 0.3}
    Path("config.json").write_text(json.dumps(config))
    data["model"]["model_config"] = "config.json"
    found = migrate(written(data), {}, Target())
    assert (found.before.backend, found.before.model.router_aux_loss_coef) == ("nxd", 0)
    assert found.after.model.router_aux_loss_coef == 0.01


def test_where_training_ends() -> None:
    """NxD Training's rates fall until trainer.max_steps, whatever sched.max_steps says; -1 is no end."""
    data = deepcopy(with_optimizer(PUBLIC["hf_llama3_70B"]))
    trainer, schedule = data["trainer"], data["model"]["optim"]["sched"]

    def found() -> tuple[tuple[str, str], list[str]]:
        learning = read_learning(written(data))
        return learning.options[0], [one for one in learning.differs if "max_steps" in one]

    trainer["max_steps"], schedule["max_steps"] = 500, 20_000
    assert found() == (("--steps", "500"), [])
    no_end = "trainer.max_steps sets no end of NxD Training: the job's is at "
    trainer["max_steps"] = -1
    assert found() == (("--steps", "20000"), [f"{no_end}step 20000, the end of model.optim.sched"])
    schedule["max_steps"] = "${trainer.max_steps}"
    assert found() == (("--learning-rate", "0.00015"), [f"{no_end}its default: add --steps"])
    del trainer["max_steps"]
    assert found()[0] == ("--learning-rate", "0.00015")
    trainer["max_steps"] = -2
    with pytest.raises(AutoshardError, match=r"^trainer\.max_steps is '-2'; it must be a whole number of at least 1$"):
        found()


@pytest.mark.parametrize("name", [[], {"a": 1}, "Noam"])
def test_a_schedule_without_a_counterpart(name: object) -> None:
    data = deepcopy(with_optimizer(PUBLIC["hf_llama3_70B"]))
    data["model"]["optim"]["sched"]["name"] = name
    told = f"model.optim.sched.name={name}: a constant rate stands in; with a counterpart: "
    assert [one for one in read_learning(written(data)).differs if one.startswith(told)]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    conf = written(with_optimizer(PUBLIC["hf_llama3_70B"]))
    assert main(["migrate", conf, "-o", "there"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("wrote there: llama3-70b on 4 x trn2.48xlarge, tp=")
    assert shown.endswith(" times the step time\nnext: read there/MIGRATION.md, then sbatch there/job.sh\n")
    assert sorted(path.name for path in Path("there").iterdir()) == ["MIGRATION.md", "job.sh", "plan.json"]
    plan = read_plan("there/plan.json")
    assert (plan.model.name, plan.cluster.nodes) == ("llama3-70b", 4)
    job = Path("there/job.sh").read_text()
    assert job.endswith(
        "autoshard -m autoshard run there/plan.json --steps 30000 --learning-rate 0.00015 --warmup-steps 2000 "
        "--lr-schedule cosine\n"
    )
    page = Path("there/MIGRATION.md").read_text()
    for text in (
        "# llama3-70b: from NxD to native PyTorch\n",
        "| cluster | 16 x trn1.32xlarge | 4 x trn2.48xlarge |\n",
        "| step | ~",
        "- precision: mixed_precision, as before\n",
        f"- {HF_DECAY}\n",
        "None was given: training starts from random weights",
        "- best practice: AWS advises tp=4 inside a chip",
    ):
        assert text in page


def test_trn1_keeps_its_torch_backend(capsys: pytest.CaptureFixture[str]) -> None:
    conf = written(PUBLIC["hf_llama3_8B"])
    assert main(["migrate", conf, "--instance", "trn1.32xlarge"]) == 0
    plan = read_plan("migrated/plan.json")
    assert (plan.backend, plan.cluster.nodes, plan.cluster.stack) == ("torch", 4, None)
    page = Path("migrated/MIGRATION.md").read_text()
    assert page.startswith("# llama3-8b: from NxD to torch\n")
    assert f"fits with {percent(plan.estimate.fits_probability)} probability |\n" in page


def error_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(list(command)) == 2
    assert not Path("migrated").exists()
    return capsys.readouterr().err.removeprefix("autoshard: error: ").rstrip("\n")


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    conf = written(PUBLIC["hf_llama3_8B"])
    written({"model": "llama3-8b"}, "recipe.yaml")
    assert error_of(capsys, "migrate", "recipe.yaml") == (
        "recipe.yaml is no configuration of NxD Training: it has no distributed_strategy"
    )
    assert error_of(capsys, "migrate", conf, "--checkpoint", "nowhere") == (
        "checkpoint=nowhere is not a folder; NxD's has model/ and optim/ in it"
    )
    assert error_of(capsys, "migrate", conf, "--out", "s3://bucket/x") == (
        "out=s3://bucket/x is a URL: name a folder of this machine"
    )
    Path("empty").mkdir()
    told = error_of(capsys, "migrate", conf, "--checkpoint", "empty")
    assert told.startswith("empty has no weights that are read: ") and told.rstrip().endswith("; it is empty")
    assert error_of(capsys, "migrate", conf, "--instance", "trn1.32xlarge", "--stack", "neuron-eager") == (
        "stack=neuron-eager: native PyTorch on Neuron runs on trn2 and trn3, not on trn1.32xlarge; leave it out"
    )
    assert error_of(capsys, "migrate", conf, "--nodes", "1", "--instance", "trn2.3xlarge").startswith(
        "no layout fits llama3-8b on 1 x trn2.3xlarge: the smallest looked at needs "
    )


TERMINATED = """\
import os, signal
import autoshard, autoshard.migration.write as write

write.write_plan = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
autoshard.migrate("conf.yaml")
"""


def test_a_migration_that_is_terminated_leaves_nothing_behind() -> None:
    written(PUBLIC["hf_llama3_8B"])
    ended = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert [path.name for path in Path().iterdir()] == ["conf.yaml"]


@pytest.mark.parametrize(
    ("folder", "seen"),
    [
        ("a/hf_llama--step=100-consumed_samples=102400.0.ckpt", 102_400),
        ("a/step=3-consumed_samples=96.ckpt/model", 96),
        ("a/step_2", None),
    ],
)
def test_sequences_that_a_checkpoint_has_seen(folder: str, seen: int | None) -> None:
    assert consumed_samples(Path(folder)) == seen
