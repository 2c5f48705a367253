"""Arguments of the interface that are of another type, or out of range, are told in a line, as on the command line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from numpy import arange, array, float32, int64

import autoshard
from autoshard import AutoshardError, Run
from autoshard.runtime.options import options_from
from autoshard.sweeps.grid import sweep_of
from autoshard.sweeps.table import read_table

PUBLIC: Any = autoshard
"""Without its types, to be called wrongly."""
GRID = {"model": "llama3-8b", "nodes": [1, 2]}
ABOUT_A_PLAN = ("audit", "explain", "report", "trace")
COUNT = "of calibrate must be a whole number from 1 to 1,000,000,000"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        *((name, {"quick": "no"}, f"quick='no' of {name} must be true or false") for name in ("explain", "report")),
        *(
            (name, {"time_limit": value}, f"time_limit={value!r} of {name} must be a finite number above 0{more}")
            for name in ("explain", "report")
            for value, more in ((-1, ""), (math.nan, ""), ("9", ", without quotes"))
        ),
        ("trace", {"out": 3}, "trace 3 cannot be written: it is no path"),
        ("sweep", {"grid": GRID, "out": 3}, "out=3 of sweep must be a path"),
        ("sweep", {"grid": GRID, "run": "no"}, "run='no' of sweep must be true or false"),
        ("sweep", {"grid": GRID, "wandb": "no"}, "wandb='no' of sweep must be true or false"),
        (
            "sweep",
            {"grid": GRID, "shard": 2},
            "shard=2 must be N/M, the N-th of M parts; sweep sweep has 2 points, so M is at most that",
        ),
        ("calibrate", {"shapes": 0}, f"shapes=0 {COUNT}"),
        ("calibrate", {"device": "tpu"}, "device='tpu' of calibrate must be one of: cpu, cuda, neuron"),
        ("calibrate", {"device": 3}, "device=3 of calibrate must be one of: cpu, cuda, neuron"),
        ("calibrate", {"processes": -1}, f"processes=-1 {COUNT}"),
        *(
            ("calibrate", {name: 3}, f"{name}=3 of calibrate must be a path")
            for name in ("collectives", "out", "hardware", "plot")
        ),
        *(("planbench", {name: 3}, f"{name}=3 of planbench must be a path") for name in ("data", "out")),
        (
            "planbench",
            {"track": "searchers", "entries": "random"},
            "entries='random' of planbench must be names, such as ['random']",
        ),
        ("sweep", {"grid": GRID, "out": ""}, "out='' of sweep must be a path"),
        ("sweep", {"grid": GRID, "out": "a\0b"}, "out='a\\x00b' of sweep must be a path"),
        *(
            (
                "launch",
                {"plan": "none.yaml", "array": value},
                f"array={value!r} of launch must be a whole number from 1 to 1,000,000,000{more}",
            )
            for value, more in ((0, ""), ("2", ", without quotes"), (2.5, ""))
        ),
        *(
            (name, {"measured": Run(0, None)}, f"measured=Run(exit_code=0, folder=None) of {name} must be a path")
            for name in ("report", "trace")
        ),
        ("import_plan", {"file": 3}, "file=3 of import_plan must be a path"),
        *(
            (
                "score",
                {"layout": layout},
                f"layout={layout!r} of score must be words such as 'tp=8 pp=4', a strategy, a plan or a path",
            )
            for layout in (3, None, "")
        ),
        ("migrate", {"conf": {}}, "conf=an object of 0 of migrate must be a path"),
        *(
            (name, {**given, flag: "no"}, f"{flag}='no' of {name} must be true or false")
            for name, given, flags in (
                ("launch", {"plan": "none.json"}, ("run", "precompile")),
                ("convert_checkpoint", {"source": "none", "target": "new"}, ("weights_only", "xser")),
                ("migrate", {"conf": "none.yaml"}, ("weights_only",)),
                ("audit", {}, ("use_cache",)),
            )
            for flag in flags
        ),
        (
            "convert_checkpoint",
            {"source": "none", "target": "new", "kv_size_multiplier": 0},
            "kv_size_multiplier=0 of convert_checkpoint must be a whole number from 1 to 1,000,000,000",
        ),
        (
            "launch",
            {"plan": "none.json", "on": array([1, 2])},
            "on=array([1, 2]) of launch must be one of: slurm, kubernetes",
        ),
        ("migrate", {"conf": "none.yaml", "out": 3}, "out=3 of migrate must be a path"),
        ("migrate", {"conf": "none.yaml", "checkpoint": 3}, "checkpoint=3 of migrate must be a path"),
    ],
)
def test_a_value_of_another_type_is_told_in_a_line(name: str, given: dict[str, Any], message: str) -> None:
    if name in ABOUT_A_PLAN:
        given = {"plan": autoshard.plan("llama3-8b", nodes=1), **given}
    with pytest.raises(AutoshardError) as raised:
        getattr(autoshard, name)(**given)
    assert str(raised.value) == message


def test_numbers_of_numpy_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a table are, or of a loop over arange."""
    monkeypatch.chdir(tmp_path)
    cluster = autoshard.cluster("trn1.32xlarge", nodes=2)
    for bandwidth in (float32(2**30), int64(2**30)):
        assert cluster.with_link(bandwidth=bandwidth) == cluster.with_link(bandwidth=2.0**30)
    assert type(cluster.with_nodes(int64(4)).nodes) is int
    assert cluster.with_nodes(int64(4)) == cluster.with_nodes(4)
    plan = autoshard.plan("llama3-8b", cluster)
    assert autoshard.replan(plan, int64(3)) == autoshard.replan(plan, 3)
    assert plan.page(int64(80)) == plan.page(80)
    assert plan.summary(int64(80)) == plan.summary(80)
    assert autoshard.report(plan, quick=True, time_limit=float32(2)) == autoshard.report(plan, quick=True)
    asked = {"steps": int64(3), "learning_rate": float32(0.5)}
    assert options_from(asked) == options_from({"steps": 3, "learning_rate": 0.5})
    assert autoshard.sweep({**GRID, "nodes": arange(1, 3)}, workers=int64(1)).table()["nodes"] == [1, 2]
    file = tmp_path / "sweep.yaml"
    file.write_text("model: llama3-8b\ngrid: {nodes: [1, 2]}")
    assert autoshard.launch(file, array=int64(2)).text == autoshard.launch(file, array=2).text


def test_a_sweep_takes_a_path_for_a_model_as_plan_does(tmp_path: Path) -> None:
    config = tmp_path / "mine.json"
    config.write_bytes((Path(autoshard.__file__).parent / "models/llama/configs/llama3.2-1b.json").read_bytes())
    for grid in ({"model": [config], "nodes": 1}, {"model": config, "nodes": [1]}):
        assert autoshard.sweep(grid, tmp_path / "found").table()["status"] == ["ok"]
    assert read_table(tmp_path / "found/results.csv")[0].values["model"] == str(config)


@pytest.mark.parametrize(
    ("name", "message"),
    [("save", "path=3 of save must be a path"), ("diagnose", "snapshot=3 of diagnose must be a path")],
)
def test_the_memory_of_a_rank_wants_paths(name: str, message: str) -> None:
    found = PUBLIC.Memory(autoshard.plan("llama3-8b", nodes=1), None)
    with pytest.raises(AutoshardError) as raised:
        getattr(found, name)(3)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("width", "message"),
    [
        ("80", "width='80' of a page must be a whole number from 1 to 1,000,000,000, without quotes"),
        (0, "width=0 of a page must be a whole number from 1 to 1,000,000,000"),
        (True, "width=True of a page must be a whole number from 1 to 1,000,000,000"),
    ],
)
def test_a_page_wants_a_number_of_columns(width: Any, message: str) -> None:
    plan = autoshard.plan("llama3-8b", nodes=1)
    for page in (plan.page, plan.summary):
        with pytest.raises(AutoshardError) as raised:
            page(width)
        assert str(raised.value) == message


def test_a_cluster_is_slowed_by_a_positive_number() -> None:
    cluster = autoshard.cluster("trn1.32xlarge", nodes=1)
    assert cluster.slowed(1) is cluster
    with pytest.raises(AutoshardError) as raised:
        cluster.slowed(0)
    assert str(raised.value) == "factor=0 of a slower cluster must be a finite number above 0"


def test_a_sweep_takes_what_a_sweep_file_holds(tmp_path: Path) -> None:
    """A file that was read by a YAML reader has its lists under `grid`."""
    held = {"model": "llama3-8b", "seq_len": 2048, "grid": {"nodes": [1, 2]}}
    assert sweep_of(held, "sweep") == sweep_of({"model": "llama3-8b", "seq_len": 2048, "nodes": [1, 2]}, "sweep")
    with pytest.raises(AutoshardError) as raised:
        autoshard.sweep({**held, "tp": [1, 2]}, tmp_path)
    assert str(raised.value) == "tp of sweep sweep: [1, 2] must be a whole number of at least 1"
