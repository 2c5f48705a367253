"""What the processes of a run are told, checked field by field where it arrives."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.runtime.worker_arguments import CheckpointOptions, TrainArguments

CHECKPOINTS = CheckpointOptions("s3://bucket/run", 10, 3, None, "auto", False)
ARGUMENTS = TrainArguments(
    plan="plan.json",
    data="tokens",
    steps=5,
    learning_rate=1e-3,
    warmup_steps=0,
    lr_schedule="constant",
    seed=0,
    device="cpu",
    backend="torch",
    checkpoints=CHECKPOINTS,
)


@pytest.mark.parametrize("checkpoints", [None, CHECKPOINTS])
def test_they_arrive_as_they_were_sent(checkpoints: CheckpointOptions | None) -> None:
    sent = TrainArguments(**{**vars(ARGUMENTS), "checkpoints": checkpoints, "collective_timeout_s": 33})
    assert from_json(TrainArguments, json.loads(json.dumps(to_json(sent))), "arguments") == sent


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"steps": "5"}, "arguments.steps is '5'; it must be int"),
    ({"steps": True}, "arguments.steps is True; it must be int"),
    ({"eval_every": 2.5}, "arguments.eval_every is 2.5; it must be int or null"),
    ({"compile": 1}, "arguments.compile is 1; it must be bool or null"),
    ({"checkpoints": {**vars(CHECKPOINTS), "keep": None}}, "checkpoints.keep is None; it must be int"),
    ({"checkpoints": {"location": "here"}}, "arguments.checkpoints lacks every"),
    ({"checkpoints": "here"}, "arguments.checkpoints must be an object with named fields, not 'here'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        from_json(TrainArguments, {**to_json(ARGUMENTS), **changes}, "arguments")
    assert str(error.value) == message


@pytest.mark.parametrize("name", to_json(ARGUMENTS))
def test_no_field_may_lack(name: str) -> None:
    values = to_json(ARGUMENTS)
    del values[name]
    with pytest.raises(AutoshardError, match=rf"^arguments lacks {name}$"):
        from_json(TrainArguments, values, "arguments")


def test_no_field_may_be_unknown() -> None:
    with pytest.raises(AutoshardError, match=r"^arguments has a field that is not known: 'stepz'; known: plan, data, "):
        from_json(TrainArguments, {**to_json(ARGUMENTS), "stepz": 5}, "arguments")


def test_the_runtime_reads_no_argument_by_its_name() -> None:
    """And nobody but the records, the backends' own folders and forms of files names a backend."""
    package = Path(__file__).parents[2] / "autoshard"
    read, named = [], []
    for path in sorted(package.rglob("*.py")):
        where, text = str(path.relative_to(package)), path.read_text(encoding="utf-8")
        if where != "cli.py" and re.search(r"\barguments\[[\"']", text):
            read.append(where)
        if where.startswith(("backends/", "runtime/torch_backend/", "runtime/nxd_backend/")):
            continue
        named += [where] * len(re.findall(r"\"nxd\"|backend\w* (?:==|!=) \"torch\"", text))
    assert read == []
    forms = ["conversion/convert.py", "conversion/forms.py", *["interface/converting.py"] * 2]  # NxD's files, a form
    assert named == [*forms, *["spec/platform.py"] * 2]  # a generation's own default
