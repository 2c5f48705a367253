"""No bound of a random layout is above its estimate; benchmarks/random_bounds.py tries more of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from autoshard.models.registry import load_model
from autoshard.planner.grid.mesh_bounds import layout_bounds
from benchmarks.random_bounds import bounded, inputs, main, of_a_mixture
from tests.cases import some

GIVEN = {"model": "llama3.2-1b", "instance": "h100-80gb", "nodes": "2", "backend": "torch", "global-batch": "64"}


@pytest.mark.parametrize(
    "given",
    some(
        [
            {},
            {"model": "qwen3-30b-a3b", "nodes": "4", "etp": "1", "dp-replicate": "2"},
            {"instance": "trn2.48xlarge", "stack": "neuron-stages"},
        ],
        2,
    ),
)
def test_no_bound_is_above_the_estimate_of_a_random_layout(given: dict[str, str]) -> None:
    problem, pins = inputs(GIVEN | given)
    found = [*bounded(Random(0), problem, pins)]
    assert [(strategy, faults) for strategy, faults in found if faults] == []
    assert len({strategy.axis_order for strategy, _ in found}) > 1


def test_requests_of_mixtures_pin_what_a_bound_may_hide_behind() -> None:
    for seed in range(5):
        given = of_a_mixture(seed)
        assert load_model(given["model"]).is_moe
        assert int(given["cp"]) > 1
        assert given["recompute"]


@pytest.mark.parametrize(("field", "words"), [("step_time_s", "seconds"), ("memory_bytes", "bytes")])
def test_a_bound_that_is_too_high_is_seen(
    field: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def higher(*arguments: Any, **named: Any) -> Any:
        bounds = layout_bounds(*arguments, **named)
        return bounds._replace(**{field: 3 * getattr(bounds, field)})

    monkeypatch.setattr("benchmarks.random_bounds.layout_bounds", higher)
    monkeypatch.setattr("benchmarks.random_bounds.request", lambda seed: GIVEN)
    monkeypatch.setattr("sys.argv", ["random_bounds", "--seconds", "0.01"])
    assert main() == 1
    printed = capsys.readouterr().out
    assert printed.startswith("seed 0: --model llama3.2-1b --instance h100-80gb --nodes 2")
    assert f"\n  {words} with any memory: at least " in printed
