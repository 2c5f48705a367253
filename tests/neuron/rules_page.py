"""The contract of native PyTorch for Neuron as a page: each rule, where it is from, and the tests that hold it.

    python -m tests.neuron.rules_page

writes tests/neuron/rules.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.neuron.guards import TESTS, UNGUARDED
from tests.neuron.twin.neuron_rules import RULES, Rule, Version

FILE = Path(__file__).parent / "rules.md"
HEADER = ("rule", "refused", "source", "torch-neuronx", "mode", "the test that it refuses", "without the guard")
TOP = """\
The rules of `twin/neuron_rules.py`, which says what the sources are; `python -m tests.neuron.rules_page` writes this
page.

* torch-neuronx: the versions that have the rule.
* mode: `strict` rules are known of betas alone, `NEURON_TWIN_STRICT=0` leaves them out. `silent`: the device computes
  something wrong there without an error; the twin refuses.
* the test that it refuses: a test of `test_rules.py`, in a release, in a beta, and in lenient mode.
* without the guard: the test of `test_mutations.py` that takes away what autoshard does for the rule, and sees the rule
  fire; or why there is nothing to take away.

"""


def guards_of(rule: Rule) -> Iterator[str]:
    """'test[guard]' of each test of test_mutations.py in which the rule fires."""
    for test, guards in TESTS.items():
        for guard, said in guards.items():
            if said == f"[rule {rule.name}]":
                yield f"{test}[{guard}]"


def versions(rule: Rule) -> str:
    """'all', 'from 2.13.3', 'before 2.13.3'."""
    ends = (("from", rule.since), ("before", rule.until))
    return ", ".join(f"{word} {_text(version)}" for word, version in ends if version is not None) or "all"


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def page() -> str:
    """The page as Markdown."""
    rows = [HEADER, ("---",) * len(HEADER), *(_cells(rule) for rule in RULES)]
    return TOP + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _cells(rule: Rule) -> tuple[str, ...]:
    modes = ("strict" if rule.strict else "always", *(("silent",) if rule.silent else ()))
    guards = [f"`{one}`" for one in guards_of(rule)] or [UNGUARDED[rule.name]]
    return (
        rule.name,
        rule.refuses,
        rule.source,
        versions(rule),
        ", ".join(modes),
        f"`test_it_is_refused_where_it_holds[{rule.name}-...]`",
        ", ".join(guards),
    )


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
