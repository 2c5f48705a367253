"""What `autoshard run` may be told, and what it says to what it may not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.options import RunOptions, options_from
from autoshard.runtime.run import _has_place_for, run_plan
from autoshard.spec.cluster import load_cluster
from autoshard.spec.lora import Lora
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.unit.weight_folders import huggingface_folder


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps=0 must be a whole number of at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be above 0 and at most 3.4e+38, what FP32 holds"),
        ({"learning_rate": 2e39}, "learning_rate=2e+39 must be above 0 and at most 3.4e+38, what FP32 holds"),
        ({"timeout_s": float("inf")}, "timeout_s=inf must be a finite number above 0"),
        ({"seed": 2**70}, "seed=1180591620717411303424 must be a whole number of at most 9,223,372,036,854,775,807"),
        ({"lr_schedule": "step"}, "lr_schedule='step' is not one of: constant, linear, cosine"),
        ({"eval_fraction": 1.5}, "eval_fraction=1.5 must be between 0 and 1"),
        ({"eval_every": 5}, "eval_every=5 needs data to evaluate on: eval_data or eval_fraction"),
        ({"eval_every": 0, "eval_fraction": 0.1}, "eval_every=0 must be a whole number of at least 1"),
        ({"eval_data": Path("/"), "eval_fraction": 0.1}, "eval_fraction=0.1 and eval_data=/: give one of them"),
        ({"eval_data": Path("/no such file")}, "eval_data=/no such file does not exist"),
        ({"eval_batches": 0, "eval_fraction": 0.1}, "eval_batches=0 must be a whole number of at least 1"),
        ({"keep_every": 2}, "keep_every=2 without checkpoint_every, which saves: give both or neither"),
        ({"keep": 2}, "keep=2 without checkpoint_every, which saves: give both or neither"),
        (
            {"eval_batches": 2},
            "eval_batches=2 without eval_data or eval_fraction, which say on what: give both or neither",
        ),
        ({"wandb_project": "mine"}, "wandb_project=mine without wandb, which logs there: give both or neither"),
        ({"checkpoint_sync": True}, "checkpoint_sync=True without checkpoint_every, which saves: give both or neither"),
        ({"keep_every": 0}, "keep_every=0 must be a whole number of at least 1"),
        (
            {"keep_every": 5, "checkpoint_every": 2},
            "keep_every=5 is no multiple of checkpoint_every=2: there is no checkpoint of step 5 to keep",
        ),
        (
            {"document_mask": True, "backend": "nxd"},
            "document_mask: NxD's attention is causal over whole rows, documents or not: use backend=torch",
        ),
        (
            {"compile": True, "backend": "nxd"},
            "compile: Neuron compiles by itself: leave --compile out, or use backend=torch",
        ),
        (
            {"compile": True, "debug_nan": True},
            "compile and debug_nan: one makes a function of many operators, the other looks at each",
        ),
        (
            {"checkpoint_dir": "gs://b/x"},
            "checkpoint_dir=gs://b/x is no place for checkpoints: name a folder or s3://BUCKET/PREFIX",
        ),
        (
            {"checkpoint_dir": "S3://b/x"},
            "checkpoint_dir=S3://b/x is no place for checkpoints: name a folder or s3://BUCKET/PREFIX",
        ),
        ({"resume": "s3:/b/x"}, "resume=s3:/b/x is no place for checkpoints: name a folder or s3://BUCKET/PREFIX"),
        ({"output": Path("s3://b/x")}, "output=s3:/b/x is a URL: name a folder of this machine"),
        ({"output": Path(__file__)}, f"output={__file__} is a file: name a folder"),
        *(
            ({name: Path("s3://b/x")}, f"{name}=s3:/b/x is a URL: name a file or folder of this machine")
            for name in ("data", "tokenizer", "eval_data", "weights")
        ),
        ({"adapter": Path("/")}, "adapter=/ without weights, which it stands beside: give both or neither"),
        ({"adapter": Path("/none"), "weights": Path("/")}, "adapter=/none does not exist"),
        ({"resume": "/no such folder"}, "resume=/no such folder is not auto, never or a folder with a checkpoint"),
    ],
)
def test_options_that_will_not_do(values: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        RunOptions(**values)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("packing", "no", "packing='no' must be true or false"),  # a sweep file may say it; a text counts as true
        ("wandb", 0, "wandb=0 must be true or false"),
        ("learning_rate", None, "learning_rate=None must be a number"),
        ("eval_fraction", [0.1], "eval_fraction=a list of 1 must be a number"),
        ("timeout_s", True, "timeout_s=True must be a number"),
        ("data", 5, "data=5 must be a path"),
        ("output", None, "output=None must be a path"),
        ("resume", 5, "resume=5 must be a text"),
        ("wandb_project", {}, "wandb_project=an object of 0 must be a text"),
    ],
)
def test_values_of_other_types(name: str, value: object, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        options_from({name: value})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("given", "uses", "resumes"),
    [
        ({}, False, "auto"),
        ({"resume": "never"}, False, "never"),
        ({"resume": "auto"}, True, "auto"),
        ({"resume": "s3://b/x"}, True, "s3://b/x"),
        ({"checkpoint_every": 2}, True, "auto"),
        ({"checkpoint_dir": "s3://b/x", "resume": "never"}, True, "never"),
    ],
)
def test_a_run_looks_for_checkpoints_where_it_is_told_to(given: dict[str, Any], uses: bool, resumes: str) -> None:
    options = RunOptions(**given)
    assert (options.uses_checkpoints, options.resumes) == (uses, resumes)


def test_values_as_python_and_yaml_give_them(tmp_path: Path) -> None:
    given = {"learning_rate": "5e-4", "timeout_s": 60, "output": str(tmp_path), "resume": tmp_path, "compile": None}
    found = options_from(given)
    assert (found.learning_rate, found.timeout_s, found.output) == (5e-4, 60, tmp_path)
    assert (found.resume, found.compile) == (str(tmp_path), None)


@pytest.mark.parametrize(("flags", "compiles"), [([], None), (["--compile"], True), (["--no-compile"], False)])
def test_the_device_decides_what_is_compiled_unless_somebody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], compiles: bool | None
) -> None:
    asked: list[RunOptions] = []

    def recorded(plan: object, options: RunOptions, start: object) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr("autoshard.runtime.run.run_plan", recorded)
    write_plan(plan_of(MODELS["llama"], strategy(), 1, FP32), tmp_path / "plan.json")
    assert main(["run", str(tmp_path / "plan.json"), *flags]) == 0
    assert [one.compile for one in asked] == [compiles]


def no_start(*_: object) -> None:
    raise AssertionError("no process is to start")


def test_a_rehearsal_refuses_ids_that_the_plans_model_has_no_room_for(tmp_path: Path) -> None:
    """The smaller model of the rehearsal would have room for them."""
    plan = plan_of(MODELS["llama"], strategy(tp=2, pp=2, dp=2), 4, FP32)
    data = tmp_path / "a.jsonl"
    data.write_text('{"input_ids": [1, 2, 999]}')
    with pytest.raises(AutoshardError) as error:
        run_plan(plan, RunOptions(data=data, output=tmp_path / "runs", processes=2), start=no_start)
    assert str(error.value) == (
        f"{data}: 3 tokens (tokenized before): vocab_size={plan.model.vocab_size} of {plan.model.name} has no room for "
        "1000 ids"
    )


SHORT = (
    "short.txt: the text has 4 tokens; one batch of 1 sequences x (8 + 1) tokens needs 9: give more text or a smaller "
    "batch"
)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"checkpoint_dir": "nowhere"},
            "checkpoint_dir=nowhere holds no checkpoint to go on from, and none is saved without checkpoint_every",
        ),
        ({"data": Path("short.txt")}, SHORT),
        ({"eval_data": Path("short.txt")}, SHORT),
    ],
)
def test_what_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("word")
    plan = plan_of(replace(MODELS["llama"], vocab_size=256), strategy(), 1, FP32)
    plan = replace(plan, training=replace(plan.training, sequence_length=8, global_batch_size=1))
    with pytest.raises(AutoshardError) as error:
        run_plan(plan, RunOptions(processes=1, **options), start=no_start)
    assert str(error.value) == text
    assert not list(tmp_path.glob("runs/*/plan.json"))


def test_weights_of_another_model_are_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    huggingface_folder(tmp_path / "other", MODELS["llama"])
    plan = plan_of(replace(MODELS["llama"], vocab_size=256), strategy(), 1, FP32)
    with pytest.raises(AutoshardError, match=r"vocab_size"):
        run_plan(plan, RunOptions(processes=1, weights=tmp_path / "other"), start=no_start)
    assert not list(tmp_path.glob("runs/*/plan.json"))


def test_a_folder_without_adapters_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = replace(MODELS["llama"], vocab_size=256)
    weights = huggingface_folder(tmp_path / "hf", model)
    plan = plan_of(replace(model, lora=Lora(4, 8.0, ("q_proj",))), strategy(), 1, FP32)
    options = RunOptions(processes=1, weights=weights, adapter=weights)
    with pytest.raises(AutoshardError, match=rf"^adapter={weights} has neither adapter_config.json of PEFT"):
        run_plan(plan, options, start=no_start)
    assert not list(tmp_path.glob("runs/*/plan.json"))


def test_errors_in_data_to_evaluate_on_name_their_option(tmp_path: Path) -> None:
    for name, text in (("a.txt", "word"), ("b.txt", " ")):
        (tmp_path / name).write_text(text)
    options = RunOptions(data=tmp_path / "a.txt", eval_data=tmp_path / "b.txt", output=tmp_path / "runs", processes=1)
    with pytest.raises(AutoshardError) as error:
        run_plan(plan_of(MODELS["llama"], strategy(), 4, FP32), options, start=no_start)
    assert str(error.value) == f"--eval-data {tmp_path / 'b.txt'} holds no text"


@pytest.mark.parametrize("name", ["cpu", "mine"])
def test_a_plan_for_processes_is_known_by_what_its_hardware_file_says(name: str, tmp_path: Path) -> None:
    """A copy of the packaged file may be called anything, and its plans run as planned."""
    packaged = Path(__file__).parents[2] / "autoshard" / "hardware" / "cpu.json"
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**json.loads(packaged.read_text()), "instance": name}))
    cluster = load_cluster(None, 1, hardware_file=file)
    plan = replace(plan_of(MODELS["few kv heads"], strategy(dp=2), 2, FP32), cluster=cluster)
    assert [_has_place_for(plan, RunOptions(processes=processes)) for processes in (1, 2)] == [False, True]
