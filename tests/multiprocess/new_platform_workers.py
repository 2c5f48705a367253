"""The trainer's work in processes that know a platform of the tests: a small node, whose groups are folded."""

from dataclasses import replace
from typing import Any

from autoshard.runtime.trainer import worker
from autoshard.runtime.worker import Reporter
from autoshard.spec.platform import PLATFORMS, Torus
from tests.new_platform import TRN9

SMALL = replace(TRN9, torus=Torus(chips_per_node=4, folded_groups_per_node=2, row_order=(0, 2, 1, 3)))
"""As TRN9, but its torus is one of four chips of two devices: tp=4 is a group of two rows of it."""


def train(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    PLATFORMS[SMALL.name] = SMALL
    return worker.train(values, reporter)


def compare(values: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    PLATFORMS[SMALL.name] = SMALL
    return worker.compare(values, reporter)
