"""`autoshard score`: layouts in five formats, legal or not, beside the best."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import autoshard
from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.interface.questions import Score
from autoshard.interop.read_layout import read_written_layout
from autoshard.interop.written_layout import WrittenLayout
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.search import search
from autoshard.planner.written import read_written
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.rounding import rounded
from autoshard.plans.search_result import Candidate
from autoshard.plans.validate import read_plan
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.unit.megatron_flags import DROPS_NOTHING
from tests.unit.plan_examples import plan_70b
from tests.unit.written_files import DROPLESS, PUBLIC, UNNAMED

RECIPES = Path(__file__).parents[2] / "recipes"
NXDT = """\
name: hf_llama
trainer: {devices: 32, num_nodes: 16, gradient_clip_val: 1.0}
distributed_strategy:
  tensor_model_parallel_size: 32
  pipeline_model_parallel_size: 8
  virtual_pipeline_model_parallel_size: 1
  zero1: True
  sequence_parallel: True
  kv_replicator: 4
data: {micro_batch_size: 1, global_batch_size: 1024, seq_length: "${model.encoder_seq_length}"}
model:
  model_config: /home/ubuntu/config.json
  encoder_seq_length: 8192
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 80
  hidden_size: 8192
  activations_checkpoint_granularity: selective
  activations_checkpoint_recompute: [CoreAttention, LlamaMLP]
  fusions: {softmax: True, flash_attention: True}
precision: {type: mixed_precision}
"""
MEGATRON = r"""
#!/bin/bash
torchrun --nnodes 16 --nproc_per_node=32 pretrain_gpt.py \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --tensor-model-parallel-size 32 --pipeline-model-parallel-size 8 \
    --sequence-parallel --use-distributed-optimizer --num-layers-per-virtual-pipeline-stage 5 --micro-batch-size 1 \
    --global-batch-size=1024 --seq-length 8192 --recompute-granularity full --recompute-method uniform --bf16 # usual
"""
TITAN = """\
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 8
pipeline_parallel_schedule = "1F1B"
[activation_checkpoint]
mode = "full"
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def scored(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["score", *arguments, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def written(name: str, text: str) -> str:
    """The file's name. A script of Megatron's drops nothing unless its text says so."""
    more = f" {DROPS_NOTHING}" if name.endswith(".sh") and "dropout" not in text else ""
    Path(name).write_text(text + more)
    return name


def test_a_recipe_with_all_pins(capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, str(RECIPES / "llama3_70b_trn1_16nodes.yaml"))
    assert found["form"] == "recipe" and found["broken"] == [] and found["fits"] is True
    own, best = found["estimate"], found["best"]["estimate"]
    assert own["step_time_s"] > best["step_time_s"]
    assert own["time_terms"].keys() == best["time_terms"].keys()
    plan = plan_70b()
    result = search(plan.model, plan.training, load_cluster("trn1.32xlarge", 16), top=0)
    assert found["best"]["strategy"] == to_json(result.best.strategy)


def test_the_same_layout_in_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = scored(capsys, str(RECIPES / "llama3_70b_trn1_16nodes.yaml"))
    nxdt = scored(capsys, written("nxdt.yaml", NXDT), "--model", "llama3-70b")
    again = {*recipe["strategy"].pop("recompute")}, {*nxdt["strategy"].pop("recompute")}
    assert again == ({"core_attention+mlp"}, {"mlp"}), "NxD Training has a kernel in the place of CoreAttention"
    assert nxdt["strategy"] == recipe["strategy"]
    recipe["strategy"]["recompute"] = ["core_attention+mlp"] * 8
    assert nxdt["form"] == "NxDT configuration"
    mutable = json.loads(plan_to_json(plan_70b()))
    mutable["strategy"] = recipe["strategy"]
    plan = scored(capsys, written("plan.json", json.dumps(mutable)))
    assert plan["form"] == "plan" and plan["estimate"] == recipe["estimate"]
    assert plan["notes"][0].startswith("other readers refuse the file: recompute lacks 'core_attention+mlp'; ")


def test_megatron_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, written("train.sh", MEGATRON), "--model", "llama3-70b")
    strategy = found["strategy"]
    names = ("tp", "pp", "dp", "num_virtual_stages", "schedule", "recompute", "sequence_parallel", "zero")
    assert [strategy[name] for name in names] == [32, 8, 2, 2, "interleaved", ["full"] * 16, True, 1]
    assert found["estimate"] and found["broken"] == []


def test_torchtitan(capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, written("train.toml", TITAN), "--nodes", "16")
    assert found["model"] == "llama3-70b" and found["backend"] == "torch"
    strategy = found["strategy"]
    assert [strategy[name] for name in ("tp", "pp", "dp", "microbatch_size", "recompute")] == [8, 8, 8, 1, ["full"] * 8]
    assert found["estimate"]["tokens_per_s"] == pytest.approx(2 * 8 * 8192 / found["estimate"]["step_time_s"], rel=1e-4)
    assert any("ZeRO-1" in note for note in found["notes"])


def test_a_recipe_with_open_choices_is_completed_by_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, written("r.yaml", "model: llama3-8b\nnodes: 4\ntp: 32\n"))
    assert found["strategy"]["tp"] == 32 and found["broken"] == [] and found["fits"] is True


@pytest.mark.parametrize(
    ("recipe", "chunks"),
    [
        ("model: falcon-h1-7b\nnodes: 4\ntp: 2\n", 1),  # NxD has no layers for it
        ("model: llama3.2-1b\nseq_len: 32768\ntp: 2\ncp: 1\n", 64),  # fits by torch alone, with the loss in chunks
    ],
)
def test_a_backend_that_a_recipe_leaves_open_is_the_one_that_plan_takes(
    recipe: str, chunks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = scored(capsys, written("r.yaml", recipe))
    assert found["broken"] == [] and found["fits"] is True
    assert any(note.startswith("backend torch, because nxd has no") for note in found["notes"])
    assert any(note.startswith("loss in 64 chunks: ") for note in found["notes"]) is (chunks == 64)
    planned = autoshard.plan(**yaml.safe_load(recipe), top=0)
    assert planned.backend == "torch" and planned.training.loss_chunks == chunks
    assert found["estimate"]["step_time_s"] == pytest.approx(planned.step_time_s, rel=1e-4)


def test_what_breaks_rules_and_memory_has_a_price_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    text = "model: llama3-70b\nnodes: 16\ntp: 4\npp: 2\ndp: 64\nmicro_batch: 4\nrecompute: none\n"
    found = scored(capsys, written("r.yaml", text))
    assert found["broken"] == ["tp=4 is not a group of trn1.32xlarge at lnc 1; degrees that are: 1, 2, 8, 32"]
    assert found["fits"] is False and found["estimate"]["step_time_s"] > 0
    assert main(["score", "r.yaml"]) == 0
    page = capsys.readouterr().out
    assert "  breaks  tp=4 is not a group of trn1.32xlarge at lnc 1; degrees that are: 1, 2, 8, 32\n" in page
    joined = " ".join(page.split())
    assert " a device: does not fit, " in joined and " too much; the best fits with " in joined


def best_of(own: Score, **changes: Any) -> Score:
    """The score of a layout beside a best one with the same price but for the given changes."""
    assert own.score.estimate is not None
    layout = {name: changes.pop(name) for name in ("stage_layers",) if name in changes}
    best = Candidate(replace(own.score.strategy, **layout), replace(own.score.estimate, **changes))
    return replace(own, best=best)


def test_layouts_that_differ_in_their_cut_alone() -> None:
    own = autoshard.score("tp=8 pp=4 recompute=core_attention", "llama3-8b", nodes=4)
    assert "\n  stages " not in best_of(own).page()
    page = best_of(own, stage_layers=(9, 8, 8, 7)).page()
    ends = "; embedding on the first, head and loss on the last\n"
    assert f"\n  stages 4: 8 layers each{ends}" in page and f"\n  stages 4: layers 9 2 x 8 7{ends}" in page


def test_a_term_that_one_of_two_lacks_is_a_dash() -> None:
    own = autoshard.score("tp=32 pp=4 mbs=1 recompute=none", "llama3-70b", nodes=16)
    assert re.search(r"\n  recompute +- +~[\d.]+ s +-[\d.]+ s\n", own.page())
    assert "~0 s" not in own.page() and "us" not in own.page()


def test_a_layout_is_faster_than_the_best_because_it_fits_less_surely() -> None:
    own = autoshard.score("tp=8 pp=4 recompute=core_attention", "llama3-8b", nodes=4)
    price = own.score.estimate
    assert price is not None
    own = replace(own, score=replace(own.score, estimate=replace(price, fits_probability=0.55)))
    slower = {"step_time_s": price.step_time_s / 0.9, "fits_probability": 0.98}
    page = " ".join(best_of(own, **slower).page().split())
    assert "so this one is 10.0% faster, but the best is of those that fit with 90.0 % probability" in page
    assert " a device: fits with 55.0 % probability; the best fits with 98.0 % " in page
    page = " ".join(best_of(own, **slower | {"fits_probability": 0.5}).page().split())
    assert "so this one is 10.0% faster term" in page


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            "tp=8 recompute=by-stage",
            (
                "the layout has recompute=by-stage, which does not say what each stage recomputes; give one set for "
                "all stages, such as recompute=full, or one for runs of stages, such as recompute=full*1,none*3"
            ),
        ),
        (
            "tp=8 pp=4 recompute=full*1,none*7",
            "recompute has 8 sets; there are 4 virtual stages",
        ),
        (
            "tp=8 recompute=full*1,none*3x",
            (
                "the layout has 'none*3x' in recompute=full*1,none*3x; give one set for all stages, such as "
                "recompute=full, or one for runs of stages, such as recompute=full*1,none*3"
            ),
        ),
        (
            f"tp=8 pp=2 recompute={','.join(['full*1,none*1'] * 40)} mbs=1",  # longer than the name of a file
            "recompute has 80 sets; there are 2 virtual stages",
        ),
        (
            "tp=8 pp=2 stages=16-",
            "the layout has stages=16-; it must be blocks of each stage, such as stages=9-8-8-7",
        ),
        ("no=such/file.yaml", "layout no=such/file.yaml does not exist"),
    ],
)
def test_words_that_are_no_layout_are_no_file(layout: str, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        autoshard.score(layout, "llama3-8b", nodes=4)
    assert str(error.value) == message


def test_the_layout_of_a_plan_in_words_is_all_of_it() -> None:
    """Sets of single stages and an uneven cut too: what is priced is what was planned."""
    plan = autoshard.plan("llama3-8b", nodes=8)
    assert plan.layout.endswith(" recompute=mlp*1,none*3 context=ring stages=8-8-9-7")
    assert plan.short_layout.endswith(" recompute=by-stage context=ring")
    found = autoshard.score(plan.layout, "llama3-8b", nodes=8)
    assert found.written.strategy == plan.strategy and found.written.notes == ()


@pytest.mark.parametrize(
    ("trainer", "tp", "machine"),
    [
        ("devices: 32, lnc: 1", 32, ("trn1.32xlarge", 1)),
        ("devices: 2", 2, ("trn1.2xlarge", 1)),
        ("devices: 8", 8, ("trn1.32xlarge", 1)),
        ("devices: 4, lnc: 2", 4, ("trn2.3xlarge", 2)),
        ("devices: 64, lnc: 2", 32, ("trn2.48xlarge", 2)),
        ("devices: 128, lnc: 1", 32, ("trn2.48xlarge", 1)),
    ],
)
def test_the_machine_of_an_nxdt_configuration_follows_from_its_devices(
    trainer: str, tp: int, machine: tuple[str, int]
) -> None:
    text = NXDT.replace("devices: 32, num_nodes: 16", f"{trainer}, num_nodes: 1")
    text = text.replace("tensor_model_parallel_size: 32", f"tensor_model_parallel_size: {tp}")
    Path("devices.yaml").write_text(text.replace("pipeline_model_parallel_size: 8", "pipeline_model_parallel_size: 1"))
    found = read_written("devices.yaml", {"model": "llama3-70b"})
    cluster = found.problem.cluster
    assert (cluster.instance, cluster.lnc) == machine
    said = "8 devices a node, as the file says; trn1.32xlarge has 32 at lnc 1, and the layout takes all of them"
    assert found.warnings == ((said,) if trainer == "devices: 8" else ())
    assert read_written("devices.yaml", {"model": "llama3-70b", "instance": "trn2.48xlarge"}).warnings == ()


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (
            {},
            (
                "the file does not say on which machine, nor on how many: 1 x trn1.32xlarge where --instance and "
                "--nodes say nothing else"
            ),
        ),
        ({"nodes": 2}, "the file does not say on which machine: trn1.32xlarge where --instance says nothing else"),
        ({"instance": "h100-80gb"}, "the file does not say on how many nodes: 1 where --nodes says nothing else"),
        ({"instance": "h100-80gb", "nodes": 1}, None),
    ],
)
def test_a_machine_that_nobody_said_is_in_a_note(given: dict[str, Any], note: str | None) -> None:
    """A file for GPUs was priced on Trainium without a word. A recipe is autoshard's own, whose defaults `plan` has."""
    Path("axolotl.yaml").write_text("base_model: meta-llama/Meta-Llama-3-8B\nmicro_batch_size: 1\nsequence_len: 4096\n")
    told = [one for one in read_written("axolotl.yaml", given).notes if one.startswith("the file does not say on ")]
    assert told == ([] if note is None else [note])
    Path("recipe.yaml").write_text("model: llama3-8b\ntp: 8\npp: 4\ncp: 1\n")
    assert read_written("recipe.yaml", given | {"nodes": 4, "recompute": "none"}).notes == ()


def test_what_has_no_order_of_work_has_no_price(capsys: pytest.CaptureFixture[str]) -> None:
    text = "model: llama3-70b\nnodes: 16\ntp: 8\npp: 64\nvpp: 2\nrecompute: none\n"
    found = scored(capsys, written("r.yaml", text))
    assert found["estimate"] is None and found["fits"] is None
    assert "pp=64 x vpp=2 is 128 stages; llama3-70b has 80 blocks" in found["broken"]
    assert main(["score", "r.yaml"]) == 0
    assert (
        "It has no price: what it breaks leaves no valid schedule of all sequences on all devices, or\n"
        "operators that it cannot shard.\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "batch", "broken"),
    [
        # one microbatch of 8 sequences would be the price of a step of 15
        ("tp=8 dp=8", 15, "dp=8 x microbatch_size=1 must divide global_batch_size=15"),
        # the peak of 64 devices under the work of 128
        ("tp=8 dp=16", 1024, "tp=8 x pp=1 x dp=16 x cp=1 is 128 devices; 2 x trn1.32xlarge has 64"),
        ("tp=8 dp=4", 1024, "tp=8 x pp=1 x dp=4 x cp=1 is 32 devices; 2 x trn1.32xlarge has 64"),
    ],
)
def test_another_batch_and_other_devices_have_no_price(words: str, batch: int, broken: str) -> None:
    found = autoshard.score(words, "llama3-8b", nodes=2, global_batch=batch).to_dict()
    assert found["broken"] == [broken] and found["estimate"] is None


@pytest.mark.parametrize("words", ["vpp=999999999", "pp=999999999 dp=1"])
def test_stages_that_nobody_can_mean_are_not_listed(words: str) -> None:
    """A billion of them took minutes, and all memory."""
    with pytest.raises(AutoshardError, match=r"^pp=\d+ x vpp=\d+ is 999999999 stages; llama3-8b has 32 blocks$"):
        autoshard.score(words, "llama3-8b", nodes=2)


@pytest.mark.parametrize("words", ["tp=8 recompute=mpl", "tp=8 recompute=mlp+router"])
def test_a_recompute_set_that_no_block_has_is_refused(words: str) -> None:
    name = "mpl" if "mpl" in words else "router"
    with pytest.raises(AutoshardError, match=rf"^{re.escape(words[5:])}: a block has no {name}; a set is none, "):
        autoshard.score(words, "llama3-8b", nodes=2)


def test_what_a_stack_cannot_run_again_is_told() -> None:
    words, instance = "tp=4 recompute=full", "trn2.48xlarge"
    found = autoshard.score(words, "llama3-8b", instance, backend="torch", stack="neuron-stages").to_dict()
    wrong = "stack=neuron-stages keeps every activation; use none, or stack=neuron-compiled"
    assert found["broken"] == [f"recompute=full: {wrong}"] and found["estimate"] is not None


def test_chunks_with_fewer_blocks_beside_embedding_and_loss_have_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    """126 blocks, the embedding and the loss are 128 parts, 2 of each chunk, as NeMo's recipes for Llama-3.1-405B."""
    sizes = "instance: h100-80gb\nnodes: 8\ntp: 8\npp: 8\nvpp: 8\nglobal_batch: 32\nrecompute: none\n"
    found = scored(capsys, written("r.yaml", f"model: llama3.1-405b\n{sizes}"))
    assert found["strategy"]["stage_layers"] == [1, *[2] * 62, 1]
    assert found["broken"] == ["pp=8 x vpp=8 must divide the 126 blocks of llama3.1-405b; vpp that fits here: 1"]
    assert found["estimate"]["step_time_s"] > 0


def test_experts_with_context_parallelism_have_no_price(capsys: pytest.CaptureFixture[str]) -> None:
    found = scored(capsys, written("r.yaml", "model: mixtral-8x7b\nnodes: 4\ntp: 8\ncp: 2\nep: 1\nbackend: torch\n"))
    assert found["estimate"] is None
    assert "cp=2 needs the experts of mixtral-8x7b split over it: ep=2 or a multiple" in found["broken"]
    model, training = load_model("mixtral-8x7b"), TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    layout = Strategy(8, 1, 8, 2, 1, 1, 1, "1f1b", ("none",), True, 1, "flash", (32,), "ring")
    message = "^cp=2 with the experts of mixtral-8x7b whole on each rank has no price$"
    with pytest.raises(AutoshardError, match=message):
        estimate(model, training, load_cluster("trn1.32xlarge", 4), layout)


def test_pipeline_cuts_name_the_last_block_of_a_stage() -> None:
    cuts = "  pipeline_cuts: ['model.layers.18', 'model.layers.39', 'model.layers.60']\nprecision:"
    Path("c.yaml").write_text(NXDT.replace("precision:", cuts))
    assert read_written_layout("c.yaml").fields["stage_layers"] == (19, 21, 21, 19)


def test_without_cuts_the_last_stages_have_a_block_more() -> None:
    """A pp of 8 cuts 83 blocks into 10 each, and 3 are left."""
    Path("c.yaml").write_text(NXDT.replace("num_layers: 80", "num_layers: 83"))
    assert read_written_layout("c.yaml").fields["stage_layers"] == (10, 10, 10, 10, 10, 11, 11, 11)


def test_a_precision_of_its_own_is_told() -> None:
    Path("c.yaml").write_text(NXDT.replace("type: mixed_precision", "type: manual"))
    found = read_written_layout("c.yaml")
    assert found.options["precision"] == "mixed_precision"
    assert "precision.type=manual is priced as mixed_precision" in found.notes


def layout(text: str, name: str = "l.yaml") -> WrittenLayout:
    return read_written_layout(written(name, text))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.yaml", "a: [", "l.yaml, line 1, column 5: not YAML: expected the node content, but found "),
        ("l.yaml", "- a", "l.yaml: it must hold named fields"),
        ("l.toml", "a = ", "l.toml: not TOML: Invalid value "),
        ("l.toml", "model = 3", "l.toml: model must be a table"),
        ("l.json", '{"a": "--b"}', "l.json: it is no configuration of DeepSpeed, the only JSON that is read; "),
        ("l.txt", "hello", "l.txt is no layout: a plan (.json), a recipe, a configuration of NxDT, "),
        ("l.txt", "--tensor-model-parallel-size x", "l.txt: --tensor-model-parallel-size is 'x'; it must be a whole "),
        ("l.txt", "--recompute-granularity some", "l.txt: --recompute-granularity is 'some'; it must be full or "),
        ("l.txt", "--a 'b", "l.txt: it is no command line: No closing quotation"),
        ("l.yaml", NXDT.replace("_size: 32", "_size: two"), "l.yaml: distributed_strategy.tensor_model_parallel_size "),
        (
            "l.yaml",
            NXDT.replace("8192\n  max", "${.encoder_seq_length}\n  max"),
            "l.yaml: model.encoder_seq_length ref",
        ),
        ("l.yaml", "distributed_strategy: 3", "l.yaml: distributed_strategy is '3'; it must hold named fields, such "),
        (
            "l.yaml",
            NXDT.replace("{softmax: True, flash_attention: True}", "True"),
            "l.yaml: model.fusions is 'True'; it must hold named fields, such as ring_attention",
        ),
        (
            "l.yaml",
            NXDT.replace("granularity: selective", "granularity: some"),
            "l.yaml: model.activations_checkpoint_granularity is 'some'; it must be full or selective",
        ),
        (
            "l.yaml",
            NXDT.replace("precision:", "  pipeline_cuts: [model.layers.18, model.norm]\nprecision:"),
            "l.yaml: model.pipeline_cuts has 'model.norm', which names no block",
        ),
        (
            "l.yaml",
            NXDT.replace("precision:", "  pipeline_cuts: [model.layers.18, model.layers.9]\nprecision:"),
            "l.yaml: model.pipeline_cuts=[18, 9] must rise and stay below 80",
        ),
        (
            "l.yaml",
            NXDT.replace("precision:", "  pipeline_cuts: model.layers.9\nprecision:").replace("num_layers: 80", ""),
            "l.yaml: model.pipeline_cuts needs model.num_layers",
        ),
    ],
)
def test_errors(name: str, text: str, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        layout(text, name)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        ([], "tp: 8\n", "r.yaml does not say which model of those built in it is for; --model does"),
        ([], "model: llama3-8b\nnodse: 4\n", "r.yaml has nodse, which is not an option of autoshard plan"),
        ([], "model: llama3-8b\ntp: two\n", "r.yaml: tp: two must be a whole number of at least 1"),
        ([], "model: llama3-8b\ntp: 3\n", "tp=3 x pp=1 x cp=1 is 3 devices, which must divide the 32 of 1 x trn1"),
    ],
)
def test_errors_of_recipes(arguments: list[str], text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", written("r.yaml", text), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"autoshard: error: {message}")


def without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoshard.interface.questions._best", lambda written, own_s: (None, ()))


SAME = {
    **{f"{name}.yaml": yaml.safe_dump(data) for name, data in {**PUBLIC, **UNNAMED}.items()},
    "train.sh": MEGATRON.replace("--hidden", "--swiglu --normalization RMSNorm --position-embedding-type rope --hidden")
    .replace("--hidden", "--disable-bias-linear --untie-embeddings-and-output-weights --hidden", 1)
    .replace("--hidden", "--max-position-embeddings 4096 --tokenizer-model llama-2 --hidden", 1),
    "experts.sh": "--hidden-size 4096 --num-experts 8 --moe-expert-capacity-factor 1.5 --micro-batch-size 2 --nnodes 2",
    "train.toml": TITAN.replace("[training]", "[training]\nsteps = 9"),
}


@pytest.mark.parametrize("name", SAME)
def test_score_and_import_give_one_file_one_price(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimate, layout and all that is trained; they differ in what they do with a layout that breaks rules."""
    without_search(monkeypatch)
    given = ["--nodes", "16"] if name == "train.toml" else []
    found = scored(capsys, written(name, SAME[name]), *given)
    assert main(["import", name, *given, "-o", "plan.json"]) == 0
    told = capsys.readouterr().err
    plan = read_plan("plan.json")
    assert (plan.model.name, to_json(plan.strategy)) == (found["model"], found["strategy"])
    assert to_json(rounded(plan.estimate)) == found["estimate"]
    assert scored(capsys, "plan.json")["estimate"] == found["estimate"]
    assert [line.removeprefix("warning: ") for line in told.splitlines() if line.startswith("warning: ")] == (
        found["warnings"]
    )
    assert all(f"note: {note}\n" in told for note in found["notes"])


def test_the_capacity_of_experts_is_in_the_price(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The public Mixtral gives an expert twice its even share: 13.7 s are 17.6 s."""
    without_search(monkeypatch)
    data = json.loads(json.dumps(PUBLIC["hf_mixtral_8x7b"]))
    twice = scored(capsys, written("c.yaml", yaml.safe_dump(data)))
    data["model"]["moe"]["capacity_factor"] = 1.0
    once = scored(capsys, written("c.yaml", yaml.safe_dump(data)))
    assert twice["warnings"] == once["warnings"] == []
    assert twice["estimate"]["step_time_s"] > 1.2 * once["estimate"]["step_time_s"]


DROPLESS_WARNING = (
    "experts without a capacity factor (dropless): priced as if each got its even share of tokens (capacity factor 1); "
    "a plan drops what is over it"
)
PLAIN = "priced as plain training on global_batch_size sequences"
DPO = f"{PLAIN}; DPO runs a chosen and a rejected one for each, and before that the reference model"
ORPO = f"{PLAIN}; ORPO runs a chosen and a rejected one for each"
KEEPS_ALL = '[activation_checkpoint]\nmode = "none"\n'
FLOAT8 = "priced in bf16; products of matrices take less time in"


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"model_alignment_strategy": {"dpo": {"kl_beta": 0.01}}}, f"model_alignment_strategy.dpo: {DPO}"),
        ({"model_alignment_strategy": {"orpo": {"beta": 0.1}}}, f"model_alignment_strategy.orpo: {ORPO}"),
        ({"moe": DROPLESS}, DROPLESS_WARNING),
        (
            {"moe": {"num_experts": 8, "top_k": 2, "capacity_factor": 1.0, "routing_algorithm": "sinkhorn"}},
            "model.moe.routing_algorithm=sinkhorn is priced as top_k",
        ),
        ({"optim": {"name": "sgd"}}, "model.optim.name=sgd is priced as AdamW, with two moments"),
        (
            {"attention_dropout": 0.1},
            "model.attention_dropout=0.1: dropout is not in the price; --dropout puts it there, with backend torch",
        ),
    ],
)
def test_what_matters_and_has_no_price_is_warned_of(change: dict[str, Any], warning: str) -> None:
    data = json.loads(json.dumps(PUBLIC["hf_mixtral_8x7b" if "moe" in change else "hf_llama3_8B"]))
    (data if "model_alignment_strategy" in change else data["model"]).update(change)
    found = read_written(written("c.yaml", yaml.safe_dump(data)), {})
    assert found.warnings == (warning,)
    assert found.not_priced == ()


@pytest.mark.parametrize(
    ("section", "change", "warning"),
    [
        (
            "distributed_strategy",
            {"token_shuffle_group_size": 4},
            "distributed_strategy.token_shuffle_group_size=4: the exchange of tokens is not in the price",
        ),
        (
            "precision",
            {"type": "mixed_precision", "parallel_layers_reduce_dtype": "fp32"},
            "precision.parallel_layers_reduce_dtype=fp32: tensor-parallel sums are priced in bf16",
        ),
        ("precision", {"type": "fp32", "parallel_layers_reduce_dtype": "fp32"}, None),
    ],
)
def test_what_other_sections_say_and_has_no_price(section: str, change: dict[str, Any], warning: str | None) -> None:
    data = json.loads(json.dumps(PUBLIC["hf_llama3_8B"]))
    data[section].update(change)
    warnings = read_written_layout(written("c.yaml", yaml.safe_dump(data))).warnings
    assert warnings == (() if warning is None else (warning,))


@pytest.mark.parametrize(
    ("copies", "fused", "warnings"),
    [
        (4, True, ()),  # 8 key-value heads fill tp=32
        (8, True, ("kv_replicator: 8: priced with 4, the fewest copies of a key-value head that fill tp",)),
        (8, False, ()),  # NxD Training then does not read it
    ],
)
def test_copies_of_key_value_heads_are_compared(copies: int, fused: bool, warnings: tuple[str, ...]) -> None:
    data = json.loads(json.dumps(PUBLIC["hf_llama3_70B"]))
    assert data["distributed_strategy"]["tensor_model_parallel_size"] == 32
    data["distributed_strategy"]["kv_replicator"] = copies
    data["model"]["qkv_linear"] = fused
    assert read_written(written("c.yaml", yaml.safe_dump(data)), {}).warnings == warnings


@pytest.mark.parametrize(
    ("name", "text", "warnings"),
    [
        (
            "a.sh",
            "--tensor-model-parallel-size 1 --bf16 --fp8-format hybrid",
            [f"--fp8-format hybrid: {FLOAT8} fp8, which --precision fp8 prices"],
        ),
        (
            "e.sh",
            "--tensor-model-parallel-size 1 --hidden-dropout 0.1 --attention-dropout 0.0",
            ["--hidden-dropout 0.1: dropout is not in the price; --dropout puts it there, with backend torch"],
        ),
        (
            "g.sh",
            "--tensor-model-parallel-size 1 --bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
            [f"--fp8-format e4m3: {FLOAT8} mxfp8, which --precision mxfp8 prices"],
        ),
        (
            "h.sh",
            "--tensor-model-parallel-size 1 --bf16 --fp4-format e2m1",
            [f"--fp4-format e2m1: {FLOAT8} nvfp4, which --precision nvfp4 prices"],
        ),
        (
            "c.toml",
            '[model]\nconverters = ["quantize.linear.mx"]\n' + KEEPS_ALL,
            [f"model.converters has quantize.linear.mx: {FLOAT8} mxfp8, which --precision mxfp8 prices"],
        ),
        (
            "b.sh",
            "--tensor-model-parallel-size 1 --optimizer sgd",
            ["--optimizer sgd is priced as AdamW, with two moments"],
        ),
        (
            "f.sh",
            "--moe-shared-expert-intermediate-size 20480 --moe-expert-capacity-factor 1",
            ["--moe-shared-expert-intermediate-size without --moe-shared-expert-gate is priced with the gate"],
        ),
        ("c.sh", "--num-experts 8 --tensor-model-parallel-size 1", [DROPLESS_WARNING]),
        (
            "i.sh",
            "--num-experts 8 --moe-expert-capacity-factor 1 --moe-router-load-balancing-type sinkhorn",
            ["--moe-router-load-balancing-type sinkhorn is priced as a top-k router"],
        ),
        (
            "d.sh",
            "--num-experts 8 --moe-expert-capacity-factor 1 --expert-tensor-parallel-size 2",
            ["--expert-tensor-parallel-size 2: experts are priced with tp=1, as the rest"],
        ),
        (
            "a.toml",
            '[model]\nconverters = ["quantize.linear.float8", "other"]\n' + KEEPS_ALL,
            [
                f"model.converters has quantize.linear.float8: {FLOAT8} fp8, which --precision fp8 prices",
                "model.converters has other: it is not in the price",
            ],
        ),
        (
            "b.toml",
            '[training]\nmixed_precision_param = "float16"\n' + KEEPS_ALL,
            ["training.mixed_precision_param='float16' is priced as bfloat16"],
        ),
        (
            "d.toml",
            '[optimizer]\nname = "SGD"\n' + KEEPS_ALL,
            ["optimizer.name=SGD is priced as AdamW, with two moments"],
        ),
        (
            "e.toml",
            "[training]\nenable_cpu_offload = true\n" + KEEPS_ALL,
            ["training.enable_cpu_offload: copies to and from the host are not in the price"],
        ),
        (
            "f.toml",
            "[lora]\nrank = 8\n" + KEEPS_ALL,
            ["lora.target_modules: no adapters are priced beside 'output'"],
        ),
    ],
)
def test_other_formats_warn_too(name: str, text: str, warnings: list[str]) -> None:
    models = {"--num-experts": "mixtral-8x7b", "--moe-shared": "qwen2-57b-a14b"}
    model = next((model for flag, model in models.items() if text.startswith(flag)), "llama3-8b")
    found = read_written(written(name, text), {"model": model, "nodes": 2, "instance": "b200-180gb"})
    assert list(found.warnings) == warnings


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("enable_sequence_parallel = 'False'", "true or false"),
        ("enable_sequence_parallel = 1", "true or false"),
        ("fsdp_reshard_after_forward = 'sometimes'", "one of default, always, never"),
        ("fsdp_reshard_after_forward = true", "one of default, always, never"),
        ("context_parallel_degree = 2\ncontext_parallel_rotate_method = 'ring'", "allgather or alltoall"),
    ],
)
def test_words_that_torchtitan_has_not_are_refused(setting: str, allowed: str) -> None:
    """They are not taken for one that it has."""
    key, value = setting.rpartition("\n")[2].split(" = ")
    with pytest.raises(AutoshardError) as error:
        read_written(written("a.toml", f"[parallelism]\n{setting}\n"), {"model": "llama3-8b"})
    shown = value.replace("true", "True")
    assert str(error.value) == f"a.toml: parallelism.{key} is {shown}; it must be {allowed}"


@pytest.mark.parametrize(
    "key",
    [
        "training.data_parallel_shard_degree",
        "training.data_parallel_degree",
        "training.fsdp_reshard_after_forward",
        "experimental.pipeline_parallel_schedule",
        "float8.enable_float8_linear",
    ],
)
def test_torchtitan_before_its_first_release(key: str) -> None:
    section, name = key.split(".")
    with pytest.raises(AutoshardError) as error:
        read_written(written("a.toml", f'[{section}]\n{name} = "1"\n{KEEPS_ALL}'), {"model": "llama3-8b"})
    assert str(error.value) == (
        f"a.toml: {key} is of torchtitan before 0.1.0; files are read from 0.1.0 on, where [parallelism] has the "
        "degrees and model.converters names float8"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "--tensor-model-parallel-size 1 --fp8-format hybrid"),
        ("a.toml", '[model]\nconverters = ["quantize.linear.float8"]\n' + KEEPS_ALL),
    ],
)
def test_products_that_are_priced_are_not_warned_of(name: str, text: str) -> None:
    given = {"model": "llama3-8b", "instance": "h100-80gb", "precision": "fp8"}
    found = read_written(written(name, text), given)
    assert found.problem.training.precision.products is not None and found.warnings == ()


@pytest.mark.parametrize(
    ("instance", "recipe", "precision"),
    [("a100-80gb", "delayed", "fp8"), ("trn1.32xlarge", "delayed", "fp8"), ("h100-80gb", "mxfp8", "mxfp8")],
)
def test_no_precision_is_advised_that_the_device_does_not_have(instance: str, recipe: str, precision: str) -> None:
    text = f"--tensor-model-parallel-size 1 --bf16 --fp8-format hybrid --fp8-recipe {recipe} --first-last-layers-bf16"
    found = read_written(written("a.sh", text), {"model": "llama3-8b", "instance": instance})
    assert found.warnings == (f"--fp8-format hybrid: priced in bf16; {instance} has no products in {precision}",)


@pytest.mark.parametrize(
    ("counts", "blocks"),
    [
        ("", "first=1+last=1"),
        (" --num-layers-at-start-in-bf16 2 --num-layers-at-end-in-bf16 3", "first=2+last=3"),
        (" --num-layers-at-start-in-bf16 0", "last=1"),
    ],
)
def test_blocks_in_bf16_are_named_as_the_option_has_them(counts: str, blocks: str) -> None:
    file = written(
        "a.sh", f"--tensor-model-parallel-size 1 --bf16 --fp8-format hybrid --first-last-layers-bf16{counts}"
    )
    given = {"model": "llama3-8b", "instance": "h100-80gb"}
    assert read_written(file, given).warnings == (
        f"--fp8-format hybrid: {FLOAT8} fp8, which --precision fp8 --keep-bf16 {blocks} prices",
    )
    given["precision"] = "fp8"
    found = read_written(file, given)
    assert found.warnings == (
        f"--first-last-layers-bf16: priced with all blocks in fp8; --keep-bf16 {blocks} prices that",
    )
    assert (found.left_out, found.not_priced) == (("--fp8-format",), ())
    found = read_written(file, {**given, "keep_bf16": blocks})
    assert (found.warnings, found.problem.training.kept_wide) == ((), blocks)


def test_blocks_in_bf16_need_flag_and_format() -> None:
    """As in Megatron: numbers without the flag change nothing, nor does the flag without FP8."""
    for text in ("--fp8-format hybrid --num-layers-at-start-in-bf16 2", "--bf16 --first-last-layers-bf16"):
        file = written("a.sh", f"--tensor-model-parallel-size 1 {text}")
        given = {"model": "llama3-8b", "instance": "h100-80gb", "precision": "fp8"}
        assert read_written(file, given).warnings == ()


def test_arguments_without_a_dtype_are_priced_in_float32() -> None:
    file = written("a.sh", "--tensor-model-parallel-size 1 --fp8-format hybrid")
    found = read_written(file, {"model": "llama3-8b", "instance": "h100-80gb"})
    assert found.problem.training.precision.name == "fp32"
    assert "neither --bf16 nor --fp16: Megatron computes in fp32" in found.notes
    assert found.warnings == (
        f"--fp8-format hybrid: {FLOAT8.replace('bf16', 'fp32')} fp8, which --precision fp8 prices",
    )


def test_dropout_that_is_asked_for_is_not_warned_of() -> None:
    file = written("a.sh", "--tensor-model-parallel-size 1 --hidden-dropout 0.1")
    assert read_written(file, {"model": "llama3-8b", "dropout": "residual=0.1"}).warnings == ()


@pytest.mark.parametrize(
    ("flags", "dropped"),
    [
        (
            "",
            "no --hidden-dropout, which Megatron takes for 0.1, no --attention-dropout, which Megatron takes for 0.1",
        ),
        ("--hidden-dropout 0", "no --attention-dropout, which Megatron takes for 0.1"),
        (
            "--attention-dropout 0.2",
            "no --hidden-dropout, which Megatron takes for 0.1, --attention-dropout 0.2",
        ),
    ],
)
def test_megatron_drops_a_tenth_unless_it_is_told_otherwise(flags: str, dropped: str) -> None:
    Path("a.sh").write_text(f"--tensor-model-parallel-size 1 {flags}")
    said = f"{dropped}: dropout is not in the price; --dropout puts it there, with backend torch"
    assert read_written("a.sh", {"model": "llama3-8b"}).warnings == (said,)


def test_what_may_matter_is_listed_and_what_cannot_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = scored(capsys, written("c.yaml", yaml.safe_dump(PUBLIC["hf_llama3_8B"])))
    assert (quiet["warnings"], quiet["not_priced"]) == ([], [])
    data = json.loads(json.dumps(PUBLIC["hf_llama3_8B"]))
    data["model"] |= {"use_emha": True, "init_method_std": 0.02}
    data["data"]["seq_length"] = 4096
    assert main(["score", written("c.yaml", yaml.safe_dump(data))]) == 0
    page = capsys.readouterr().out
    assert "note    not in the price: model.use_emha\n" in page
    assert "sequences of 4,096 tokens, as data.seq_length says, not model.encoder_seq_length" in page
    given = {"model": "llama3-8b"}
    flags = "--tensor-model-parallel-size 1 --lr 1 --train-iters 9 --overlap-grad-reduce"
    assert read_written(written("a.sh", flags), given).not_priced == ("--overlap-grad-reduce",)
    text = "[training]\nsteps = 9\n[parallelism]\nenable_async_tensor_parallel = true\n"
    assert read_written(written("a.toml", text), given).not_priced == ("parallelism.enable_async_tensor_parallel",)


@pytest.mark.parametrize("command", [["score"], ["import"], ["score", "--model", "llama3-8b"]])
def test_another_programs_yaml_is_no_recipe(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = written("other.yaml", "actor_rollout_ref: {model: meta-llama/Meta-Llama-3-8B}\nalgorithm: gae\n")
    assert main([command[0], file, *command[1:]]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: other.yaml has actor_rollout_ref, which is not an option of autoshard plan; a recipe has "
        "nothing else, NxD Training's YAML a distributed_strategy, NeMo's fields of a model\n"
    )


def test_another_programs_json_is_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    file = written("zero.json", '{"learning_rate": 3}')
    assert main(["score", file, "--model", "llama3-8b"]) == 2
    assert capsys.readouterr().err == "autoshard: error: zero.json: this is not a plan: it lacks strategy\n"
    Path("own.json").write_text(plan_to_json(plan_70b()))
    assert main(["score", "own.json", "--model", "llama3-8b"]) == 2
    assert capsys.readouterr().err == ("autoshard: error: own.json is a plan, which says all that --model could\n")


def test_options_overrule_variables_of_the_shell() -> None:
    file = written("vars.sh", '--nnodes $NNODES --seq-length "${LENGTH}" --tensor-model-parallel-size 1')
    given = {"model": "llama3-8b", "instance": "h100-80gb", "nodes": 2, "seq_len": 1024}
    problem = read_written(file, given).problem
    assert (problem.cluster.nodes, problem.training.sequence_length) == (2, 1024)
    with pytest.raises(AutoshardError) as error:
        read_written(file, {name: value for name, value in given.items() if name != "nodes"})
    assert str(error.value) == "vars.sh does not say nodes: $NNODES has no value there, or several; --nodes does"


@pytest.mark.parametrize("command", ["import", "score"])
def test_options_say_a_microbatch_and_what_runs_again(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = written("vars.sh", "--tensor-model-parallel-size 4 --micro-batch-size $MBS --recompute-activations")
    given = (file, "--model", "llama3-8b", "--instance", "h100-80gb", "--micro-batch", "2")
    assert main([command, *given, "--recompute", "full"]) == 0
    assert "mbs=2 recompute=full" in capsys.readouterr().out
    assert main([command, *given, "--recompute", "auto"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: recompute=auto: a layout that is given is not searched; give one value or none\n"
    )


def test_options_overrule_variables_of_an_nxdt_configuration() -> None:
    text = NXDT.replace("global_batch_size: 1024", "global_batch_size: '${oc.env:GBS}'")
    text = text.replace("micro_batch_size: 1,", "micro_batch_size: '${oc.env:MBS}',")
    text = text.replace("encoder_seq_length: 8192", "encoder_seq_length: ${oc.env:LENGTH}")
    file = written("vars.yaml", text.replace("num_nodes: 16", "num_nodes: '${oc.env:NODES}'"))
    given = {"model": "llama3-70b", "global_batch": 512, "micro_batch": 2, "seq_len": 4096, "nodes": 16}
    found = read_written(file, given)
    training = found.problem.training
    assert (training.global_batch_size, training.sequence_length, found.problem.cluster.nodes) == (512, 4096, 16)
    assert found.strategy.microbatch_size == 2
    with pytest.raises(AutoshardError) as error:
        read_written(file, {name: value for name, value in given.items() if name != "global_batch"})
    told = "vars.yaml does not say global_batch: ${oc.env:GBS} has no value there, or several; --global-batch does"
    assert str(error.value) == told


def test_defaults_of_variables_are_read_from_an_nxdt_configuration() -> None:
    """As OmegaConf reads them where the variable is not set; also those of oc.decode, and one that is a reference."""
    text = NXDT.replace("global_batch_size: 1024", "global_batch_size: '${oc.decode:${oc.env:GBS,64}}'")
    text = text.replace("micro_batch_size: 1,", "micro_batch_size: '${env: MBS, 2}',")
    text = text.replace("encoder_seq_length: 8192", "encoder_seq_length: '${oc.env:LENGTH,${trainer.num_nodes}}'")
    file = written("defaults.yaml", text.replace("num_nodes: 16", "num_nodes: '${oc.env:NODES,\"16\"}'"))
    found = read_written(file, {"model": "llama3-70b", "seq_len": 4096})
    assert (found.problem.training.global_batch_size, found.problem.cluster.nodes) == (64, 16)
    assert found.strategy.microbatch_size == 2
    assert "variables have the defaults that the file gives them: MBS=2, GBS=64, NODES=16, LENGTH=16" in found.notes
    larger = read_written(file, {"model": "llama3-70b", "seq_len": 4096, "global_batch": 512})
    assert larger.problem.training == replace(found.problem.training, global_batch_size=512)
    loops = written("loops.yaml", text.replace("num_nodes: 16", "num_nodes: '${oc.env:NODES,${trainer.num_nodes}}'"))
    with pytest.raises(AutoshardError) as error:
        read_written(loops, {"model": "llama3-70b"})
    assert str(error.value) == "loops.yaml: trainer.num_nodes refers to itself"


def test_a_framework_that_hides_transfers_is_not_what_is_priced() -> None:
    text = (
        "--num-layers 32 --tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 64 --seq-length 4096"
    )
    said = (
        "priced as autoshard's own runtime would run it, which hides no transfer behind work; Megatron does, so it may "
        "take less"
    )
    name = written("train.sh", text)
    for instance, expected in (("h100-80gb", [said]), ("trn1.32xlarge", [])):
        found = read_written(name, {"model": "llama3-8b", "instance": instance, "nodes": 1})
        assert [note for note in found.notes if note.startswith("priced as")] == expected
