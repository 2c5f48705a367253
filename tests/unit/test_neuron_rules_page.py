"""tests/neuron/rules.md is the contract as it is: each rule with its tests."""

from __future__ import annotations

from tests.neuron.guards import TESTS, UNGUARDED
from tests.neuron.rules_page import FILE, guards_of, page, versions
from tests.neuron.twin.neuron_rules import RULES, Rule


def test_the_page_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == page(), "python -m tests.neuron.rules_page"


def test_every_rule_has_a_guard_that_is_taken_away_or_a_reason() -> None:
    guarded = {rule.name for rule in RULES if list(guards_of(rule))}
    assert not guarded & set(UNGUARDED)
    assert guarded | set(UNGUARDED) == {rule.name for rule in RULES}
    said = {text for guards in TESTS.values() for text in guards.values() if text.startswith("[rule ")}
    assert said == {f"[rule {name}]" for name in guarded}


def test_the_tests_that_the_page_names_are_there() -> None:
    folder = FILE.parent
    for file, names in (("test_mutations.py", TESTS), ("test_rules.py", ("test_it_is_refused_where_it_holds",))):
        text = (folder / file).read_text(encoding="utf-8")
        assert all(f"def {name}(" in text for name in names)


def test_versions() -> None:
    assert versions(Rule("a", "b", "c")) == "all"
    assert versions(Rule("a", "b", "c", since=(2, 13), until=(2, 14, 1))) == "from 2.13, before 2.14.1"
