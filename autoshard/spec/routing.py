"""The expected unevenness of routers: how many tokens the busiest experts get, as a number or as counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.codec import read_value
from autoshard.files.json_file import read_json
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TokensOfExperts, TrainingSpec

MAX_FILE_BYTES = 200_000
"""Counts of MOST_EXPERTS experts with many digits each."""
_TOLERANCE = 1e-9


def with_imbalance(training: TrainingSpec, given: float | str) -> TrainingSpec:
    """The training with what --expert-imbalance gives: how many times the mean the busiest rank's experts get, or the
    JSON file with the tokens of each expert. Raises AutoshardError for a wrong number and for a wrong file."""
    if not isinstance(given, str):
        return replace(training, expert_imbalance=given)
    where = f"expert_imbalance: {Path(given).name}"
    counts = read_value(TokensOfExperts, read_json(given, "tokens of experts", MAX_FILE_BYTES), where)
    return replace(training, expert_tokens=counts)


def check_routing(model: ModelSpec, training: TrainingSpec) -> None:
    """Raises AutoshardError where the model has no experts that tokens could be uneven among, or others than those that
    the training counts, or where one gets more than all tokens."""
    counts, times = training.expert_tokens, training.expert_imbalance
    if not counts and times == 1:
        return
    field = f"expert_tokens of {len(counts)} experts" if counts else f"expert_imbalance={times:g}"
    if not model.is_moe:
        raise AutoshardError(f"{field} of the training: {model.name} is dense, it has no experts to be uneven")
    experts, chosen = model.num_local_experts, model.num_experts_per_tok
    if counts and len(counts) != experts:
        raise AutoshardError(f"{field} of the training: {model.name} has num_local_experts={experts}")
    most = model.num_candidates / chosen
    busiest = max(counts) * experts / sum(counts) if counts else times
    if busiest > most * (1 + _TOLERANCE):
        others = f" and zero_expert_num={model.zero_expert_num}" if model.zero_expert_num else ""
        field = f"expert_tokens[{counts.index(max(counts))}], {busiest:.4g} times the mean," if counts else field
        raise AutoshardError(
            f"{field} of the training must be at most {most:g}: with num_experts_per_tok={chosen} of "
            f"num_local_experts={experts}{others} in {model.name} an expert then gets every token"
        )
