"""Plans in the words of NxD Training, torchtitan and Megatron-LM, there and back; the shapes of the public files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.cli import main
from autoshard.commands.import_ import imported_plan
from autoshard.errors import AutoshardError
from autoshard.interop.export import FORMS, export
from autoshard.interop.megatron import layout_layers
from autoshard.interop.nxdt import auto_partition
from autoshard.interop.written_layout import read_written_layout
from autoshard.layout.plan import Plan, make_plan
from autoshard.layout.plan_json import write_plan
from autoshard.layout.prices import priced
from autoshard.layout.validate import read_plan
from autoshard.models.registry import load_model
from tests.unit.plan_examples import by_hand, plan_70b, plan_interleaved, plan_mixtral
from tests.unit.published_plans import published_plans
from tests.unit.test_nxd_configuration import changed

KEYS = set((Path(__file__).parents[1] / "golden" / "nxdt_yaml_keys.txt").read_text().splitlines())  # fmt: skip
SUFFIX = {"nxdt": "yaml", "torchtitan": "toml", "megatron": "sh"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def public(
    nodes: int, degrees: dict[str, int], model: dict[str, Any], name: str = "hf_llama", batch: int = 1024
) -> dict[str, Any]:
    """The keys of the configurations that AWS publishes (examples/conf of NxD Training), paths among them."""
    return {
        "name": name,
        "model_source": "hf",
        "seed": 1234,
        "trainer": {"devices": 32, "num_nodes": nodes, "max_steps": 30000, "gradient_clip_val": 1.0},
        "exp_manager": {
            "resume_if_exists": True,
            "checkpoint_callback_params": {
                "model_parallel_size": "${multiply:${distributed_strategy.tensor_model_parallel_size}, 8}"
            },
        },
        "distributed_strategy": {
            "virtual_pipeline_model_parallel_size": 1,
            "zero1": True,
            "sequence_parallel": True,
            **degrees,
        },
        "data": {"micro_batch_size": 1, "global_batch_size": batch, "train_dir": "/data/wikicorpus"},
        "model": {"model_config": "/data/config.json", "optim": {"name": "adamw", "lr": 1.5e-5}, **model},
        "precision": {"type": "mixed_precision", "master_weights": False, "xla_downcast_bf16": "0"},
        "compiler_flags": "--model-type transformer",
    }


def sizes(layers: int, hidden: int, length: int, positions: object, theta: float | None, **more: Any) -> dict[str, Any]:
    rope = {} if theta is None else {"rope_theta": theta}
    return {
        "encoder_seq_length": length,
        "max_position_embeddings": positions,
        "num_layers": layers,
        "hidden_size": hidden,
        **rope,
        **more,
    }


def recompute(granularity: str, modules: list[str] | None, flash: bool, **more: bool) -> dict[str, Any]:
    return {
        "activations_checkpoint_granularity": granularity,
        "activations_checkpoint_recompute": modules,
        "fusions": {"softmax": True, "flash_attention": flash, **more},
    }


def tp_pp(tp: int, pp: int, **more: int) -> dict[str, int]:
    return {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, **more}


BOTH, FOLLOWS = ["CoreAttention", "LlamaMLP"], "${.encoder_seq_length}"
PUBLIC: dict[str, dict[str, Any]] = {
    "hf_llama3_70B": public(
        16,
        tp_pp(32, 8, kv_replicator=4),
        {**sizes(80, 8192, 8192, 8192, 5e5, qkv_linear=True, fuse_qkv=True), **recompute("selective", BOTH, True)},
    ),
    "hf_llama3.1_70B": public(
        32,
        tp_pp(32, 8, kv_replicator=4),
        {**sizes(80, 8192, 8192, 131072, 5e5, qkv_linear=True), **recompute("selective", BOTH, True)},
    ),
    "hf_llama3_8B": public(
        4,
        tp_pp(32, 1, kv_replicator=4),
        {**sizes(32, 4096, 8192, 8192, 5e5), **recompute("selective", ["CoreAttention"], True)},
    ),
    "hf_llama_7B": public(
        1,
        tp_pp(8, 1, kv_replicator=1),
        {**sizes(32, 4096, 4096, FOLLOWS, None), **recompute("selective", ["CoreAttention"], False)},
    ),
    "hf_mixtral_8x7b": public(
        8,
        tp_pp(32, 4, expert_model_parallel_size=1),
        {
            **sizes(32, 4096, 4096, FOLLOWS, 1e6),
            **recompute("full", None, False),
            "moe": {"num_experts": 8, "top_k": 2, "capacity_factor": 2.0, "router_aux_loss_coef": 0.02},
        },
        "hf_mixtral",
        128,
    ),
    "hf_llama3_70B_CP": public(
        16,
        tp_pp(32, 8, context_parallel_size=2, kv_replicator=4),
        {**sizes(80, 8192, 8192, 8192, 5e5), **recompute("selective", BOTH, False, ring_attention=True)},
    ),
}
"""The six published layouts as their files have them (the 7B with its 32 blocks: its file has 4)."""


def imported(data: object, name: str = "conf.yaml", **given: Any) -> Plan:
    text = data if isinstance(data, str) else yaml.safe_dump(data)
    Path(name).write_text(text)
    return imported_plan(name, read_written_layout(name), given)


def inputs(plan: Plan) -> tuple[object, ...]:
    return plan.model, plan.cluster, plan.strategy, replace(plan.training, expert_capacity_factor=1.0)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_files_are_the_published_layouts(name: str) -> None:
    given = {"model": "llama2-7b"} if name == "hf_llama_7B" else {}
    plan = imported(PUBLIC[name], **given)
    assert inputs(plan) == inputs(published_plans()[name])
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


def test_the_files_own_number_of_blocks_stands() -> None:
    """The public 7B file trains four blocks."""
    data = {**PUBLIC["hf_llama_7B"], "model": {**PUBLIC["hf_llama_7B"]["model"], "num_layers": 4}}
    plan = imported(data, model="llama2-7b")
    assert (plan.model.num_hidden_layers, plan.strategy.stage_layers) == (4, (4,))
    assert "4 blocks, as the file says, where llama2-7b has 32" in plan.notes


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("form", FORMS)
def test_round_trip_of_the_published_layouts(name: str, form: str) -> None:
    plan = published_plans()[name]
    given = {"model": plan.model.name, "instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given)
    expected: dict[str, Any] = {
        "attention_kernel": plan.strategy.attention_kernel,
        "recompute": (plan.strategy.recompute_name,),
    }
    if form == "torchtitan":  # it says neither the kernel nor which part of a block selective mode recomputes
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


def mixture_plan(name: str) -> Plan:
    mixture, model = plan_mixtral(), load_model(name)
    layers = model.num_hidden_layers
    chosen = replace(mixture.strategy, tp=2, pp=4, dp=32, ep=8, stage_layers=(layers // 4,) * 4)
    cost = by_hand(model, mixture.training, mixture.cluster, chosen)
    return make_plan(model, mixture.training, mixture.cluster, "torch", chosen, cost)


def test_orders_of_axes_in_other_words() -> None:
    """Megatron has two of them, --use-tp-pp-dp-mapping the one with dp outermost; torchtitan and NxD Training one."""
    plan = mixture_plan("mixtral-8x22b")
    outside = replace(plan.strategy, ep=1, axis_order=("dp", "pp", "cp", "tp"))
    text = export(replace(plan, strategy=outside), "megatron").text
    assert "--use-tp-pp-dp-mapping" in text and "--use-tp-pp-dp-mapping" not in export(plan, "megatron").text
    given = {"instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    assert imported(text, "train.sh", **given).strategy.axis_order == ("dp", "pp", "cp", "tp")
    assert imported(export(plan, "megatron").text, "train.sh", **given).strategy.axis_order == ("pp", "dp", "cp", "tp")
    inside = replace(plan, strategy=replace(outside, axis_order=("cp", "pp", "dp", "tp")))
    told = {form: export(inside, form).left_out for form in ("megatron", "torchtitan", "nxdt")}
    assert "axis_order=cp-pp-dp-tp: Megatron's is pp-dp-cp-tp or dp-pp-cp-tp" in told["megatron"]
    assert "axis_order=cp-pp-dp-tp: torchtitan's is pp-dp-cp-tp" in told["torchtitan"]
    assert any("NxD builds its groups in the order pp-dp-cp-tp alone" in one for one in told["nxdt"])


@pytest.mark.parametrize("name", ["mixtral-8x22b", "qwen2-57b-a14b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("form", ["megatron", "torchtitan"])
def test_round_trip_of_mixtures(name: str, form: str) -> None:
    """Experts' width, their number, a shared expert: Megatron's arguments alone say which model it is."""
    plan = mixture_plan(name)
    given = {"instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    if form == "torchtitan":
        given["model"] = name
    found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given)
    assert found.model == plan.model
    assert (found.strategy.ep, found.strategy.stage_layers) == (8, plan.strategy.stage_layers)


def test_mixtures_in_megatrons_words() -> None:
    def text(name: str) -> str:
        return export(mixture_plan(name), "megatron").text

    qwen2 = text("qwen2-57b-a14b")
    assert "--moe-shared-expert-intermediate-size 20480 --moe-shared-expert-gate" in qwen2
    assert "--moe-ffn-hidden-size 2560 " in qwen2
    assert "--moe-router-pre-softmax" in qwen2, "its weights of the top k are not normalized again"
    mixtral = text("mixtral-8x7b")
    assert "--num-experts 8 --moe-router-topk 2" in mixtral
    assert "shared" not in mixtral
    assert "pre-softmax" not in mixtral


def test_folded_groups_are_priced_but_no_plan() -> None:
    """The public 70B on trn2 at lnc 2 with tp=32: NxD's groups there are rows 0 and 3, and rows 1 and 2, of a node."""
    data = json.loads(json.dumps(PUBLIC["hf_llama3.1_70B"]))
    data["trainer"].update(devices=64, lnc=2, num_nodes=8)
    with pytest.raises(AutoshardError) as error:
        imported(data)
    assert str(error.value) == (
        "tp=32 is not a group of trn2.48xlarge at lnc 2; degrees that are: 1, 4, 16, 64 (NxD folds these groups over "
        "the rows of a node; with dp > 1 it then sums gradients of different shards, or with zero1 leaves model files "
        "out of its checkpoints); autoshard score conf.yaml prices it"
    )


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
    assert inputs(found) == inputs(plan)


def paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_key_that_is_written_is_one_of_nxdts() -> None:
    for plan in (*published_plans().values(), changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)):
        values = yaml.safe_load(export(plan, "nxdt").text)
        assert {*paths(values)} <= KEYS


def test_every_key_that_a_layout_determines_is_written() -> None:
    both = ("hf_llama3_70B_CP", "hf_mixtral_8x7b")
    written = {key for name in both for key in paths(yaml.safe_load(export(published_plans()[name], "nxdt").text))}
    strategy = {key for key in KEYS if key.startswith("distributed_strategy.")}
    assert strategy - written == {"distributed_strategy.token_shuffle_group_size"}
    assert {key for key in KEYS if "checkpoint_" in key and key.startswith("model.activations")} <= written
    assert {"trainer.devices", "trainer.num_nodes", "model.pipeline_cuts", "precision.type"} <= written


def test_what_cannot_be_carried_over_is_listed() -> None:
    assert export(published_plans()["hf_llama3_70B_CP"], "nxdt").left_out == (
        "model.model_config=config.json: NxD Training reads the model's other sizes from the file named there",
        "cp=2: NxD's optimizer checkpoints overwrite each other; a resumed run continues wrongly",
        "kv_replicator=4: NxD's gradient norm counts key-value weights that often, so gradient_clip_val sets in early",
    )
    plain = changed(plan_70b(), tp=8, dp=8, attention_kernel="plain", recompute="none", schedule="gpipe")
    found = " ".join(export(plain, "nxdt").left_out)
    assert "recompute=none: without flash attention NxD Training recomputes core attention all the same" in found
    assert "schedule=gpipe: NxD runs 1f1b instead" in found
    assert any("expert_capacity_factor=1" in one for one in export(plan_mixtral(), "torchtitan").left_out)
    assert "instance=trn1.32xlarge: Megatron-LM runs on GPUs" in export(plan_mixtral(), "megatron").left_out
    assert export(plan_interleaved(), "nxdt").left_out[-1] == "instance=cpu: NxD Training runs on Trainium"


def test_megatrons_notation_of_stages() -> None:
    assert layout_layers("Et*3|(t|)*2t*4L") == (3, 1, 1, 4)
    assert layout_layers("E,t*2|tt|tL") == (2, 2, 1)
    for wrong in ("x", "", "t" * 600):
        with pytest.raises(AutoshardError, match="one reads"):
            layout_layers(wrong)


def test_nxds_even_cut_gives_the_remainder_to_the_last() -> None:
    assert auto_partition(126, 32) == (3, 3, *[4] * 30)


@pytest.mark.parametrize(
    ("change", "given", "text"),
    [
        ({"num_layers": 31}, {}, "conf.yaml does not say which model of those built in it is for; --model does"),
        (
            {},
            {"model": "llama3-70b"},
            "conf.yaml has hidden_size=4096, but llama3-70b has 8192: another model",
        ),
        ({}, {"backend": "nxd", "nodes": 3}, "dp=3 x microbatch_size=1 must divide global_batch_size=1024"),
    ],
)
def test_errors(change: dict[str, Any], given: dict[str, Any], text: str) -> None:
    data = {**PUBLIC["hf_llama3_8B"], "model": {**PUBLIC["hf_llama3_8B"]["model"], **change}}
    with pytest.raises(AutoshardError) as error:
        imported(data, **given)
    assert str(error.value) == text


def test_models_that_nxdt_has_not() -> None:
    plan = plan_70b()
    with pytest.raises(AutoshardError, match=r"^model_type=qwen3 of q has no NxD Training model that a plan can be"):
        export(replace(plan, model=replace(plan.model, model_type="qwen3", name="q")), "nxdt")
    own = replace(plan.training, precision=replace(plan.training.precision, name="mine"))
    with pytest.raises(
        AutoshardError, match=r"^precision mine is unknown to NxD Training; mixed_precision, bf16_sr, fp"
    ):
        export(replace(plan, training=own), "nxdt")


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(priced(published_plans()["hf_llama3_8B"]), "plan.json")
    assert main(["export", "plan.json", "--to", "nxdt", "--out", "conf.yaml"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "wrote conf.yaml\n"
    assert shown.err.startswith("not carried over: model.model_config=config.json: ")
    assert main(["import", "conf.yaml", "--out", "again.json"]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "wrote again.json: llama3-8b on 4 x trn1.32xlarge, tp=32 pp=1 dp=4 mbs=1 recompute=core_attention\n"
        "next: autoshard explain again.json\n"
    )
    assert "not in a plan: model: model_config\n" in shown.err
    assert "note: imported: NxDT configuration\n" in shown.err
    assert read_plan("again.json").strategy == read_plan("plan.json").strategy
    assert main(["export", "plan.json", "--to", "megatron"]) == 0
    assert capsys.readouterr().out.startswith("# llama3-8b on 4 x trn1.32xlarge, tp=32 pp=1")
    Path("recipe.yaml").write_text("model: llama3-8b\n")
    assert main(["import", "recipe.yaml"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: recipe.yaml is a recipe: autoshard plan --config recipe.yaml reads it\n"
    )


@pytest.mark.parametrize(("form", "zero"), [("megatron", 2), ("megatron", 3), ("torchtitan", 3), ("torchtitan", 0)])
def test_stages_of_zero_there_and_back(form: str, zero: int) -> None:
    plan = mixture_plan("mixtral-8x7b")
    plan = replace(plan, strategy=replace(plan.strategy, zero=zero))
    given = {"model": "mixtral-8x7b", "instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    assert imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given).strategy.zero == zero
