"""benchmarks/results/migrations.md: every published example of NxD Training, from what was predicted and run."""

from __future__ import annotations

import json

from benchmarks.migrations import FILES, HEADER, PROOF, RESULTS, page

NEAR = 1e-5
KNOWN = json.loads((RESULTS / "migrations.json").read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_results() -> None:
    assert (RESULTS / "migrations.md").read_text(encoding="utf-8") == page(KNOWN), "python -m benchmarks.migrations"


def test_the_page_names_every_published_example() -> None:
    lines = (RESULTS / "migrations.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == list(FILES) == list(KNOWN)
    assert all(len(row) == len(HEADER) for row in rows if row[2] == "yes")


def test_each_went_there_and_back_or_has_no_layer_here() -> None:
    refused = [name for name, one in KNOWN.items() if one["proof"] is None]
    assert refused == ["megatron_mixtral_dropless"] and "capacity factor" in KNOWN[refused[0]]["warnings"][0]
    for name, one in KNOWN.items():
        if name not in refused:
            assert all(0 < one["proof"][what] < NEAR for what in PROOF), name
