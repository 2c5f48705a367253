"""Plans in the words of NxD Training, torchtitan and Megatron-LM, there and back; the shapes of the public files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.interop.export import FORMS, export
from autoshard.interop.export_torchtitan import BASES
from autoshard.interop.megatron_stages import layout_layers
from autoshard.interop.nxdt import auto_partition
from autoshard.interop.read_layout import read_written_layout
from autoshard.plans.plan_json import write_plan
from autoshard.plans.prices import priced
from autoshard.plans.validate import read_plan
from tests.unit.plan_examples import plan_70b
from tests.unit.published_plans import published_plans
from tests.unit.test_nxd_configuration import changed
from tests.unit.written_files import PUBLIC, SUFFIX, as_nxdt_runs, imported, inputs, mixture_plan

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.mark.parametrize("name", PUBLIC)
def test_public_files_are_the_published_layouts(name: str) -> None:
    given = {"model": "llama2-7b"} if name == "hf_llama_7B" else {}
    plan = imported(PUBLIC[name], **given)
    assert inputs(plan) == inputs(as_nxdt_runs(published_plans()[name]))
    assert plan.backend == "nxd"
    write_plan(plan, "plan.json")
    assert inputs(read_plan("plan.json")) == inputs(plan)


def test_what_the_public_file_says_beyond_a_layout_is_listed() -> None:
    Path("conf.yaml").write_text(yaml.safe_dump(PUBLIC["hf_mixtral_8x7b"], sort_keys=False))
    written = read_written_layout("conf.yaml")
    assert written.training_fields == {"expert_capacity_factor": 2.0}
    assert written.left_out[:4] == (
        "seed",
        "trainer.max_steps",
        "trainer.gradient_clip_val",
        "exp_manager.resume_if_exists",
    )
    assert {"data.train_dir", "model.optim.lr", "model.moe.router_aux_loss_coef", "compiler_flags"} < {
        *written.left_out
    }
    layout = ("distributed_strategy.", "data.global", "model.num_layers", "model.fusions.flash")
    assert not [key for key in written.left_out if key.startswith(layout)]


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("form", FORMS)
def test_round_trip_of_the_published_layouts(name: str, form: str) -> None:
    plan = published_plans()[name]
    given = {"model": plan.model.name, "instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    if form == "torchtitan" and plan.model.name not in BASES:
        with pytest.raises(AutoshardError, match=f"^torchtitan's registries have no {plan.model.name}; known: "):
            export(plan, form)
        return
    found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given)
    expected: dict[str, Any] = {
        "attention_kernel": plan.strategy.attention_kernel,
        "recompute": (plan.strategy.recompute_name,),
    }
    if form == "nxdt":
        expected["recompute"] = (as_nxdt_runs(plan).strategy.recompute_name,)
    if form.startswith("torchtitan"):  # it says neither the kernel nor which part of a block selective mode recomputes
        expected["attention_kernel"] = "flash"
        if expected["recompute"] == ("core_attention",):
            expected["recompute"] = ("core_attention+mlp",)
    ring: dict[str, Any] = {"context_parallel": "zigzag_ring"} if plan.strategy.cp > 1 and form != "nxdt" else {}
    assert found.strategy == replace(plan.strategy, **expected, **ring)
    assert (found.model, found.cluster) == (plan.model, plan.cluster)
    assert (found.training.sequence_length, found.training.global_batch_size) == (
        plan.training.sequence_length,
        plan.training.global_batch_size,
    )


@pytest.mark.parametrize("name", ["mixtral-8x22b", "qwen2-57b-a14b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("form", ["megatron", "torchtitan-toml"])
def test_round_trip_of_mixtures(name: str, form: str) -> None:
    """Experts' width, their number, a shared expert: Megatron's arguments alone say which model it is."""
    plan = mixture_plan(name)
    given = {"instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    if form.startswith("torchtitan"):
        given["model"] = name
    found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given)
    assert found.model == plan.model
    assert (found.strategy.ep, found.strategy.stage_layers) == (8, plan.strategy.stage_layers)


@pytest.mark.parametrize("form", FORMS)
def test_round_trip_of_uneven_and_interleaved_stages(form: str) -> None:
    uneven = changed(plan_70b(), stage_layers=(8, 10, 10, 11, 11, 11, 10, 9))
    interleaved = changed(plan_70b(), schedule="interleaved", num_virtual_stages=2, stage_layers=(5,) * 16)
    for plan in (uneven, interleaved):
        given = {"model": "llama3-70b", "instance": "trn1.32xlarge", "nodes": 16}
        found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given).strategy
        assert (found.stage_layers, found.num_virtual_stages, found.schedule) == (
            plan.strategy.stage_layers,
            plan.strategy.num_virtual_stages,
            plan.strategy.schedule,
        )


def test_lnc_and_trn2_round_trip() -> None:
    plan = changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)
    found = imported(export(plan, "nxdt").text, model="llama3-70b")
    assert inputs(found) == inputs(as_nxdt_runs(plan))


def test_megatrons_notation_of_stages() -> None:
    assert layout_layers("Et*3|(t|)*2t*4L") == (3, 1, 1, 4)
    assert layout_layers("E,t*2|tt|tL") == (2, 2, 1)
    for wrong in ("x", "", "t" * 600):
        with pytest.raises(AutoshardError, match="one reads"):
            layout_layers(wrong)


def test_nxds_even_cut_gives_the_remainder_to_the_last() -> None:
    assert auto_partition(126, 32) == (3, 3, *[4] * 30)


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(priced(published_plans()["hf_llama3_8B"]), "plan.json")
    assert main(["export", "plan.json", "--to", "nxdt", "--out", "conf.yaml"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "wrote conf.yaml\n"
    assert shown.err.startswith("not carried over: model.model_config=config.json: ")
    assert main(["import", "conf.yaml", "--out", "again.json"]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "wrote again.json: llama3-8b on 4 x trn1.32xlarge, tp=32 pp=1 dp=4 mbs=1 recompute=none\n"
        "next: autoshard explain again.json\n"
    )
    assert "not in a plan: model: model_config\n" in shown.err
    assert "note: imported: NxDT configuration\n" in shown.err
    assert read_plan("again.json").strategy == as_nxdt_runs(read_plan("plan.json")).strategy
    assert main(["export", "plan.json", "--to", "megatron"]) == 0
    assert capsys.readouterr().out.startswith("# llama3-8b on 4 x trn1.32xlarge, tp=32 pp=1")
    Path("recipe.yaml").write_text("model: llama3-8b\n")
    assert main(["import", "recipe.yaml"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: recipe.yaml is a recipe: autoshard plan --config recipe.yaml reads it\n"
    )


@pytest.mark.parametrize(
    ("form", "zero"), [("megatron", 2), ("megatron", 3), ("torchtitan-toml", 3), ("torchtitan-toml", 0)]
)
def test_stages_of_zero_there_and_back(form: str, zero: int) -> None:
    plan = mixture_plan("mixtral-8x7b")
    plan = replace(plan, strategy=replace(plan.strategy, ep=1, zero=zero))  # torchtitan spreads experts over shards
    given = {"model": "mixtral-8x7b", "instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    assert imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given).strategy.zero == zero
