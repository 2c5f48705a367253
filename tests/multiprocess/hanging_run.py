"""`autoshard` whose rank 1 hangs in its second optimizer step, for test_run.py to start by torchrun."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from autoshard.cli import main
from autoshard.runtime.torch_backend.optimizer import ShardedOptimizer

update = ShardedOptimizer.step
calls: list[None] = []


def hang(*arguments: Any) -> float:
    calls.append(None)
    if len(calls) == 2 and os.environ["RANK"] == "1":
        Path("hangs").touch()
        time.sleep(600)
    return update(*arguments)


ShardedOptimizer.step = hang  # type: ignore[assignment,method-assign]
sys.exit(main(sys.argv[1:]))
