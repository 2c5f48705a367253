"""Adapters of PlanBench say a row in a peer's words, checked on stand-ins: no peer is needed, and none is here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autoshard.bench.peers import calculon, galvatron, simumax
from autoshard.bench.peers.peer import PEERS, Peer, bandwidth_bytes_per_s, crosses_nodes
from autoshard.bench.predictors import of_peer
from autoshard.bench.rows import Fold, Measured, read_measured
from autoshard.cli import main
from benchmarks.fitted import DATA


@pytest.fixture(scope="module")
def rows() -> tuple[Measured, ...]:
    return read_measured(DATA)


@pytest.fixture(scope="module")
def row(rows: tuple[Measured, ...]) -> Measured:
    """LLaMA-13B on 8 nodes with 8 devices: tp=2 pp=2 dp=16, which every peer has words for."""
    found = rows[0]
    assert (found.strategy.tp, found.strategy.pp, found.strategy.dp, found.cluster.devices_per_node) == (2, 2, 16, 8)
    return replace(found, strategy=replace(found.strategy, sequence_parallel=True))


def checkout(folder: Path, module: str, files: dict[str, Any]) -> None:
    """A folder that looks like a checkout of a peer, with data files of it."""
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text("")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def test_groups_of_ranks_are_in_a_node_or_not(row: Measured) -> None:
    strategy = row.strategy
    assert [crosses_nodes(row, axis) for axis in ("tp", "dp", "pp")] == [False, True, True]
    other = replace(row, strategy=replace(strategy, dp=4, pp=8, stage_layers=(5,) * 8, recompute=("none",) * 8))
    assert [crosses_nodes(other, axis) for axis in ("tp", "dp", "pp")] == [False, False, True]
    one = replace(row.cluster, adapters_per_node=4)
    link = row.cluster.inter_node.bandwidth_bytes_per_s
    assert bandwidth_bytes_per_s(replace(row, cluster=one), True) == pytest.approx(link * 4 / 8)
    assert bandwidth_bytes_per_s(row, False) == row.cluster.intra_node[-1][1].bandwidth_bytes_per_s


def test_a_row_in_calculons_words(row: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"bandwidth": 1, "efficiency": 0.5, "size": 1, "latency": 1, "ops": {}, "must_be_filled": True}
    unit = {"float16": {"tflops": 400, "gflops_efficiency": [[0, 0.5]]}}
    system = {
        "matrix": unit,
        "vector": {"float16": {"tflops": 100, "gflops_efficiency": [[0, 0.5]]}},
        "mem1": {"GiB": 80, "GBps": 1, "MB_efficiency": [[0, 0.5]]},
        "networks": [network, network],
    }
    checkout(tmp_path, "calculon", {"systems/a100_80g.json": system})
    asked: dict[str, Any] = {}

    class Llm:
        @staticmethod
        def Application(values: dict[str, Any]) -> None:  # noqa: N802
            asked["model"] = values

        Execution = SimpleNamespace(from_json=lambda values: asked.__setitem__("layout", values))

        def __init__(self, *_: object) -> None:
            self.compile = self.run = lambda *_: None

        get_total_time = staticmethod(lambda: 3.0)
        get_mem_tier1_cap_req = staticmethod(lambda: 7)

    fake = ModuleType("calculon")
    fake.System = lambda values: asked.__setitem__("system", values)  # type: ignore[attr-defined]
    of_models = ModuleType("calculon.llm")
    of_models.Llm = Llm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "calculon", fake)
    monkeypatch.setitem(sys.modules, "calculon.llm", of_models)
    origin = SimpleNamespace(origin=str(tmp_path / "calculon" / "__init__.py"))
    monkeypatch.setattr(calculon, "find_spec", lambda name: origin)
    calculon._file.cache_clear()
    assert calculon.said(row) == (3.0, 7.0)
    calculon._file.cache_clear()
    model, layout = asked["model"], asked["layout"]
    assert model["feedforward"] * 2 == row.model.intermediate_size * 3  # three matrices in the words of two
    assert (layout["num_procs"], layout["tensor_par"], layout["pipeline_par"], layout["data_par"]) == (64, 2, 2, 16)
    assert (layout["tensor_par_net"], layout["data_par_net"], layout["pipeline_par_net"]) == (0, 1, 1)
    assert layout["activation_recompute"] == "attn_only"  # a flash kernel runs the scores again
    assert layout["optimizer_sharding"] is True and layout["tensor_par_comm_type"] == "rs_ag"
    assert asked["system"]["matrix"] == {"bfloat16": {**unit["float16"], "tflops": 312.0}}
    assert asked["system"]["vector"]["bfloat16"]["tflops"] == 78.0
    inner, outer = asked["system"]["networks"]
    assert inner["bandwidth"] * 1e9 == pytest.approx(bandwidth_bytes_per_s(row, False))
    assert outer["bandwidth"] * 1e9 == pytest.approx(bandwidth_bytes_per_s(row, True))


def test_what_peers_have_no_words_for_is_no_answer(rows: tuple[Measured, ...], row: Measured) -> None:
    mixture = next(one for one in rows if one.model.is_moe)
    trainium = next(one for one in rows if one.source == "trainium")
    grouped = next(one for one in rows if one.model.num_query_groups > 1 and not one.model.is_moe)
    part = replace(row, strategy=replace(row.strategy, recompute=("mlp", "mlp")))
    uneven = replace(row, strategy=replace(row.strategy, stage_layers=(19, 21)))
    split = replace(row, strategy=replace(row.strategy, sequence_parallel=False))
    assert [calculon.said(one) for one in (mixture, trainium, grouped, part)] == [None] * 4
    assert [simumax.said(one) for one in (trainium, part, uneven)] == [None] * 3
    assert [galvatron.said(one) for one in (mixture, trainium, part, split)] == [None] * 4


def test_a_peer_that_fails_has_no_answer(row: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise SystemError("their mistake")

    for adapter in (calculon, simumax, galvatron):
        monkeypatch.setattr(adapter, "_run", fails)
        assert adapter.said(row) is None


def test_simumax_answers_with_texts() -> None:
    assert simumax._number("878.6826 ms") == pytest.approx(0.8786826)
    assert simumax._number("12.5000 s") == 12.5
    assert simumax._number("64.0000 GB") == 64 * 2**30


def test_a_peer_is_asked_once_and_scaled_by_train_rows(row: Measured) -> None:
    asked = []

    def said(one: Measured) -> tuple[float, float] | None:
        asked.append(one.key)
        return None if one.key == "none" else (2.0, 50.0)

    train = tuple(replace(row, key=f"t{time_s}", time_s=time_s) for time_s in (3.0, 4.0, 5.0))
    test = tuple(replace(row, key=key, time_s=None) for key in ("a", "none"))
    predictor = of_peer(said)
    for _ in range(2):
        one, other = predictor(Fold("group", "", train, test, DATA))
        assert other is None and one is not None
        assert (one.step_time_s, one.memory_bytes) == (4.0, 50.0)  # the middle of 3, 4 and 5 over 2
    assert sorted(asked) == ["a", "none", "t3.0", "t4.0", "t5.0"]
    lonely = tuple(replace(one, key="none") for one in train)
    assert of_peer(said)(Fold("group", "", lonely, test, DATA)) == [None, None]


def test_a_checkout_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path, "their_model", {})
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    shown = subprocess.run(
        ["git", "-C", str(tmp_path), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    peer = Peer("Theirs", "theirs", "their_model", "their-model")
    found = []
    for folder in (tmp_path / "elsewhere", tmp_path):
        monkeypatch.syspath_prepend(folder)
        found.append((peer.is_installed, peer.version))
    assert found == [(False, None), (True, f"commit {shown.stdout[:12]}")]
    assert Peer("Tests", "pytest", "pytest", "pytest").version == pytest.__version__


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_an_entry_without_its_package_is_refused(
    peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Peer, "is_installed", False)
    assert main(["bench", "predictors", "--data", str(DATA), "--entries", peer.name, "-o", str(tmp_path / "o")]) == 2
    said = f"entries: {peer.name} needs its package, which is not installed; a checkout on PYTHONPATH does too"
    assert said in capsys.readouterr().err and not (tmp_path / "o").exists()


def test_a_peer_that_lacks_what_it_needs_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout(tmp_path, "calculon", {})
    (tmp_path / "calculon" / "llm.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["bench", "predictors", "--data", str(DATA), "--entries", "calculon", "-o", str(tmp_path / "o")]) == 2
    assert not (tmp_path / "o").exists()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "autoshard: error: entries: calculon is installed and cannot be imported, "
        "ModuleNotFoundError: No module named 'a_package_that_nobody_has'; "
        "install what it needs, or name the other entries with --entries"
    )
