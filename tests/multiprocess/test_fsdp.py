"""ZeRO-2 and ZeRO-3 train as torch's own FSDP2 does."""

from pathlib import Path

import pytest

from autoshard.runtime.launch import run_processes
from tests.multiprocess.started import forked


def test_losses_are_those_of_fully_shard(tmp_path: Path) -> None:
    outcome = run_processes(
        "tests.multiprocess.fsdp_workers:losses",
        {},
        2,
        on_message=print,
        log_directory=tmp_path,
        trusted_prefix="tests.multiprocess.",
        start=forked(),
    )
    assert outcome.exit_code == 0, outcome.message
    found = outcome.results[0]
    assert found is not None
    assert found["ZeRO-3"] == pytest.approx(found["fully_shard"], rel=1e-6)
    assert found["ZeRO-2"] == pytest.approx(found["fully_shard"], rel=1e-6)
    assert found["fully_shard"][-1] != found["fully_shard"][0]
    assert found["gathered"] <= 2
