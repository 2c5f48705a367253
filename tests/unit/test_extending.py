"""The worked examples of CONTRIBUTING.md, followed to the letter."""

import json
from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.models import load_model
from autoshard.models.families import FAMILIES
from autoshard.models.stage import parameter_count
from autoshard.schedules import SCHEDULES, actions, in_flight, simulate
from autoshard.schedules.action import Order
from autoshard.schedules.orders import Schedule, alternate
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import MODEL_TYPES, TRACED

REPOSITORY = Path(__file__).parents[2]


def test_a_model_of_a_known_family_is_a_config_file(tmp_path: Path) -> None:
    config = json.loads((REPOSITORY / "models/llama/configs/llama3-8b.json").read_text())
    (tmp_path / "llama3-1b.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    model = load_model(str(tmp_path / "llama3-1b.json"))
    # 28 of 32 blocks fewer: q and o 4096 x 4096, k and v 4096 x 1024, three matrices 4096 x 14336, two norms
    block = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert (model.name, parameter_count(model)) == ("llama3-1b", 8_030_261_248 - 28 * block)


def test_every_model_type_has_a_family() -> None:
    assert set(FAMILIES) == {*MODEL_TYPES, TRACED}


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


def objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    return None if num_virtual_stages == 1 else f"schedule=gpipe has one chunk a rank, not vpp={num_virtual_stages}"


def warm_up(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    return num_microbatches


def gpipe(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, warm_up)


def test_a_schedule_is_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "gpipe", Schedule(objection, gpipe, warm_up))
    orders = actions("gpipe", pp=2, num_microbatches=3)
    assert [" ".join(map(str, order)) for order in orders] == 2 * ["F0.0 F1.0 F2.0 B0.0 B1.0 B2.0"]
    assert in_flight(orders) == ((3,), (3,))
    # 3 forwards and 3 backwards on each rank, and the other rank's one forward and one backward to wait for
    assert simulate(orders, forward_s=[1.0, 1.0], backward_s=[2.0, 2.0]).total_s == 3 * (1 + 2) + (1 + 2)
    with pytest.raises(AutoshardError, match=r"^schedule=gpipe has one chunk a rank, not vpp=2$"):
        actions("gpipe", 2, 4, 2)
