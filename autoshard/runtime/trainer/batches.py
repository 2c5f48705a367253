"""The run's prepared tokens, as batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.data import TokenStream, held_out, open_stream, read_token_file
from autoshard.runtime.worker_arguments import TrainArguments


@dataclass(frozen=True)
class Data:
    """Batches of a run. learned: those it trains on. held_out: those that only measure the loss; None without any."""

    learned: TokenStream
    held_out: TokenStream | None


def open_data(arguments: TrainArguments, plan: Plan) -> Data:
    """The run's prepared tokens as batches of the plan's shape."""
    learned = _stream(arguments.data, arguments, plan)
    if arguments.eval_data is not None:
        return Data(learned, _stream(arguments.eval_data, arguments, plan))
    if arguments.eval_fraction is not None:
        return Data(*held_out(learned, arguments.eval_fraction))
    return Data(learned, None)


def _stream(path: str, arguments: TrainArguments, plan: Plan) -> TokenStream:
    file = read_token_file(Path(path))
    if file is None:
        raise AutoshardError(f"the tokens at {path} are gone: run again")
    training = plan.training
    return open_stream(
        file,
        global_batch_size=training.global_batch_size,
        sequence_length=training.sequence_length,
        seed=arguments.seed,
    )
