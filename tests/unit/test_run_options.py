"""What `autoshard run` may be told, and what it says to what it may not."""

from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.runtime.options import RunOptions


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps=0 must be a whole number of at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be a finite number above 0"),
        ({"seed": 2**70}, "seed=1180591620717411303424 must be a whole number of at most 9,223,372,036,854,775,807"),
        ({"lr_schedule": "step"}, "lr_schedule='step' is not one of: constant, linear, cosine"),
        ({"eval_fraction": 1.5}, "eval_fraction=1.5 must be between 0 and 1"),
        ({"eval_every": 5}, "eval_every=5 needs data to evaluate on: eval_data or eval_fraction"),
        ({"eval_every": 0, "eval_fraction": 0.1}, "eval_every=0 must be a whole number of at least 1"),
        ({"eval_data": Path("/"), "eval_fraction": 0.1}, "eval_fraction=0.1 and eval_data=/: give one of them"),
        ({"eval_data": Path("/no such file")}, "eval_data=/no such file does not exist"),
        ({"eval_batches": 0, "eval_fraction": 0.1}, "eval_batches=0 must be a whole number of at least 1"),
        ({"keep_every": 0}, "keep_every=0 must be a whole number of at least 1"),
        (
            {"keep_every": 5, "checkpoint_every": 2},
            "keep_every=5 is no multiple of checkpoint_every=2: there is no checkpoint of step 5 to keep",
        ),
        (
            {"document_mask": True, "backend": "nxd"},
            "document_mask: NxD's attention is causal over whole rows, documents or not: use backend=torch",
        ),
        (
            {"compile": True, "backend": "nxd"},
            "compile: Neuron compiles by itself: leave --compile out, or use backend=torch",
        ),
        (
            {"compile": True, "debug_nan": True},
            "compile and debug_nan: one makes a function of many operators, the other looks at each",
        ),
        ({"resume": "/no such folder"}, "resume=/no such folder is not auto, never or a folder with a checkpoint"),
    ],
)
def test_options_that_will_not_do(values: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        RunOptions(**values)
    assert str(error.value) == message
