"""Layouts that nobody chose train like one process; benchmarks/random_layouts.py tries more of them."""

from random import Random

import pytest

from autoshard.models.registry import builtin_models
from autoshard.runtime.rehearse import local_cluster
from benchmarks.random_layouts import _of_few_blocks, legal, main, trained
from tests.cases import ALL, some
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP64


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("seed", some([0, 3], 1))
def test_random_layouts_train_like_one_process(seed: int, operators: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    several = 12 if ALL else 4
    monkeypatch.setattr("benchmarks.random_layouts.TOGETHER", several)
    found = [*trained(Random(seed), operators)]
    assert len(found) == several
    assert [(name, plan.strategy, words) for name, plan, words in found if words] == []


def test_audits_have_no_operators_drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["random_layouts", "--audits", "--operators", "--seconds", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "argument --operators: not allowed with argument --audits" in capsys.readouterr().err


def test_audits_draw_of_all_models_whose_kinds_of_blocks_have_room() -> None:
    assert {*builtin_models()} - {*_of_few_blocks()} == {"step-3.7-flash"}


def test_what_is_drawn_is_a_function_of_the_seed_and_varied() -> None:
    several = [legal(Random(seed), MODELS, local_cluster(4), 16, FP64) for seed in range(30)]
    assert several == [legal(Random(seed), MODELS, local_cluster(4), 16, FP64) for seed in range(30)]
    layouts = [plan.strategy for _, plan in several]
    for choice in ("tp", "pp", "dp", "cp", "ep", "zero", "schedule", "context_parallel", "axis_order", "recompute"):
        assert len({getattr(one, choice) for one in layouts}) > 1, choice
