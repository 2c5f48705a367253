"""Files that try to run something when they are read: each is one clear error, and nothing runs."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import main
from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.data import DataSource, prepare
from autoshard.runtime.tokenizer import ByteTokenizer, load_tokenizer
from tests.multiprocess.models import MODELS
from tests.unit.weight_folders import huggingface_folder, plan

LLAMA = MODELS["llama"]
TOKENIZER = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}


class Bomb:
    """Unpickled, it makes a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


BOMB = pickle.dumps(Bomb())
TEXT_BOMB = pickle.dumps(Bomb(), protocol=0)


def plan_file(data: bytes) -> list[str]:
    Path("plan.json").write_bytes(data)
    return ["run", "plan.json"]


def tokenizer(data: bytes, config: bytes = b"{}") -> list[str]:
    write_plan(plan(LLAMA), "plan.json")
    Path("tokenizer").mkdir()
    Path("tokenizer/tokenizer.json").write_bytes(data)
    Path("tokenizer/tokenizer_config.json").write_bytes(config)
    return ["run", "plan.json", "--tokenizer", "tokenizer"]


def chat_template(data: bytes) -> list[str]:
    command = tokenizer(json.dumps(TOKENIZER).encode())
    Path("tokenizer/chat_template.jinja").write_bytes(data)
    return command


def data_file(name: str, data: bytes) -> list[str]:
    write_plan(plan(LLAMA), "plan.json")
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_bytes(data)
    return ["run", "plan.json", "--data", name.partition("/")[0]]


def checkpoint_with(name: str, data: bytes) -> list[str]:
    hf = huggingface_folder(Path("hf"), LLAMA)
    convert(open_source(hf), Path("cut"), Conversion("plan", plan(LLAMA)), lambda count: None, lambda count: None)
    Path("cut", name).write_bytes(data)
    return ["convert", "cut", "out"]


def weights_with(name: str, data: bytes) -> list[str]:
    huggingface_folder(Path("hf"), LLAMA)
    Path("hf", name).write_bytes(data)
    return ["convert", "hf", "out"]


DEEP = b"[" * 100_000
FILES: dict[str, tuple[Callable[[], list[str]], str]] = {
    "plan": (lambda: plan_file(BOMB), "plan plan.json, line 1: byte 0x80 is not UTF-8; save it as UTF-8"),
    "plan, as text": (lambda: plan_file(TEXT_BOMB), "plan plan.json, line 1, column 1: not JSON: expecting value"),
    "plan, nested": (lambda: plan_file(DEEP), "plan plan.json, line 1, column 101: nested deeper than 100 levels"),
    "tokenizer": (lambda: tokenizer(BOMB), "tokenizer/tokenizer.json is not a Hugging Face tokenizer.json: "),
    "tokenizer config": (
        lambda: tokenizer(json.dumps(TOKENIZER).encode(), BOMB),
        "tokenizer config tokenizer/tokenizer_config.json, line 1: byte 0x80 is not UTF-8; save it as UTF-8",
    ),
    "tokenizer config, nested": (
        lambda: tokenizer(json.dumps(TOKENIZER).encode(), DEEP),
        "tokenizer config tokenizer/tokenizer_config.json, line 1, column 101: nested deeper than 100 levels",
    ),
    "chat template": (
        lambda: chat_template(BOMB),
        "chat template tokenizer/chat_template.jinja, line 1: byte 0x80 is not UTF-8; save it as UTF-8\n",
    ),
    "chat template, large": (
        lambda: chat_template(b"x" * 1_000_001),
        "chat template tokenizer/chat_template.jinja has 1.00 MB, more than the 1.00 MB that are read; ",
    ),
    "text": (lambda: data_file("data.txt", BOMB), "--data data.txt is binary: it has a zero byte at 4 of 40"),
    "rows": (lambda: data_file("data.jsonl", TEXT_BOMB), "--data data.jsonl"),
    "rows, half a character": (
        lambda: data_file("data.jsonl", b'{"text": "\\ud83d"}'),
        "--data data.jsonl row 1: \\ud83d is half of a character, a lone surrogate; write both halves, or \\ufffd\n",
    ),
    "saved dataset": (lambda: data_file("data/state.json", BOMB), "--data data/state.json, line 1: byte 0x80 is not "),
    "saved dataset, nested": (
        lambda: data_file("data/state.json", DEEP),
        "--data data/state.json, line 1, column 101: nested deeper than 100 levels",
    ),
    "manifest": (
        lambda: checkpoint_with("manifest.json", BOMB),
        "checkpoint manifest cut/manifest.json, line 1: byte 0x80 is not UTF-8; save it as UTF-8",
    ),
    "checkpoint": (lambda: checkpoint_with("rank-00000.safetensors", BOMB), "checkpoint cut: rank-00000.safetensors "),
    "weights": (
        lambda: weights_with("model.safetensors", BOMB),
        "hf/model.safetensors is not a safetensors file: its header of ",
    ),
    "model config": (
        lambda: weights_with("config.json", BOMB),
        "model config hf/config.json, line 1: byte 0x80 is not UTF-8; save it as UTF-8",
    ),
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_would_run_something(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = FILES[file]
    assert main(make()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"autoshard: error: {message}"), error
    assert error.count("\n") == 1
    assert not Path("ran").exists() and not Path("out").exists()


def test_a_changed_plan_in_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own digest tells, and so does the manifest's."""
    monkeypatch.chdir(tmp_path)
    huggingface_folder(Path("hf"), LLAMA)
    to_plan = Conversion("plan", plan(LLAMA))
    convert(open_source(Path("hf")), Path("cut"), to_plan, lambda count: None, lambda count: None)
    text = Path("cut/plan.json").read_text()
    assert '"norm_eps": 1e-05' in text
    Path("cut/plan.json").write_text(text.replace('"norm_eps": 1e-05', '"norm_eps": 2e-05'))
    assert main(["run", "cut/plan.json"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("autoshard: error: cut/plan.json: sha256 is not that of the other fields: the file was ")
    assert main(["convert", "cut", "out"]) == 2
    assert capsys.readouterr().err == "autoshard: error: cut/plan.json was changed: its SHA-256 is another\n"
    assert not Path("out").exists()


def test_code_beside_a_tokenizer_and_a_model_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import os\nos.mkdir('ran')\n"
    huggingface_folder(Path("hf"), LLAMA)
    config = json.loads(Path("hf/config.json").read_text())
    names = {"AutoModelForCausalLM": "modeling.Model", "AutoTokenizer": ["tokenization.Tokenizer", None]}
    Path("hf/config.json").write_text(json.dumps({**config, "auto_map": names}))
    Path("hf/tokenizer_config.json").write_text(json.dumps({"auto_map": names, "tokenizer_class": "Tokenizer"}))
    Path("hf/tokenizer.json").write_text(json.dumps(TOKENIZER))
    for name in ("modeling.py", "tokenization.py"):
        Path("hf", name).write_text(code)
    assert load_tokenizer(Path("hf")).vocab_size == 1
    convert(open_source(Path("hf")), Path("out"), Conversion("hf"), lambda count: None, lambda count: None)
    assert sorted(one.name for one in Path("out").iterdir() if one.suffix == ".py") == []
    assert not Path("ran").exists()


def test_a_tokenized_cache_is_not_a_pickle(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("words " * 100)
    made = prepare(DataSource(text, ByteTokenizer(), None, 16, True), tmp_path / "cache")
    for one in made.path.parent.iterdir():
        if one.is_file():
            one.write_bytes(BOMB)
    again = prepare(DataSource(text, ByteTokenizer(), None, 16, True), tmp_path / "cache")
    assert again.vocab_size == 256
    assert not Path("ran").exists()
