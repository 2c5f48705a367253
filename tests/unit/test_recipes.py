"""Each published layout is a recipe, and each recipe says the same as the table it came from."""

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.graph.recompute import COMMON_SETS
from autoshard.models import load_model
from autoshard.schedules import SCHEDULES
from autoshard.spec.cluster import instances, load_cluster
from autoshard.spec.training import PRECISIONS

REPOSITORY = Path(__file__).parents[2]
RECIPES = sorted((REPOSITORY / "recipes").glob("*.yaml"))
SWEEPS = sorted((REPOSITORY / "recipes" / "sweeps").glob("*.yaml"))
RECOMPUTE = {
    "selective[CoreAttention]": "core_attention",
    "selective[CoreAttention;LlamaMLP]": "core_attention+mlp",
    "full": "full",
}
SAME = ("tp", "pp", "cp", "ep", "vpp", "micro_batch", "nodes", "lnc", "seq_len", "global_batch")


def read(path: Path) -> dict[str, Any]:
    recipe = yaml.safe_load(path.read_text())
    assert isinstance(recipe, dict)
    return recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_fills_its_cluster_and_uses_known_words(path: Path) -> None:
    recipe = read(path)
    cluster = load_cluster(recipe["instance"], recipe["nodes"], recipe["lnc"])
    assert recipe["tp"] * recipe["pp"] * recipe["dp"] * recipe["cp"] == cluster.world_size
    assert recipe["global_batch"] % (recipe["dp"] * recipe["micro_batch"]) == 0
    assert load_model(recipe["model"]).num_hidden_layers % (recipe["pp"] * recipe["vpp"]) == 0
    assert recipe["schedule"] in SCHEDULES
    assert recipe["recompute"] in COMMON_SETS
    assert recipe["precision"] in PRECISIONS
    assert recipe["attention_kernel"] in ("auto", "flash", "plain")


def test_the_recipes_are_the_published_layouts() -> None:
    recipes = {(recipe["model"], recipe["nodes"], recipe["cp"]): recipe for recipe in map(read, RECIPES)}
    with (REPOSITORY / "benchmarks" / "data" / "published_layouts.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(recipes) == 6
    for row in rows:
        recipe = recipes[row["model"], int(row["nodes"]), int(row["cp"])]
        assert [recipe[name] for name in SAME] == [int(row[name]) for name in SAME]
        assert (recipe["instance"], recipe["precision"]) == (row["instance"], row["precision"])
        assert recipe["recompute"] == RECOMPUTE[row["recompute"]]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_sweep_varies_instances_and_whole_numbers(path: Path) -> None:
    sweep = read(path)
    load_model(sweep["model"])
    grid = sweep["grid"]
    assert set(grid.get("instance", [])) <= set(instances())
    assert set(grid) <= {"instance", "nodes", "seq_len", "global_batch"}
    for values in (values for name, values in grid.items() if name != "instance"):
        assert sorted(set(values)) == values
        assert all(isinstance(value, int) and value > 0 for value in values)
