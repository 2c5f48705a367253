"""The command line as a user meets it: help, errors of one line, files written or not, nothing heavy imported."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import autoshard
from autoshard.__main__ import main as begin
from autoshard.cli import COMMANDS, command_module, main
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.interface.planned import Plan
from autoshard.planner.options import OPTIONS, request_from
from autoshard.planner.planning import plan_for
from autoshard.plans.plan_json import write_plan
from autoshard.plans.prices import priced
from autoshard.plans.validate import read_plan
from autoshard.runtime.options import RunOptions
from tests.unit.plan_examples import plan_70b

REPOSITORY = Path(__file__).parents[2]
SMALL = ["plan", "--model", "llama3-8b", "--tp", "8", "--cp", "1", "--vpp", "1", "--micro-batch", "1"]
"""Pinned, so that the search takes a moment only."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that must fail with 2 and write nothing."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert list(Path().iterdir()) == []
    assert captured.err.startswith("autoshard: error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("autoshard: error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", f"a command is missing: {', '.join(COMMANDS)}; see autoshard --help"),
        ("fly", f"fly is not a command; commands: {', '.join(COMMANDS)}"),
        ("plan --model llama3-8b --nodse 4", "--nodse is not an option here; did you mean --nodes?"),
        ("plan --model llama3-8b --frobnicate", "--frobnicate is not an option here; see --help"),
        *(
            (f"plan --model llama3-8b {given} 8", f"{given} is not an option here; did you mean {meant}?")
            for given, meant in (
                ("--tensor-model-parallel-size", "--tp"),
                ("--virtual_pipeline_model_parallel_size", "--vpp"),
                ("--per-device-train-batch-size", "--micro-batch"),
                ("--sequence-length", "--seq-len"),
                ("--zero-stage", "--zero"),
            )
        ),
        ("plan --model llama3-8b 16", "16 is one argument too many; see --help"),
        ("compare a.json b.json --html c.html", "c.html is one argument too many; what is written goes to -o c.html"),
        ("validate a.json b.json", "b.json is one argument too many; see --help"),
        ("plan --model llama3-8b --nodes", "--nodes: expected one argument"),
        ("plan --model llama3-8b --nodes two", "--nodes: two must be a whole number of at least 1"),
        ("plan --model llama3-8b --nodes 0", "--nodes: 0 must be a whole number of at least 1"),
        ("plan --model llama3-8b --nodes 1000000000", "--nodes: 1000000000 must be at most 65,536"),
        (f"plan --model llama3-8b --nodes {10**24}", f"--nodes: {10**24} must be at most 65,536"),
        (f"plan --model llama3-8b --nodes={-(10**24)}", f"--nodes: {-(10**24)} must be a whole number of at least 1"),
        (f"run missing.json --steps {10**15}", f"--steps: {10**15} must be at most 999,999,999,999,999"),
        (f"run missing.json --steps {'9' * 5000}", f"--steps: {'9' * 60}... must be at most 999,999,999,999,999"),
        ("replan plan.json --nodes 65537", "--nodes: 65537 must be at most 65,536"),
        ("plan --model llama3-8b --global-batch 735134400", "--global-batch: 735134400 must be at most 1,048,576"),
        ("plan --model llama3-8b --seq-len 735134400", "--seq-len: 735134400 must be at most 100,000,000"),
        ("plan --model llama3-8b --nodes 1.5", "--nodes: 1.5 must be a whole number of at least 1"),
        *(
            (f"plan --model llama3-8b --fit-probability={given}", f"--fit-probability: {given} must be a number between 0 and 1")  # noqa: E501
            for given in ("nan", "2", "1", "0", "-1", "inf", "often")
        ),
        ("plan --precision fp4", "--precision: fp4 must be one of: auto, mixed_precision, bf16_sr, fp32, fp8, fp8_block, mxfp8, nvfp4, cfp8"),  # noqa: E501
        ("plan --recompute mlp+", "recompute='mlp+' must be none, selective, full, or modules (attention_norm, attention, core_attention, mlp_norm, mlp, residual) and operators of a block joined by +"),  # noqa: E501
        ("plan --format xml", "--format: xml must be one of: text, json"),
        ("plan --config /missing.yaml", "--config /missing.yaml does not exist"),
        ("plan --model llama3-8b --out missing/plan.json", "plan missing/plan.json cannot be written: No such file or directory"),  # noqa: E501
        ("validate", "PLAN is missing; see --help"),
        ("convert", "SOURCE and TARGET are missing; see --help"),
        ("compare plan.json", "compare takes two plans, not one: autoshard compare plan.json other.json"),
        ("replan plan.json", "plan plan.json does not exist"),
        ("sweep /dev/zero", "sweep /dev/zero is not a regular file"),
        *(
            (words, f"{name}: - stands for no file: standard input and output are not taken; ./- is a file called -")
            for words, name in (
                ("plan --model llama3-8b -o -", "-o/--out"),
                ("sweep missing.yaml --out -", "-o/--out"),
                ("explain -", "PLAN"),
            )
        ),
        ("validate missing.json", "plan missing.json does not exist"),
        ("explain missing.json", "plan missing.json does not exist"),
        ("run missing.json", "plan missing.json does not exist"),
        ("run missing.json --steps 0", "--steps: 0 must be a whole number of at least 1"),
        ("run missing.json --learning-rate -1", "--learning-rate: -1 must be a number above 0"),
        ("run missing.json --data missing.txt", "data=missing.txt does not exist"),
        ("run missing.json --device tpu", "--device: tpu must be one of: auto, cpu, cuda, neuron"),
        ("sweep missing.yaml", "sweep missing.yaml does not exist"),
        ("--print-completion fish", "--print-completion: invalid choice: 'fish' (choose from 'bash', 'zsh', 'tcsh')"),
    ],
)  # fmt: skip
def test_errors(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, *arguments.split()) == message


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ("run missing.json --data {}", "data={}"),
        ("run missing.json --weights {}", "weights={}"),
        ("run missing.json --tokenizer {}", "tokenizer={}"),
        ("run missing.json --resume {}", "resume={}"),
        ("convert {} out", "{}"),
        ("convert . {}", "{}"),
        ("migrate missing.yaml --out {}", "out={}"),
        ("migrate missing.yaml --checkpoint {} --out out", "checkpoint={}"),
    ],
)
def test_a_path_that_cannot_be_reached(arguments: str, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As with a folder that may not be entered, which root always may: asking whether it exists is an OSError."""
    name = "a" * 300
    assert error_of(capsys, *arguments.format(name).split()).startswith(f"{start.format(name)} ")


def test_errors_of_what_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "plan").startswith("--model is missing: a built-in one, such as llama3-8b (autoshard ")
    assert "did you mean llama3-8b" in error_of(capsys, "plan", "--model", "llama3-8")
    assert error_of(capsys, *SMALL, "--tp", "3").startswith("tp=3 x cp=1 is 3 devices, which must divide the 32")
    assert error_of(capsys, "plan", "--model", "llama3-70b").startswith(
        "no layout fits llama3-70b on 1 x trn1.32xlarge: the smallest looked at needs"
    )
    assert error_of(capsys, "plan", "--model", "gpt3-175b", "--seq-len", "4096") == (
        "seq-len=4096 is beyond max_position_embeddings=2048 of gpt3-175b, which learned no more positions; "
        "at most 2048 works"
    )


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            "name: hf_llama\ntrainer: {devices: 32}\n",
            "--config {file} has name, which is not an option here; autoshard import reads other frameworks' files",
        ),
        (
            "model: llama3-8b\ngrid: {nodes: [1, 2]}\n",
            "--config {file} has grid, which is not an option here; autoshard sweep takes a grid",
        ),
        ("model: llama3-8b\nnoodles: 3\n", "--config {file} has noodles, which is not an option here; did you"),
        (
            "model: llama3-8b\ndata_parallel_size: 3\n",
            "--config {file} has data_parallel_size, which is not an option here; did you mean dp?",
        ),
        ("model: llama3-8b\nnodes: three\n", "--config {file}: nodes: three must be a whole number of at least 1"),
        ("model: llama3-8b\nnodes: 65537\n", "--config {file}: nodes: 65537 must be at most 65,536"),
        ("model: llama3-8b\nnodes: true\n", "--config {file}: nodes: True must be a whole number of at least 1"),
        (
            "model: [llama3-8b\n",
            "--config {file}, line 2, column 1: not YAML: expected ',' or ']', but got '<stream end>'",
        ),
        ("model: llama3-8b\nexhaustive: maybe\n", "--config {file}: exhaustive: maybe must be true or false"),
        ("", "--config {file}: a recipe has options with their values, such as `model: llama3-8b`"),
        ("- model\n", "--config {file}: a recipe has options with their values, such as `model: llama3-8b`"),
        ("[" * 50_000, "--config {file} has 50.0 KB, more than the 20.0 KB that are read; is it the right file?"),
        ("\udcff", "--config {file}, line 1: byte 0xff is not UTF-8; save it as UTF-8"),
        ("a: " + "[" * 5_000, "--config {file}, line 1, column 103: nested deeper than 100 levels"),
    ],
)
def test_errors_in_a_recipe(recipe: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path.parent / f"{tmp_path.name}.yaml"
    path.write_bytes(os.fsencode(recipe))
    assert error_of(capsys, "plan", "--config", str(path)).startswith(message.format(file=path))


def test_null_in_a_recipe_is_the_default(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: llama3-8b\nnodes: 4\ntop: null\npareto: null\nformat: null\n")
    assert main(["plan", "--config", str(path), "--out", str(tmp_path / "of_nulls.json")]) == 0
    printed = capsys.readouterr().out
    assert main(["plan", "--model", "llama3-8b", "--nodes", "4", "--out", str(tmp_path / "of_nulls.json")]) == 0
    assert capsys.readouterr().out == printed


def test_commands_to_go_on_with_are_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out", "my plan's.json"]) == 0
    quoted = "'my plan'\"'\"'s.json'"
    assert capsys.readouterr().out.endswith(
        f"\nwrote my plan's.json; next: autoshard run {quoted}\nwhy, and what else: autoshard explain {quoted}\n"
        "the terms in plain words: autoshard explain --glossary\n"
    )


def test_a_price_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    gpus = ("--instance", "h100-80gb", "--precision", "fp8", "--out", "my.json", "--verbose")
    assert main(["plan", "--model", "llama3-8b", *gpus]) == 0
    assert capsys.readouterr().out.endswith("\nwrote my.json; it is a price, which nothing here runs\n")


def test_plan_explain_validate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--out", "my.json", "--verbose"]) == 0
    planned = capsys.readouterr().out
    assert planned.startswith("llama3-8b on 1 x trn1.32xlarge\n  8.03 B parameters, 32 NeuronCores;")
    assert planned.endswith("\nwrote my.json; next: autoshard run my.json\n")
    assert "\x1b" not in planned
    assert main(["explain", "my.json", "--quick"]) == 0
    assert planned.startswith(capsys.readouterr().out)
    assert main(["validate", "my.json"]) == 0
    plan = read_plan("my.json")
    assert capsys.readouterr().out.startswith("my.json is valid: llama3-8b on 1 x trn1.32xlarge, tp=8 pp=")
    assert (plan.pins.tp, plan.pins.cp, plan.pins.pp) == (8, 1, None)
    assert plan.strategy.tp == 8
    assert len(plan.runners_up) == 5


@pytest.mark.parametrize(
    "arguments",
    [
        "launch plan.json --slurm -o plan.json",
        "export plan.json --to megatron --out ./plan.json",
        "report plan.json -o linked.json",
        "trace other.json --measured plan.json -o plan.json",
        "plan --model plan.json:Model -o plan.json",
        "plan --config plan.json -o plan.json",
        "calibrate --results rows.csv plan.json --instance trn1.32xlarge -o plan.json",
        "calibrate --plot plan.json --results plan.json --instance trn1.32xlarge",
    ],
)
def test_no_command_writes_over_what_it_reads(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept = "model: llama3-8b\n"
    for name in ("plan.json", "other.json", "rows.csv"):
        Path(name).write_text(kept)
    Path("linked.json").symlink_to("plan.json")
    assert main(arguments.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("autoshard: error: --") and said.endswith(
        ".json is what this command reads; name another file\n"
    )
    assert Path("plan.json").read_text() == kept


def test_a_plan_may_be_replaced_by_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--recompute", "full"]) == 0
    assert main(["replan", "plan.json", "--edit", "strategy.microbatch_size=2", "-o", "plan.json"]) == 0
    assert read_plan("plan.json").strategy.microbatch_size == 2
    assert main([*SMALL, "-o", "plan.json"]) == 0


def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--top", "2", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["model"] == "llama3-8b"
    assert len(printed["runners_up"]) == 2
    assert main(["explain", "plan.json", "--quick", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed


def test_a_recipe_and_a_flag_behind_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = REPOSITORY / "recipes" / "llama3_8b_trn1_4nodes.yaml"
    assert main(["plan", "--config", str(recipe), "--recompute", "full", "--top", "0"]) == 0
    strategy = read_plan("plan.json").strategy
    assert (strategy.tp, strategy.pp, strategy.dp) == (32, 1, 4)
    assert strategy.recompute_name == "full"
    assert "recompute=full" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", sorted((REPOSITORY / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_plans_as_published(recipe: Path) -> None:
    import yaml

    values = yaml.safe_load(recipe.read_text())
    plan = plan_for(request_from(values, top=0))
    s = plan.strategy
    found = {
        "tp": s.tp,
        "pp": s.pp,
        "dp": s.dp,
        "cp": s.cp,
        "recompute": s.recompute_name,
        "micro_batch": s.microbatch_size,
    }
    assert found == {name: values[name] for name in found}
    assert plan.backend == "nxd"


def test_a_shorter_model_gets_its_own_length_and_a_note() -> None:
    plan = plan_for(request_from({"model": "llama2-7b", "tp": 8, "cp": 1}))
    assert plan.training.sequence_length == 4096
    assert plan.notes[0] == "seq-len 4,096, not 8,192: llama2-7b has 4,096 positions"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"model": "gpt3-175b", "nodes": 32, "tp": 8, "cp": 1, "vpp": 1, "zero": 1},
            "none that fits: the smallest looked at needs 180 GB a device, which has 17.2 GB",
        ),
        (
            {"model": "gpt-oss-20b", "nodes": 2, "tp": 8, "cp": 2, "seq_len": 2048, "global_batch": 64},
            (
                "no layout: cp=2 with the experts of gpt-oss-20b is not supported on nxd; use cp=1 or backend torch; "
                "backend=nxd has no layers for model_type=gpt_oss of gpt-oss-20b; use backend torch; "
                "attention_kernel=flash: NxD's sees all keys, and sliding_window=128 of gpt-oss-20b is less than "
                "sequence_length=2048; use plain"
            ),
        ),
        (
            {"model": "gpt-oss-20b", "nodes": 2, "tp": 8, "seq_len": 2048, "global_batch": 64},
            "no layout: backend=nxd has no layers for model_type=gpt_oss of gpt-oss-20b; use backend torch",
        ),
        (
            {"model": "llama3.2-1b", "tp": 2, "zero": 0},
            "no layout: precision mixed_precision keeps master weights, which NxD does with zero=1 only",
        ),
        (
            {"model": "llama3.2-1b", "tp": 2, "zero": 2},
            "no layout: zero=2: NxD shards the optimizer state alone; use zero=1 or backend torch",
        ),
        (
            {"model": "llama3.2-1b", "tp": 2, "schedule": "zero_bubble"},
            "no layout: schedule=zero_bubble is not one of NxD's: 1f1b, interleaved",
        ),
        (
            {"model": "llama3.2-1b", "tp": 2, "axis_order": "dp-pp-cp-tp"},
            (
                "no layout: axis_order=dp-pp-cp-tp: NxD builds its groups in the order pp-dp-cp-tp alone; use that or "
                "backend torch"
            ),
        ),
    ],
)
def test_where_torch_steps_in_a_note_has_the_error_of_nxd(options: dict[str, object], why: str) -> None:
    plan = plan_for(request_from(options))
    assert plan.backend == "torch"
    assert f"backend torch, because nxd has {why}" in plan.notes
    with pytest.raises(AutoshardError) as error:
        plan_for(request_from(options | {"backend": "nxd"}))
    assert why.partition(": ")[2] in str(error.value)


def test_where_no_backend_has_a_layout_both_say_why() -> None:
    with pytest.raises(NoLayoutFits) as error:
        plan_for(request_from({"model": "llama3-8b", "schedule": "gpipe", "pp": 2, "dp": 1, "tp": 8}))
    rule, _, memory = str(error.value).partition("; with backend torch ")
    assert rule.endswith(" is legal: schedule=gpipe is not one of NxD's: 1f1b, interleaved")
    asked = "llama3-8b on 1 x trn1.32xlarge with tp=8 pp=2 dp=1 schedule=gpipe loss_chunks=32"
    assert memory.startswith(f"no layout fits {asked}: the smallest looked at needs ")
    with pytest.raises(AutoshardError) as other:
        plan_for(request_from({"model": "llama3-8b", "schedule": "zero_bubble", "pp": 2, "zero": 3}))
    assert str(other.value) == (
        "zero=3: NxD shards the optimizer state alone; use zero=1 or backend torch; with backend torch "
        "schedule=zero_bubble puts off gradients that zero=3 sends at once; use 1f1b or zero=1"
    )
    with pytest.raises(AutoshardError) as alike:
        plan_for(request_from({"model": "llama3-8b", "tp": 3}))
    assert str(alike.value) == "tp=3 is 3 devices, which must divide the 32 of 1 x trn1.32xlarge"


def test_selective_recompute_is_that_of_core_attention() -> None:
    assert request_from({"model": "m", "recompute": OPTIONS["recompute"].parse("selective")}).pins == {
        "recompute": "core_attention"
    }


def test_pins_that_say_auto_are_none() -> None:
    assert request_from({"model": "m", "attention_kernel": "auto", "tp": 4}).pins == {"tp": 4}


def test_run_passes_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_plan(plan_70b(), "plan.json")
    seen: list[Any] = []
    module = ModuleType("autoshard.runtime.run")
    module.run_plan = lambda plan, options, start: seen.append((plan, options)) or 1  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "autoshard.runtime.run", module)
    arguments = ["--steps", "3", "--learning-rate", "1e-4", "--data", str(tmp_path), "--timeout", "60", "--wandb"]
    assert main(["run", "plan.json", *arguments]) == 1
    assert seen == [
        (Plan.of(plan_70b()), RunOptions(steps=3, learning_rate=1e-4, data=tmp_path, timeout_s=60.0, wandb=True)),
    ]


def test_help_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("", *COMMANDS):
        with pytest.raises(SystemExit) as stopped:
            main([*command.split(), "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: autoshard {command}".rstrip())
        assert f"  autoshard {command}" in text, "an example"
        assert "function" not in text
        assert "null" not in text
        assert max(map(len, text.splitlines())) <= 120


def test_help_breaks_no_word() -> None:
    """The column of an option's text has 46 characters, and argparse cuts a longer word."""
    assert not [word for option in OPTIONS.values() for word in option.help.split() if len(word) > 46]


def test_options_of_plan() -> None:
    """The names that recipes, scripts and the issue rely on."""
    assert [option.flag for option in OPTIONS.values()] == [
        "--model", "--instance", "--nodes", "--lnc", "--hardware", "--sdk", "--seq-len", "--global-batch",
        "--precision", "--state-dtypes", "--keep-bf16", "--expert-imbalance", "--loss-chunks", "--mtp-num-layers",
        "--mtp-loss-scaling-factor", "--dropout", "--lora", "--optimizer", "--backend", "--device", "--stack",
        "--operators", "--objective", "--fit-probability", "--time-limit", "--search", "--cost-model", "--evaluations",
        "--price-per-node-hour", "--tokens", "--days",
        "--tp", "--pp", "--dp", "--cp", "--ep", "--etp", "--dp-replicate", "--vpp", "--micro-batch", "--schedule",
        "--recompute", "--attention-kernel", "--context-parallel", "--zero", "--axis-order",
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["--top 3", "--out x.json", "--verbose", "--exhaustive"])
def test_a_list_of_steps_takes_no_options_of_a_plan(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = option.split()[0]
    told = f"--pareto lists steps and writes no plan; leave {name} out"
    assert error_of(capsys, "plan", "--model", "llama3-8b", "--pareto", *option.split()) == told


def test_options_overrule_a_recipe_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("model: llama3-8b\nseq_len: 2048\ntp: 8\nout: small.json\n")
    for line in ("--config r.yaml --tp 2", "--tp 2 --config r.yaml", "--tp 2 --config=r.yaml"):
        assert main(["plan", *line.split()]) == 0
        assert json.loads(Path("small.json").read_text())["strategy"]["tp"] == 2
    assert main(["plan", "--config"]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"autoshard {autoshard.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--print-completion", shell])
    assert stopped.value.code == 0
    script = capsys.readouterr().out
    assert "llama3-70b" in script
    assert "a100-40gb a100-80gb" in script
    assert "--global-batch" in script or "global-batch" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        for command in ("plan", "score", "migrate"):
            assert f"_shtab_autoshard_{command}___instance_choices=(a100-40gb " in script


def test_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(values: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_module("validate"), "run", interrupted)
    assert main(["validate", "plan.json"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_ends_quietly_before_the_command_line_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "autoshard.cli", Interrupted("autoshard.cli"))
    assert begin() == 130
    assert capsys.readouterr() == ("", "")
    assert '\nautoshard = "autoshard.__main__:main"\n' in (REPOSITORY / "pyproject.toml").read_text()


def test_an_interrupt_in_a_callback_of_the_interpreters_comes_again() -> None:
    # a weak reference's callback, like those that importing has: what is raised in it goes nowhere
    program = """
import signal, sys, time, weakref
from autoshard import cli

class Thing: pass

def command(values):
    thing = Thing()
    kept = weakref.ref(thing, lambda dead: signal.raise_signal(signal.SIGINT))
    del thing
    time.sleep(30)
    print("slept")

signal.signal(signal.SIGINT, signal.default_int_handler)
cli.command_module("validate").run = command
print(cli.main(["validate", "plan.json"]))
"""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60)
    assert (done.stdout, done.stderr) == ("130\n", "")


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With `autoshard` as the command of this interpreter, from this folder."""
    prelude = f'set -o pipefail; autoshard() {{ "{sys.executable}" -m autoshard "$@"; }}; '
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    return subprocess.run(["bash", "-c", prelude + command], capture_output=True, text=True, env=env, timeout=120)


def test_a_closed_pipe_is_quiet() -> None:
    write_plan(priced(plan_70b()), "plan.json")
    done = shell("autoshard explain plan.json --quick | true; autoshard explain plan.json --quick | head -1")
    assert done.stdout == "llama3-70b on 16 x trn1.32xlarge\n"
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["explain plan.json --quick", "--help", "plan --help", "--version"])
def test_a_full_disk_is_one_line(command: str) -> None:
    write_plan(priced(plan_70b()), "plan.json")
    done = shell(f"autoshard {command} > /dev/full")
    assert done.returncode == 2
    assert done.stderr == "autoshard: error: the output cannot be written: the disk is full\n"


def test_closed_streams() -> None:
    write_plan(priced(plan_70b()), "plan.json")
    done = shell("autoshard explain plan.json --quick >&-; echo $?; autoshard explain no.json 2>&-; echo $?")
    assert (done.stdout, done.stderr) == ("0\n2\n", "")


def test_colour_only_where_it_is_wanted() -> None:
    write_plan(plan_70b(), "plan.json")
    assert "\x1b[" not in shell("autoshard explain plan.json --quick").stdout
    assert "\x1b[" in shell("autoshard explain plan.json --quick", FORCE_COLOR="1").stdout
    assert "\x1b[" not in shell("autoshard explain plan.json --quick", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_two_processes_write_the_same_bytes() -> None:
    """Whatever the hash seed."""
    for seed in ("1", "2"):
        done = shell(
            f"autoshard plan --model llama3-70b --nodes 16 --out {seed}.json > {seed}.txt", PYTHONHASHSEED=seed
        )
        assert done.returncode == 0, done.stderr
    assert Path("1.json").read_bytes() == Path("2.json").read_bytes()


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from autoshard.cli import main; "
        f"assert main({[*SMALL, '--out', 'plan.json']!r}) == main(['validate', 'plan.json']) == 0; "
        "assert main(['explain', 'plan.json']) == 0; "
        "heavy = {'torch', 'einops', 'wandb', 'matplotlib', 'rich', 'jsonschema', 'tensorboard'} & set(sys.modules); "
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr


UNUSED_BY_A_PLAN = (
    "numpy.ma",
    "autoshard.conversion",
    "autoshard.explanation.answers",
    "autoshard.explanation.flips",
    "autoshard.models.gpt2",
    "autoshard.models.llama.weights",
    "autoshard.models.mixtral",
    "autoshard.models.traced",
    "autoshard.planner.cached_search",
    "autoshard.planner.obstacles",
    "autoshard.planner.smallest_cluster",
)
"""Modules of other questions, other models and failures: half a millisecond each, with all that they import."""


def test_a_plan_imports_what_it_uses() -> None:
    code = (
        "import sys; from autoshard.cli import main; "
        f"assert main({[*SMALL, '--out', 'plan.json']!r}) == 0; "
        f"unused = [name for name in {UNUSED_BY_A_PLAN} if name in sys.modules]; "
        "sys.exit(f'imported: {unused}' if unused else 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in UNUSED_BY_A_PLAN:  # a module of another name would prove nothing
        assert find_spec(name) is not None


def test_the_version_imports_no_command() -> None:
    code = (
        "import atexit, sys; from autoshard.cli import main; unused = {'numpy', 'autoshard.commands.plan'}; "
        "atexit.register(lambda: print(unused & {*sys.modules})); main(['--version'])"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.stdout == f"autoshard {autoshard.__version__}\nset()\n"


@pytest.mark.parametrize("words", [["plan", "--help"], ["plan", "--noodes", "4"]])
def test_help_and_wrong_flags_import_no_search(words: list[str]) -> None:
    code = (
        "import atexit, sys; from autoshard.cli import main; unused = {'numpy', 'autoshard.planner.search'}; "
        f"atexit.register(lambda: print(unused & {{*sys.modules}})); main({words!r})"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert done.stdout.endswith("set()\n"), done.stdout


def test_garbage_is_collected_again_after_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert gc.isenabled()
    assert main([*SMALL, "--out", "plan.json"]) == 0 and gc.isenabled()
    assert main(["plan", "--model", "none"]) == 2 and gc.isenabled()


def test_the_native_device_is_a_stack_of_trn2_and_has_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "llama3-8b", "--device", "neuron", "--instance"]
    assert error_of(capsys, *command, "trn2.48xlarge", "--backend", "nxd") == (
        "device=neuron with backend=nxd: the native device is torch's; use backend=torch"
    )
    assert error_of(capsys, *command, "trn1.32xlarge", "--backend", "torch") == (
        "device=neuron: native PyTorch on Neuron runs on trn2 and trn3, not on trn1.32xlarge; leave device out"
    )
    assert main([*command, "trn2.48xlarge", "--pp", "2", "--tp", "4", "--top", "0"]) == 0  # backend auto is torch then
    capsys.readouterr()
    plan = read_plan("plan.json")
    assert (plan.backend, plan.strategy.pp, plan.cluster.stack) == ("torch", 2, "neuron-compiled")


def test_a_stack_needs_its_backend_and_its_device(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "llama3-8b", "--stack", "neuron-eager", "--instance"]
    assert error_of(capsys, *command, "trn2.48xlarge", "--backend", "nxd") == (
        "stack=neuron-eager with backend=nxd, which compiles each pass; use backend=torch"
    )
    assert error_of(capsys, *command, "trn1.32xlarge", "--backend", "torch") == (
        "stack=neuron-eager: native PyTorch on Neuron runs on trn2 and trn3, not on trn1.32xlarge; leave it out"
    )
    assert main([*command, "trn2.48xlarge", "--pp", "2", "--tp", "4", "--top", "0", "--out", "eager.json"]) == 0
    capsys.readouterr()
    plan = read_plan("eager.json")
    assert (plan.backend, plan.cluster.stack) == ("torch", "neuron-eager")
    layout = [*command[1:], "trn2.48xlarge"]
    assert main(["score", "tp=4 pp=2", *layout]) == 0
    assert "backend torch" in capsys.readouterr().out
