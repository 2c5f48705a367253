"""Each published layout is a recipe, and each recipe says the same as the table it came from."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.calibration.results.instance_rows import instance_case
from autoshard.cli import build_parser
from autoshard.graph.recompute import COMMON_SETS
from autoshard.models import load_model
from autoshard.planner.inputs import inputs_of
from autoshard.planner.options import OPTIONS, PINS, request_from
from autoshard.schedules import SCHEDULES
from autoshard.spec.cluster import instances, load_cluster
from autoshard.spec.training import PRECISIONS
from benchmarks import operator_recipes
from benchmarks.published_recipes import measured_id

REPOSITORY = Path(__file__).parents[2]
RECIPES = sorted((REPOSITORY / "recipes").glob("*.yaml"))
MEASURED = sorted((REPOSITORY / "recipes" / "measured").glob("*.yaml"))
OPEN = sorted((REPOSITORY / "recipes" / "open").glob("*.yaml"))
OPERATORS = sorted((REPOSITORY / "recipes" / "operators").glob("*.yaml"))
SWEEPS = sorted((REPOSITORY / "recipes" / "sweeps").glob("*.yaml"))
RECOMPUTE = {
    "selective[CoreAttention]": "core_attention",
    "selective[CoreAttention;LlamaMLP]": "core_attention+mlp",
    "full": "full",
}
SAME = ("tp", "pp", "cp", "ep", "vpp", "micro_batch", "nodes", "lnc", "seq_len", "global_batch")


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    """Published results on Trainium, by their names."""
    with (REPOSITORY / "benchmarks" / "data" / "measured_trainium.csv").open() as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


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


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_measured_recipe_is_the_row_that_it_names(
    path: Path, rows: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    name = measured_id(path)
    assert name is not None
    case, recipe = instance_case(rows[name]), read(path)
    assert f", {float(rows[name]['step_time_s']):g} s a step" in path.read_text().splitlines()[0]
    request = request_from({option: OPTIONS[option].parse(value) for option, value in recipe.items()})
    model, training, cluster, _ = inputs_of(request)
    for field in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        assert getattr(model, field) == getattr(case.model, field), field
    assert 0 <= case.model.vocab_size - model.vocab_size <= 16  # AWS's 13B has 32,016 words, Meta's 32,000
    assert (training.sequence_length, training.global_batch_size) == (
        case.training.sequence_length,
        case.training.global_batch_size,
    )
    assert training.precision == case.training.precision
    assert (cluster.instance, cluster.nodes) == (case.cluster.instance, case.cluster.nodes)
    strategy = case.strategy
    names = {"vpp": "num_virtual_stages", "micro_batch": "microbatch_size"}
    for option in ("tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch", "schedule", "attention_kernel", "zero"):
        assert recipe[option] == getattr(strategy, names.get(option, option)), option
    assert {recipe["recompute"]} == set(strategy.recompute)


@pytest.mark.parametrize("path", OPEN, ids=lambda path: path.stem)
def test_an_open_recipe_fixes_no_choice(path: Path) -> None:
    recipe = read(path)
    assert not set(recipe) & {option.name for option in PINS}
    inputs_of(request_from({option: OPTIONS[option].parse(value) for option, value in recipe.items()}))


@pytest.mark.parametrize("path", [*RECIPES, *MEASURED, *OPEN, *OPERATORS], ids=lambda path: path.stem)
def test_a_recipe_is_a_config_of_the_command(path: Path) -> None:
    parsed = build_parser("plan").parse_args(["plan", "--config", str(path)])
    recipe = read(path)
    assert {option: parsed["plan"][option] for option in recipe} == {
        option: OPTIONS[option].parse(value) for option, value in recipe.items()
    }


def test_every_recipe_is_in_the_table_of_results() -> None:
    table = (REPOSITORY / "benchmarks" / "results" / "published_recipes.md").read_text()
    listed = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    recipes = REPOSITORY / "recipes"
    assert listed == [path.relative_to(recipes).with_suffix("").as_posix() for path in (*RECIPES, *MEASURED, *OPEN)]


@pytest.mark.parametrize("path", [one for one in OPERATORS if "1chip" in one.stem], ids=lambda path: path.stem)
def test_the_solver_pays_where_a_recipe_asks_for_it(path: Path) -> None:
    found = operator_recipes.row(path)
    assert found.faster > 0.02
    assert found.sent < found.by_rule and found.changed


def test_every_recipe_of_the_solver_is_in_its_table_and_pays() -> None:
    table = (REPOSITORY / "benchmarks" / "results" / "operator_recipes.md").read_text()
    found = re.findall(r"^\| `([^`]+)` \|.*\| ([\d.]+)% \| -[\d.]+% \|", table, flags=re.MULTILINE)
    assert [name for name, _ in found] == [path.stem for path in OPERATORS]
    assert len(found) >= 5 and all(float(share) > 2 for _, share in found)


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
