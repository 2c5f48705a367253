"""What torch.compile needs is asked for before anything starts."""

from pathlib import Path

import pytest

from autoshard.cli import main
from autoshard.plans.plan_json import write_plan
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy


def test_without_a_cpp_compiler_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(plan_of(MODELS["llama"], strategy(), 2), tmp_path / "plan.json")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(tmp_path / "plan.json"), "--compile"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: compile: torch compiles C++ on a CPU, and no-such-compiler is not on PATH: install it, name "
        "another compiler in CXX, or leave --compile out\n"
    )
    assert not (tmp_path / "runs").exists()
