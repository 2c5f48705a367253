"""Rules of a group read no more of a draft than the group says: searches ask them once for each of those values."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from autoshard.backends.mesh_rules import TP_RULES
from autoshard.backends.rules import (
    KERNEL_FIELDS,
    LAYOUT_FIELDS,
    LAYOUT_RULES,
    SENDING_FIELDS,
    SENDING_RULES,
    STATE_FIELDS,
    Draft,
    FirstBroken,
    KnownRules,
    Problem,
    divisors,
    first_broken,
    kernel_rules,
    mesh_rules,
    state_rules,
)
from autoshard.layout.context_parallel import CONTEXT_PARALLEL
from autoshard.models.registry import load_model
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

TRAINING = TrainingSpec(4096, 48, load_precision("mixed_precision"))


class Reading(Draft):
    """A draft that remembers which of its fields were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in Draft._fields:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


def problems(backend: str) -> list[Problem]:
    clusters = [load_cluster("trn1.32xlarge", 2), load_cluster("trn2.48xlarge", 1), load_cluster("cpu", 1)]
    return [
        Problem(load_model(model), TRAINING, cluster, backend)
        for model in ("llama3-8b", "mixtral-8x7b", "gemma2-27b", "deepseek-v3")
        for cluster in clusters
    ]


def drafts() -> list[Reading]:
    return [
        Reading(tp, pp, 4, cp, 1, size, vpp, schedule, kernel, (), tp > 1, zero, kind)
        for tp, pp, cp, size, vpp, schedule, kernel, zero, kind in product(
            (1, 8), (1, 2, 5), (1, 2), (1, 5), (1, 2), ("1f1b", "interleaved", "zero_bubble"), ("flash", "plain"),
            (0, 1, 3), CONTEXT_PARALLEL,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_rules_read_the_fields_of_their_group(backend: str) -> None:
    groups = (
        (TP_RULES, ("tp",)),
        (kernel_rules(backend), KERNEL_FIELDS),
        (state_rules(backend), STATE_FIELDS),
        (LAYOUT_RULES, LAYOUT_FIELDS),
        (SENDING_RULES, SENDING_FIELDS),
    )
    some = drafts()[::7]
    for rules, fields in groups:
        READ.clear()
        found = {rule.check(problem, draft) for problem in problems(backend) for rule in rules for draft in some}
        assert set(fields) >= READ
        assert len(found) > 1 or backend == "torch"  # something is broken


def test_what_is_known_is_what_the_first_rule_says() -> None:
    problem = problems("nxd")[0]
    known = KnownRules(problem)
    for draft in drafts()[::11]:
        assert known.layout(draft) == first_broken(LAYOUT_RULES, problem, draft)
        assert known.kernel(draft) == first_broken(kernel_rules("nxd"), problem, draft)


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_rules_on_tp_come_before_the_others_of_a_mesh(backend: str) -> None:
    """For a mesh that fills its cluster, both groups together say what all rules do."""
    for problem in problems(backend):
        known, world = KnownRules(problem), problem.cluster.world_size
        for tp, pp, cp in product(divisors(world), (1, 2, 4), (1, 2)):
            draft = Draft(tp, pp, max(1, world // (tp * pp * cp)), cp, 1, sequence_parallel=tp > 1)
            if tp * pp * cp * draft.dp == world:
                said = known.tp(draft) or first_broken(known.of_mesh, problem, draft)
                assert said == first_broken(mesh_rules(backend), problem, draft)


def test_equal_values_are_asked_once() -> None:
    asked: list[Draft] = []

    class Rule:
        reason = "a reason"

        @staticmethod
        def check(problem: Problem, draft: Draft) -> str | None:
            asked.append(draft)
            return "wrong" if draft.zero else None

    broken = FirstBroken(problems("nxd")[0], (Rule,), ("zero",))  # type: ignore[arg-type]
    one = Draft(8, 1, 4, 1, 1)
    answers = [broken(draft) for draft in (one, one._replace(tp=4), one._replace(zero=0), one._replace(zero=0, pp=2))]
    assert answers == [("a reason", "wrong"), ("a reason", "wrong"), None, None] and len(asked) == 2
