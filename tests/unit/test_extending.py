"""The worked examples of CONTRIBUTING.md, followed to the letter."""

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from autoshard.audits.expected import telling_microbatches
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.fit_probability import levels
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.explanation.trace import predicted_events
from autoshard.graph.recompute import COMMON_SETS
from autoshard.models import load_model
from autoshard.models.families import FAMILIES, Family, graph_of, weights_of
from autoshard.models.stage import parameter_count
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.whole import Priced
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.options import PINS
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.planner.toss_ups import GIVEN_AWAY
from autoshard.plans.plan import make_plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import plan_from_dict
from autoshard.schedules import SCHEDULES, actions, in_flight, simulate
from autoshard.schedules.closed_form import alternating_at_least_s
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.new_schedules import NEW_SCHEDULES

REPOSITORY = Path(__file__).parents[2]


def test_a_model_of_a_known_family_is_a_config_file(tmp_path: Path) -> None:
    config = json.loads((REPOSITORY / "models/llama/configs/llama3-8b.json").read_text())
    (tmp_path / "llama3-1b.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    model = load_model(str(tmp_path / "llama3-1b.json"))
    # 28 of 32 blocks fewer: q and o 4096 x 4096, k and v 4096 x 1024, three matrices 4096 x 14336, two norms
    block = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert (model.name, parameter_count(model)) == ("llama3-1b", 8_030_261_248 - 28 * block)


def test_a_family_is_a_folder_and_two_lines(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "autoshard", tmp_path / "autoshard", ignore=shutil.ignore_patterns("__pycache__"))
    models = tmp_path / "autoshard/models"
    shutil.copytree(models / "mixtral", models / "newmix")
    config = models / "newmix/config.py"
    config.write_text(config.read_text().replace('"mixtral"', '"newmix"'))
    (models / "newmix/configs/mixtral-8x22b.json").unlink()
    published = (models / "newmix/configs/mixtral-8x7b.json").rename(models / "newmix/configs/newmix-8x7b.json")
    published.write_text(published.read_text().replace('"mixtral"', '"newmix"'))
    for path, beside, line in (
        (models / "repositories.json", "{\n", '  "newmix-8x7b": ["new/NewMix-8x7B"],\n'),
        (
            tmp_path / "autoshard/spec/model_types.py",
            "_BUILT_IN = {\n",
            '    "newmix": Family("newmix", experts=(ROUTED,)),\n',
        ),
    ):
        path.write_text(path.read_text().replace(beside, beside + line, 1))
    pins = ("--tp", "8", "--pp", "1", "--dp", "32", "--zero", "3", "--recompute", "full")
    asked = ("plan", "--model", "newmix-8x7b", "--nodes", "8", "--backend", "torch", *pins)
    command = [sys.executable, "-m", "autoshard", *asked]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("newmix-8x7b on 8 x trn1.32xlarge")


@pytest.mark.parametrize("family", {one.folder: one for one in FAMILIES.values()}.values(), ids=lambda one: one.folder)
def test_a_family_is_its_folder(family: Family) -> None:
    assert {"embedding", "block", "head"} <= set(vars(graph_of(family)))
    weights = weights_of(family)
    assert (weights is not None) == (REPOSITORY / "models" / family.folder / "weights.py").exists()
    assert weights is None or {"block", "ends"} <= set(vars(weights))


def test_the_readme_of_models_names_their_folders() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w[\w, ]*) \|", (REPOSITORY / "models/README.md").read_text(), re.MULTILINE)
    assert len(rows) >= 11
    for folder, names in rows:
        assert {*names.split(", ")} == {name for name, family in FAMILIES.items() if family.folder == folder}


def test_code_asks_for_traits_and_compares_no_names() -> None:
    """Names are compared in a family's own folder, and where they stand for another framework's models."""
    may = {"models", "backends", "conversion", "interop"}
    folders = (one for one in (REPOSITORY / "autoshard").iterdir() if one.is_dir() and one.name not in may)
    files = [*(REPOSITORY / "models").glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    for path in files:
        text = path.read_text(encoding="utf-8")
        if not any(f'"{name}"' in text for name in FAMILIES):  # most files, which need no parsing
            continue
        nodes = ast.walk(ast.parse(text))
        compared = (node for node in nodes if isinstance(node, (ast.Compare, ast.MatchValue)))
        constants = (part for node in compared for part in ast.walk(node) if isinstance(part, ast.Constant))
        found = {part.value for part in constants if part.value in tuple(FAMILIES)}
        assert not found, f"{path} compares {found}: a trait of model.family should say it"


def test_a_device_is_a_file(tmp_path: Path) -> None:
    hardware = json.loads((REPOSITORY / "autoshard/hardware/trn1.32xlarge.json").read_text())
    hardware["instance"] = "trn1.mine"
    hardware["adapters_per_node"] = {"value": 16, "source": "my own"}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(hardware))
    cluster = load_cluster("trn1.mine", nodes=2, hardware_file=file)
    assert (cluster.world_size, cluster.adapters_per_node) == (64, 16)
    file.write_text(json.dumps({**hardware, "adapters": 16}))
    with pytest.raises(AutoshardError, match=r"^mine\.json has a field that is not known: 'adapters'; known: "):
        load_cluster("trn1.mine", nodes=2, hardware_file=file)


@pytest.fixture(params=NEW_SCHEDULES)
def schedule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(SCHEDULES, request.param, NEW_SCHEDULES[request.param])
    return str(request.param)


def test_a_schedule_is_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "eager", NEW_SCHEDULES["eager"])
    orders = actions("eager", pp=2, num_microbatches=4)
    assert " ".join(map(str, orders[0])) == "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 B2.0 B3.0"
    assert " ".join(map(str, orders[1])) == "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0"
    assert in_flight(orders) == ((3,), (1,))
    # rank 1 does one microbatch after the other, and waits for rank 0's first forward and last backward
    assert simulate(orders, forward_s=[1.0, 1.0], backward_s=[2.0, 2.0]).total_s == 1 + 4 * (1 + 2) + 2
    with pytest.raises(AutoshardError, match=r"^schedule=eager has one chunk a rank, not vpp=2$"):
        actions("eager", 2, 4, 2)


TRAINING = TrainingSpec(4096, 64, load_precision("mixed_precision"))
PROBLEM = Problem(load_model("llama3-8b"), TRAINING, load_cluster("trn1.32xlarge", 1), "torch")


def priced(pins: Pins) -> list[Priced]:
    table = Table(PROBLEM, COMMON_SETS)
    for mesh in legal_layouts(PROBLEM, pins, Tally()):
        for draft in mesh.drafts:
            table.add(draft)
    return [*table.price()]


def test_a_schedule_that_nobody_knows_is_priced_as_it_is_estimated(schedule: str) -> None:
    chunks = priced(Pins(schedule=schedule))
    rows = [(one, row) for one in chunks for row in range(len(one.step_time_s))]
    assert len(rows) >= 500 and {one.whole.family.schedule for one in chunks} == {schedule}
    for one, row in random.Random(0).sample(rows, 500):
        expected = estimate(*PROBLEM[:3], one.strategy(row))
        assert one.step_time_s[row] == pytest.approx(expected.step_time_s, rel=1e-9)
        assert one.memory_bytes[row] == pytest.approx(expected.fullest.total_bytes, rel=1e-9)


def test_a_schedule_that_nobody_knows_is_searched(schedule: str) -> None:
    pins = Pins(schedule=schedule, pp=4)
    found = search(*PROBLEM[:3], pins, PROBLEM.backend)
    limit_bytes = levels(PROBLEM.cluster, FIT_PROBABILITY)[0].memory_bytes
    fitting = [one.step_time_s[one.memory_bytes <= limit_bytes] for one in priced(pins)]
    assert found.best.strategy.schedule == schedule
    assert found.best.estimate.step_time_s <= min(times.min() for times in fitting if len(times)) * (1 + GIVEN_AWAY)
    assert "within this model" in found.optimality and schedule in found.optimality
    everything = search(*PROBLEM[:3], Pins(pp=4), PROBLEM.backend)
    assert everything.best.estimate.step_time_s <= found.best.estimate.step_time_s * (1 + GIVEN_AWAY)


def test_a_closed_form_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one, layouts are discarded by it and simulated all the same, and every stage may have blocks of its own."""
    eager, pins = NEW_SCHEDULES["eager"], Pins(schedule="eager", pp=4)
    assert eager.warm_up is not None
    monkeypatch.setitem(SCHEDULES, "eager", eager)
    simulated = search(*PROBLEM[:3], pins, PROBLEM.backend).best.estimate.step_time_s
    bounded = replace(eager, closed_form=partial(alternating_at_least_s, eager.warm_up))
    monkeypatch.setitem(SCHEDULES, "eager", bounded)
    chunks = priced(pins)
    for one in random.Random(0).choices(chunks, k=20):
        row = random.Random(1).randrange(len(one.step_time_s))
        expected = estimate(*PROBLEM[:3], one.strategy(row)).step_time_s
        assert one.step_time_s[row] <= expected * (1 + 1e-12)
        assert one.exact_s([row])[0] == pytest.approx(expected, rel=1e-9)
    found = search(*PROBLEM[:3], pins, PROBLEM.backend)
    assert "eager" not in found.optimality
    assert found.best.estimate.step_time_s <= simulated * (1 + GIVEN_AWAY)


def test_a_schedule_that_nobody_knows_makes_a_plan(schedule: str) -> None:
    (one, *_) = priced(Pins(schedule=schedule, pp=4, dp=1, microbatch_size=1))
    strategy = one.strategy(0)
    plan = make_plan(*PROBLEM[:3], PROBLEM.backend, strategy, estimate(*PROBLEM[:3], strategy))
    assert plan_from_dict(json.loads(plan_to_json(plan))) == plan
    assert ("schedule", SCHEDULES[schedule].label) in describe(plan).facts
    work = [event for event in predicted_events(plan) if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in work) / 1e6 == pytest.approx(plan.estimate.step_time_s, rel=1e-5)
    # rank 0 of four holds 7 of 64 microbatches of the eager one; the other one does not say when it repeats
    assert telling_microbatches(plan, 0) == (10 if schedule == "eager" else plan.num_microbatches)


def test_the_option_knows_every_schedule() -> None:
    (option,) = (one for one in PINS if one.name == "schedule")
    assert [option.parse(name) for name in SCHEDULES] == [*SCHEDULES]
    assert option.help == "1f1b or interleaved; with backend torch gpipe or zero_bubble too"


def test_no_other_file_names_a_schedule() -> None:
    """Files of other tools' words aside."""
    names = re.compile("|".join(rf"\"{name}\"" for name in SCHEDULES))
    files = (file for kind in ("*.py", "*.json") for file in (REPOSITORY / "autoshard").rglob(kind))
    found = {str(file.relative_to(REPOSITORY / "autoshard")) for file in files if names.search(file.read_text())}
    other_tools = {file for file in found if file.startswith(("interop/", "bench/peers/"))}
    rotary = {
        "conversion/nxd_layout.py",
        "spec/traced.py",
        "tracer/rules/positions.py",
        "runtime/torch_backend/rotation.py",
    }
    assert found - other_tools - rotary == {"schedules/orders.py"}
