"""plan.json: the schema documents it, the same plan gives the same bytes, and a failed write leaves the old file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan, Stage
from autoshard.plans.plan_json import LINE_WIDTH, SECTIONS, compact_json, plan_to_dict, plan_to_json, write_plan
from autoshard.plans.schema import plan_schema
from autoshard.plans.validate import read_plan
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral, plan_one_device

PLANS = [plan_70b, plan_mixtral, plan_interleaved, plan_one_device]
REPOSITORY = Path(__file__).parents[2]

every_plan = pytest.mark.parametrize("make", PLANS, ids=lambda make: make.__name__)


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files("autoshard.plans").joinpath("plan.schema.json").read_text())
    return loaded


@every_plan
def test_satisfies_the_schema(make: Callable[[], Plan]) -> None:
    Draft202012Validator.check_schema(schema())
    Draft202012Validator(schema()).validate(json.loads(plan_to_json(make())))


def test_every_property_of_the_schema_has_a_description() -> None:
    missing = [path for path, node in nodes(schema(), "") if not node.get("description")]
    assert missing == []
    assert schema()["required"] == list(schema()["properties"]) == list(SECTIONS)


def nodes(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of every object in the schema."""
    if not isinstance(node, dict):
        return
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
    for name, child in node.items():
        if name in ("properties", "$defs"):
            for key, value in child.items():
                yield from nodes(value, f"{path}.{key}")
        elif name in ("items", "additionalProperties"):
            yield from nodes(child, f"{path}[]")


def test_the_schema_is_that_of_the_types() -> None:
    """After a change of a type, of its docstring or of sections.schema.json: `python -m autoshard.plans.schema`."""
    text = files("autoshard.plans").joinpath("plan.schema.json").read_text("utf-8")
    assert text == compact_json(plan_schema()) + "\n"


def test_the_schema_refuses_what_is_missing_unknown_or_beyond_its_limit() -> None:
    plan = json.loads(plan_to_json(plan_70b()))
    validator = Draft202012Validator(schema())
    assert validator.is_valid(plan)
    for path, value in (
        ("inputs/model/hidden_size", 0),
        ("inputs/model/graph", None),
        ("inputs/model/colour", 1),
        ("inputs/training/precision/master_dtype", "int8"),
        ("inputs/cluster/device/matmul_efficiency", 0),
        ("inputs/cluster/intra_domain", 3),
        ("strategy/zero", 4),
        ("strategy/axis_order", ["dp", "dp", "cp", "tp"]),
        ("estimate/fits_probability", 1.5),
        ("estimate/memory", []),
        ("search/fit_probability", 1),
        ("search/rejections", [{"reason": "x", "count": -1, "example": "y"}]),
        ("precision/name", "fp32"),
        ("stages", [{"index": 0}]),
    ):
        wrong = json.loads(json.dumps(plan))
        *parents, last = path.split("/")
        node = wrong
        for name in parents:
            node = node[name]
        node[last] = value
        assert not validator.is_valid(wrong), path


@every_plan
def test_round_trip(make: Callable[[], Plan], tmp_path: Path) -> None:
    write_plan(make(), tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again == make()
    assert plan_to_json(again) == (tmp_path / "plan.json").read_text()


@every_plan
def test_is_readable_and_small(make: Callable[[], Plan]) -> None:
    text = plan_to_json(make())
    assert text.endswith("}\n")
    assert len(text) < 100_000
    assert max(map(len, text.splitlines())) <= LINE_WIDTH + 1  # the comma


def test_stages_of_an_interleaved_plan() -> None:
    # 8 layers, 2 pipeline ranks with 2 chunks each: stage s is chunk s // 2 of rank s % 2
    assert plan_interleaved().stages == (
        Stage(0, 0, 0, 0, 2, True, False),
        Stage(1, 1, 0, 2, 4, False, False),
        Stage(2, 0, 1, 4, 6, False, False),
        Stage(3, 1, 1, 6, 8, False, True),
    )


def test_sections_of_the_70b_plan() -> None:
    values = plan_to_dict(plan_70b())
    # 64 query heads in 8 groups over tp0=8 x tp1=4: tp0 splits the KV heads, tp1 the queries that share one
    assert values["mesh"]["axes"][2:] == [{"name": "tp1", "size": 4}, {"name": "tp0", "size": 8}]
    assert values["parameters"]["model.layers.*.self_attn.k_proj.weight"] == {
        "dims": ["kvhead", "headdim", "embed"],
        "shape": [8, 128, 8192],
        "placements": {"dp": "I", "tp1": "I", "tp0": "kvhead"},
        "gradient_sync": ["dp", "tp1"],
    }
    # 1024 sequences / (dp 2 x 1)
    assert values["schedule"]["num_microbatches"] == 512
    assert values["recompute"] == {"core_attention": ["model.layers.*.self_attn.core_attention"]}
    assert values["optimizer"]["sharded_over"] == ["dp"]
    # One microbatch of both replicas: 8192 tokens x 8192 wide x 2 bytes on each
    gathers = [
        step["forward"] for step in values["collectives"] if step["target"].endswith("input_layernorm@batch.R.R")
    ]
    assert gathers == [[{"kind": "all_gather", "axes": ["tp1", "tp0"], "bytes": 8192 * 8192 * 2}]]


def test_vocabulary_is_padded() -> None:
    # 250 tokens divide over tp=2 as they are; over one rank too
    assert plan_to_dict(plan_interleaved())["parameters"]["lm_head.weight"]["shape"] == [250, 64]


def test_the_runtime_gets_the_choices_that_are_written() -> None:
    plan = plan_interleaved()
    graph = plan.graph(plan.stages[3].layers, has_embedding=False, has_head=True)
    written = plan_to_dict(plan)["operators"]
    assert plan.choices(graph)["model.layers.7.mlp.up_proj"] == {"cp": "seq", "tp": "ffn"}
    assert written["model.layers.*.mlp.up_proj"]["choice"] == {"cp": "seq", "tp": "ffn"}
    assert len(plan.choices(graph)) == len(graph.operators)


def test_same_bytes_in_every_process() -> None:
    code = (
        "from tests.unit.plan_examples import plan_70b; from autoshard.plans.plan_json import plan_to_json; "
        "print(plan_to_json(plan_70b()))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {plan_to_json(plan_70b()) + "\n"}


def test_compact_json() -> None:
    assert compact_json({"a": 1.0, "b": [1.5, 2e15]}) == '{"a": 1, "b": [1.5, 2000000000000000]}'
    wide = {"x" * 100: 1, "y" * 100: 2, "z": 3}
    assert compact_json(wide) == "{\n" + f' "{"x" * 100}": 1,\n "{"y" * 100}": 2, "z": 3\n' + "}"
    assert json.loads(compact_json(wide)) == wide
    # the inner list has 149 columns: behind one of indent it fits into 150, between two brackets it does not
    assert compact_json([["x" * 71, "y" * 70]]) == "[\n" + f' ["{"x" * 71}", "{"y" * 70}"]\n' + "]"
    assert compact_json({"a": (1.0, 2)}) == '{"a": [1, 2]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        compact_json(float("nan"))


def test_write_into_a_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "plan.json"
    with pytest.raises(AutoshardError, match=f"^plan {path} cannot be written: No such file or directory$"):
        write_plan(plan_70b(), path)


def test_write_to_a_directory(tmp_path: Path) -> None:
    with pytest.raises(AutoshardError, match=f"^plan {tmp_path} is a directory; name a file in it$"):
        write_plan(plan_70b(), tmp_path)


def test_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    # A file size limit stands in for a full disk; SIGXFSZ would end the process otherwise.
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(AutoshardError, match=f"^plan {path} cannot be written: File too large$"):
            write_plan(plan_70b(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "plan.json"
    link.symlink_to(target)
    write_plan(plan_one_device(), link)
    assert link.is_symlink()
    assert read_plan(target) == plan_one_device()


def test_write_to_a_device_does_not_replace_it() -> None:
    write_plan(plan_one_device(), os.devnull)
    assert not Path(os.devnull).is_file()
