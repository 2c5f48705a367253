"""Compares our process groups and task orders with those that neuronx-distributed itself wrote to files.

    python -m benchmarks.nxd_conformance --groups FILE --schedules FILE

A file is a list of cases, or an object whose `cases` is one. A case of groups has `case` (world, tp, pp, cp, ep, lnc,
target, lws: NxD's LOCAL_WORLD_SIZE) and `groups`, or an `error` where NxD refuses; one of schedules has pp,
num_microbatches, vpp, `order` or `error`, and schedule (else interleaved where vpp > 1). The order of groups does not
count, that of the ranks in a group does. Exit code 0 when all are equal, 1 when one differs, 2 for another sort of
file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.json_file import read_json
from autoshard.runtime.nxd_backend.rank_groups import GroupCase, rank_groups
from autoshard.schedules import actions
from benchmarks.one_error import one_error

MAX_BYTES = 500_000_000
GROUP_FIELDS = {"world": "world_size", "target": "platform", "lws": "local_world_size"}
"""Name in the files -> name in GroupCase, where they differ."""
SHOWN = 120

Case = Mapping[str, Any]


def group_differences(case: Case) -> list[str]:
    """Differences between NxD's groups of one case and ours, one line each; empty where there are none."""
    given = {GROUP_FIELDS.get(name, name): value for name, value in case["case"].items()}
    asked = GroupCase(**given) if "error" not in case else None
    if asked is None:
        return _both_refuse(lambda: rank_groups(GroupCase(**given)), case["error"])
    try:
        ours = rank_groups(asked).by_name()
    except AutoshardError as error:
        return [f"ours refuses: {error}"]
    found = []
    logic = "LOGIC2" if asked.is_folded else "LOGIC1"
    if case.get("replica_logic", logic) != logic:
        found.append(f"replica_logic: NxD {case['replica_logic']}, ours {logic}")
    for kind, groups in case["groups"].items():
        theirs = sorted(map(tuple, groups))
        if kind not in ours:
            found.append(f"{kind}: no such kind of group here; ours: {', '.join(ours)}")
        elif theirs != sorted(ours[kind]):
            found.append(f"{kind}: {_first_difference(theirs, sorted(ours[kind]))}")
    return found


def schedule_differences(case: Case) -> list[str]:
    """Differences between NxD's task orders of one case and ours, one line a pipeline rank."""

    def orders() -> list[tuple[str, ...]]:
        schedule = case.get("schedule", "interleaved" if case["vpp"] > 1 else "1f1b")
        found = actions(schedule, case["pp"], case["num_microbatches"], case["vpp"])
        return [tuple(map(str, order)) for order in found]

    if "error" in case:
        return _both_refuse(orders, case["error"])
    try:
        ours = orders()
    except AutoshardError as error:
        return [f"ours refuses: {error}"]
    theirs = [tuple(order.split()) if isinstance(order, str) else tuple(order) for order in case["order"]]
    if len(theirs) != len(ours):
        return [f"NxD has {len(theirs)} pipeline ranks, ours {len(ours)}"]
    pairs = enumerate(zip(theirs, ours, strict=True))
    return [f"rank {rank}: {_first_difference(nxd, own)}" for rank, (nxd, own) in pairs if nxd != own]


def _both_refuse(ours: Callable[[], object], error: str) -> list[str]:
    try:
        ours()
    except AutoshardError:
        return []
    return [f"NxD refuses ({error}), ours does not"]


def _first_difference(theirs: Sequence[object], ours: Sequence[object]) -> str:
    if len(theirs) != len(ours):
        return f"NxD has {len(theirs)}, ours {len(ours)}"
    place = next(i for i, (nxd, own) in enumerate(zip(theirs, ours, strict=True)) if nxd != own)
    return f"at {place} NxD has {str(theirs[place])[:SHOWN]}, ours {str(ours[place])[:SHOWN]}"


def cases(path: Path, what: str, needed: tuple[str, ...], result: str) -> list[Case]:
    """The cases in a file. Raises AutoshardError where one lacks what it needs."""
    value = read_json(path, what, MAX_BYTES)
    found = value.get("cases") if isinstance(value, dict) else value
    if not isinstance(found, list):
        raise AutoshardError(f"{what} {path} must be a list of cases, or an object whose `cases` is one")
    for number, case in enumerate(found):
        missing = [name for name in needed if not isinstance(case, dict) or name not in case]
        if not missing and result not in case and "error" not in case:
            missing = [f"{result} and no error"]
        if missing:
            raise AutoshardError(f"{what} {path}: case {number} has no {missing[0]}")
    return found


def compare(what: str, found: Sequence[Case], differences: Callable[[Case], list[str]]) -> bool:
    """Prints the differences and `N of M equal`; returns whether all are equal."""
    equal = 0
    for number, case in enumerate(found):
        named = case.get("case") or {name: value for name, value in case.items() if name not in ("order", "error")}
        title = " ".join(f"{name}={value}" for name, value in named.items())
        try:
            wrong = differences(case)
        except (AutoshardError, AttributeError, KeyError, TypeError, ValueError) as error:
            wrong = [f"the case cannot be read: {error}"]
        equal += not wrong
        for line in wrong:
            print(f"{what} {number} ({title}): {line}")
    print(f"{what}: {equal} of {len(found)} equal")
    return equal == len(found)


@one_error
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.nxd_conformance", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--groups", type=Path, metavar="FILE", help="rank groups that NxD wrote (JSON)")
    parser.add_argument("--schedules", type=Path, metavar="FILE", help="task orders that NxD wrote (JSON)")
    given = parser.parse_args(arguments)
    if given.groups is None and given.schedules is None:
        parser.error("give --groups FILE, --schedules FILE or both")
    results = []
    if given.groups is not None:
        results.append(compare("groups", cases(given.groups, "groups", ("case",), "groups"), group_differences))
    if given.schedules is not None:
        needed = ("pp", "num_microbatches", "vpp")
        results.append(compare("schedules", cases(given.schedules, "schedules", needed, "order"), schedule_differences))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
