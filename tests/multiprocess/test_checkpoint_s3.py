"""A run that saves to S3 and goes on from there, while requests fail and one save fails for good."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.plans.plan_json import write_plan
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.s3_server import BUCKET, ERROR_500, OK, SLOW_DOWN_503, Proxy, environment, s3_server

PLACE = f"s3://{BUCKET}/runs/tiny"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with s3_server() as server:
        yield server


def run(folder: Path, proxy: Proxy, *options: str) -> tuple[str, list[float]]:
    """-> what it said, without line breaks, and its losses."""
    output = f"runs-{len(list(folder.glob('runs-*')))}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(proxy).items():
            patch.setenv(name, value)
        ran = autoshard(folder, "run", "plan.json", "--steps", "7", "--output", output, *options)
    assert ran.returncode == 0, ran.stderr
    (file,) = folder.glob(f"{output}/*/metrics.jsonl")
    return " ".join(ran.stdout.split()), [json.loads(line)["loss"] for line in file.read_text().splitlines()]


def test_a_run_goes_on_from_s3_through_errors_and_an_outage(tmp_path: Path, proxy: Proxy) -> None:
    """Saved while every third new request fails once, at step 6 always; then it goes on from step 4 likewise."""
    write_plan(plan_of(replace(LLAMA, vocab_size=256), strategy(dp=2), 2, FP32), tmp_path / "plan.json")
    known: dict[tuple[str, str], int] = {}

    def every_third(method: str, path: str) -> str:
        if (method, path) in known:
            return OK
        number = known.setdefault((method, path), len(known))
        return (ERROR_500, OK, OK, SLOW_DOWN_503, OK, OK)[number % 6]

    def and_step_6(method: str, path: str) -> str:
        return ERROR_500 if method in ("PUT", "POST") and "step-00000006" in path else every_third(method, path)

    proxy.fault = and_step_6
    said, undisturbed = run(tmp_path, proxy, "--checkpoint-every", "2", "--checkpoint-dir", PLACE)
    assert {fault for _, _, fault in proxy.seen} == {OK, ERROR_500, SLOW_DOWN_503}
    message = f"checkpoint of step 6 NOT saved, the newest complete one in {PLACE} is of step 4: rank 0: "
    assert f"{message}{PLACE}/step-00000006/" in said
    assert "S3 answers InternalError: injected" in said
    assert said.count("NOT saved") == 1
    proxy.fault = every_third
    said, losses = run(tmp_path, proxy, "--resume", f"{PLACE}/step-00000004")
    assert f"resumed from {PLACE}/step-00000004, after step 4" in said
    assert losses == undisturbed[4:]
