"""NxD's optimizer files, as ZeRO-1 of torch-xla and AdamW leave them: every element where it belongs, or an error.

Files that the library itself wrote: tests/nxd/test_optimizer_files.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoshard.checkpoint.manifest import QUANTITIES, read_manifest
from autoshard.cli import main
from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.conversion.nxd import NxdOptions
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import MODELS
from tests.unit.weight_folders import bytes_of, huggingface_folder, plan

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "one group": ("llama", {"tp": 2, "dp": 2}, {}, "one"),
    "norms apart, padded parts": ("llama", {"tp": 2, "pp": 2, "vpp": 2, "dp": 3}, {}, "norms"),
    "biases apart, fused": ("llama with biases", {"tp": 2, "dp": 2}, {"qkv": "fused"}, "biases"),
    "kv heads twice, masters": ("few kv heads", {"tp": 4, "dp": 3}, {}, "norms"),
    "tied": ("tied", {"dp": 2}, {"qkv": "separate"}, "norms"),
    "mixtral without expert parallelism": ("mixtral", {"tp": 2, "dp": 2}, {}, "norms"),
    "no ZeRO-1": ("llama", {"tp": 2, "pp": 2}, {}, "norms"),
}
APART = {"one": (), "norms": ("norm", "bias"), "biases": ("bias",)}
State = dict[str, torch.Tensor]


def run(source: Path, target: Path, form: str, to: Plan | None = None, training: bool = False, **options: Any) -> None:
    found = open_source(source, training=training)
    convert(found, target, Conversion(form, to, **options), lambda count: None, lambda count: None)


def nxd_checkpoint(folder: Path, spec: ModelSpec, case: str, masters: bool = False) -> None:
    """Weights in BF16 with masters and else in FP32, and the state: three times weights of their own seeds."""
    _, degrees, options, grouping = CASES[case]
    for seed, quantity in enumerate(QUANTITIES):
        huggingface_folder(folder / quantity, spec, "F32", seed=seed)
        cut = {name: degrees[name] for name in ("tp", "pp", "vpp") if name in degrees}
        run(folder / quantity, folder / f"nxd {quantity}", "nxd", plan(spec, **cut), nxd=NxdOptions(**options))
    dtype = "bfloat16" if masters else None
    run(folder / "master", folder / "nxd", "nxd", plan(spec, **cut), nxd=NxdOptions(**options), dtype=dtype)
    (folder / "nxd" / "optim").mkdir()
    for path in (folder / "nxd" / "model").glob("*.pt"):
        state = [torch.load(folder / f"nxd {one}" / "model" / path.name, weights_only=True) for one in QUANTITIES]
        if spec.tie_word_embeddings:
            state = [{name: one for name, one in values.items() if name != "lm_head.weight"} for values in state]
        count = 1 if case == "no ZeRO-1" else degrees.get("dp", 1)
        for dp_rank in range(count):
            values = optimizer_file(state, count, dp_rank, APART[grouping], masters, zero1=case != "no ZeRO-1")
            torch.save(values, folder / "nxd" / "optim" / path.name.replace("dp_rank_00", f"dp_rank_{dp_rank:02d}"))


def optimizer_file(
    state: list[State], count: int, dp_rank: int, apart: tuple[str, ...], masters: bool, zero1: bool
) -> dict[str, Any]:
    """What torch-xla's ZeroRedundancyOptimizer, or AdamW alone, gives as its state_dict."""
    plain = [name for name in state[0] if any(part in name for part in apart)]
    names = [[name for name in state[0] if name not in plain], plain]
    numbers = {name: number for number, name in enumerate(names[0] + names[1])}

    def part(values: State, name: str) -> torch.Tensor:
        tensor = values[name]
        padded = torch.nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, -len(tensor) % count])
        return padded.chunk(count)[dp_rank].clone()

    moments = {
        number: {
            "step": torch.tensor(7.0),
            "exp_avg": part(state[1], name),
            "exp_avg_sq": part(state[2], name),
        }
        for name, number in numbers.items()
    }
    groups = [
        {"weight_decay": decay, "lr": 1e-3, "betas": (0.9, 0.95), "params": [numbers[name] for name in own]}
        for own, decay in zip(names, (0.1, 0.0), strict=True)
    ]
    found = {"state": {} if zero1 else moments, "param_groups": groups}
    if zero1:
        found |= {"base_state": moments, "shape_info": {numbers[name]: state[0][name].shape for name in numbers}}
    if masters:
        found["sharded_master_weights"] = {number: part(state[0], name) for name, number in numbers.items()}
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_element_of_the_state_is_where_it_belongs(case: str, tmp_path: Path) -> None:
    spec = replace(MODELS[CASES[case][0]], vocab_size=95)
    nxd_checkpoint(tmp_path, spec, case, masters="masters" in case)
    to = plan(spec, pp=2)
    run(tmp_path / "nxd", tmp_path / "step", "plan", to, training=True)
    manifest = read_manifest(tmp_path / "step")
    assert (manifest.step, manifest.quantities, manifest.dtype, manifest.learning_rate) == (7, QUANTITIES, "F32", 1e-3)
    found = bytes_of(tmp_path / "step")
    for quantity in QUANTITIES:
        run(tmp_path / quantity, tmp_path / f"alone {quantity}", "plan", to)
        for key, value in bytes_of(tmp_path / f"alone {quantity}").items():
            assert found.pop(key.replace("master/", f"{quantity}/")) == value, key
    assert not found


def test_a_run_resumes_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(MODELS["llama"], vocab_size=256)
    nxd_checkpoint(tmp_path, spec, "one group")
    (tmp_path / "config.json").write_bytes((tmp_path / "master" / "config.json").read_bytes())
    write_plan(plan(spec), tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "nxd", "weights", "--plan", "plan.json", "--weights-only"]) == 0
    assert "next: autoshard run plan.json --weights weights\n" in capsys.readouterr().out
    write_plan(plan(replace(spec, lora=Lora(4, 8.0, ("q_proj",)))), tmp_path / "adapted.json")
    assert main(["convert", "nxd", "frozen", "--plan", "adapted.json"]) == 0  # there is no state of new adapters
    assert capsys.readouterr().out.endswith("next: autoshard run adapted.json --weights frozen\n")
    assert main(["convert", "nxd", "step", "--plan", "plan.json"]) == 0
    told = capsys.readouterr().out
    assert "with the optimizer's state after step 7\nnext: autoshard run plan.json --resume step\n" in told
    arguments = ("run", "plan.json", "--resume", "step", "--steps", "8", "--processes", "1")
    done = autoshard(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "step, after step 7: " in done.stdout
    rows = next(tmp_path.glob("runs/*/metrics.jsonl")).read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [8]


def refused(folder: Path, *said: str) -> None:
    with pytest.raises(AutoshardError) as error:
        run(folder / "nxd", folder / "step", "plan", plan(MODELS["llama"]), training=True)
    for text in said:
        assert text in str(error.value)
    assert not (folder / "step").exists()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    nxd_checkpoint(tmp_path, MODELS["llama"], "one group")
    return tmp_path


def test_a_file_that_is_missing_is_named(saved: Path) -> None:
    (saved / "nxd" / "optim" / "dp_rank_01_tp_rank_00_pp_rank_00.pt").unlink()
    refused(saved, "optim/dp_rank_01_tp_rank_00_pp_rank_00.pt is missing: the folder has 2 data-parallel ranks")


def changed(folder: Path, change: Any, name: str = "dp_rank_00_tp_rank_00_pp_rank_00.pt") -> None:
    path = folder / "nxd" / "optim" / name
    values = torch.load(path, weights_only=True)
    change(values)
    torch.save(values, path)


def test_groups_that_no_script_makes_are_told(saved: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        numbers = values["param_groups"][0]["params"]
        values["param_groups"] = [{"lr": 0.1, "params": numbers[:5]}, {"lr": 0.1, "params": numbers[5:]}]

    changed(saved, change)
    refused(saved, "which of its 5 + 30 parameters is which cannot be told", "--weights-only takes the weights")


def test_ranks_at_different_steps_are_told(saved: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        for one in values["base_state"].values():
            one["step"].fill_(8)

    changed(saved, change, "dp_rank_01_tp_rank_01_pp_rank_00.pt")
    refused(saved, "dp_rank_01_tp_rank_01_pp_rank_00.pt: step is 8, in ", "it is 7")


def test_numbers_without_end_are_told(saved: Path) -> None:
    def endless_rate(values: dict[str, Any]) -> None:
        values["param_groups"][0]["lr"] = float("inf")

    def endless_step(values: dict[str, Any]) -> None:
        for one in values["base_state"].values():
            one["step"] = float("inf")

    for change, name in ((endless_rate, "lr"), (endless_step, "step")):
        changed(saved, change)
        refused(saved, f"is not the state of AdamW as NxD saves it: ValueError {name} inf")


def test_a_number_that_no_float_holds_is_told(saved: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        values["param_groups"][0]["lr"] = 10**400

    changed(saved, change)
    refused(saved, "is not the state of AdamW as NxD saves it: OverflowError")


def test_what_context_parallel_ranks_overwrote_is_told(saved: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        for one in values["base_state"].values():
            for key in ("exp_avg", "exp_avg_sq"):
                one[key] = one[key][: len(one[key]) // 2].clone()

    changed(saved, change)
    refused(saved, "2 data-parallel ranks have", "with context parallelism NxD's files overwrite each other")


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"param_groups": 3, "state": {}},
        {"param_groups": [{"params": [0], "lr": 0.1}], "state": {}},
        {"param_groups": [{"params": [0], "lr": 0.1}], "state": {0: {"exp_avg": 1, "exp_avg_sq": 2, "step": 3}}},
    ],
)
def test_other_files_are_no_state(values: Any, saved: Path) -> None:
    torch.save(values, saved / "nxd" / "optim" / "dp_rank_00_tp_rank_00_pp_rank_00.pt")
    refused(saved, "dp_rank_00_tp_rank_00_pp_rank_00.pt")


class Runs:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_nothing_in_one_is_executed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state": Runs()}, saved / "nxd" / "optim" / "dp_rank_00_tp_rank_00_pp_rank_00.pt")
    refused(saved, "is refused: it asks to run")
    assert "executed" not in capsys.readouterr().out


def test_expert_parallel_state_and_other_layouts_are_told(saved: Path) -> None:
    folder = saved / "nxd" / "optim"
    first = folder / "dp_rank_00_tp_rank_00_pp_rank_00.pt"
    first.rename(folder / "dp_rank_00_ep_rank_00_tp_rank_00_pp_rank_00.pt")
    refused(saved, "the optimizer's state of expert parallelism is not read; --weights-only takes the weights")
    for path in folder.iterdir():
        path.rename(folder / f"{path.stem}.distcp")
    refused(saved, "NxD's use_zero1_dcp writes others, with pickles", "--weights-only takes the weights")


def test_masters_of_another_order_are_told(tmp_path: Path) -> None:
    nxd_checkpoint(tmp_path, MODELS["few kv heads"], "kv heads twice, masters", masters=True)

    def change(values: dict[str, Any]) -> None:
        masters = values["sharded_master_weights"]
        same = [number for number, one in masters.items() if one.shape == masters[2].shape]
        masters[same[0]], masters[same[1]] = masters[same[1]], masters[same[0]]

    changed(tmp_path, change)
    with pytest.raises(AutoshardError, match=r"the master weights of parameter \d+ are not those of model\.layers\.0"):
        open_source(tmp_path / "nxd", training=True)
