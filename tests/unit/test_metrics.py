"""Numbers of a step, in three places; the readers are TensorBoard's and wandb's own."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard.errors import AutoshardError
from autoshard.runtime.metrics import MetricsWriter, has_wandb_key
from autoshard.runtime.tensorboard_events import EventFile, crc32c

ROOT = Path(__file__).parents[2]


def test_one_object_a_step_on_disk_at_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "run") as metrics:
        metrics.write(0, {"loss": 5.5, "tokens_per_s": 1200.0})
        metrics.write(1, {"loss": float("nan"), "grad_norm": -math.inf})
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == [
            {"step": 0, "loss": 5.5, "tokens_per_s": 1200.0},
            {"step": 1, "loss": "NaN", "grad_norm": "-Infinity"},
        ]
        assert metrics.locations == (
            str(tmp_path / "run" / "metrics.jsonl"),
            f"tensorboard --logdir {tmp_path / 'run' / 'tensorboard'}",
        )
    metrics.close()


def test_crc32c_of_the_standard() -> None:
    # RFC 3720 B.4, and the check value of the algorithm
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"123456789") == 0xE3069283


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_file_loader

    events = EventFile(tmp_path)
    events.add_scalars(0, {"loss": 5.5})
    events.add_scalars(70_000, {"loss": float("nan"), "train/tokens_per_s": 1e39})
    events.close()
    version, *read = event_file_loader.LegacyEventFileLoader(str(events.path)).Load()
    assert version.file_version == "brain.Event:2"
    assert [event.step for event in read] == [0, 70_000]
    assert [(value.tag, value.simple_value) for value in read[0].summary.value] == [("loss", 5.5)]
    assert math.isnan(read[1].summary.value[0].simple_value)
    assert (read[1].summary.value[1].tag, read[1].summary.value[1].simple_value) == ("train/tokens_per_s", math.inf)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AutoshardError) as error:
        MetricsWriter(tmp_path / "file" / "run")
    assert str(error.value) == f"cannot write {tmp_path / 'file' / 'run'}: Not a directory"
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(AutoshardError) as error:
        MetricsWriter(tmp_path / "run")
    assert str(error.value) == f"cannot write {tmp_path / 'run' / 'metrics.jsonl'}: Is a directory"


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # /dev/full refuses every write as a full disk does
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with MetricsWriter(tmp_path) as metrics, pytest.raises(AutoshardError) as error:
        metrics.write(0, {"loss": 1.0})
    assert str(error.value) == f"cannot write {tmp_path / 'metrics.jsonl'}: No space left on device"

    monkeypatch.setattr("time.time", lambda: 1.0)
    monkeypatch.setattr("socket.gethostname", lambda: "node")
    events = tmp_path / "run" / "tensorboard"
    events.mkdir(parents=True)
    (events / "events.out.tfevents.1.000000.node").symlink_to("/dev/full")
    with pytest.raises(AutoshardError) as error:
        MetricsWriter(tmp_path / "run")
    assert str(error.value) == f"cannot write {events}: No space left on device"


def test_where_a_wandb_key_is_found(tmp_path: Path) -> None:
    hosts = ["api.example.com", "api.wandb.ai"]
    assert not has_wandb_key({}, tmp_path, hosts)
    assert not has_wandb_key({"WANDB_API_KEY": ""}, tmp_path, hosts)
    assert has_wandb_key({"WANDB_API_KEY": "0" * 40}, tmp_path, hosts)
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password 0123\n")
    assert has_wandb_key({}, tmp_path, hosts)
    assert not has_wandb_key({}, tmp_path, ["wandb.example.com:8080"])
    (tmp_path / ".netrc").write_bytes(b"machine caf\xe9 login user password 0123\n")
    assert not has_wandb_key({}, tmp_path, hosts)
    (tmp_path / ".netrc").write_text("machine\n")
    assert not has_wandb_key({}, tmp_path, hosts)
    (tmp_path / "keys").write_text("machine api.wandb.ai login user password 0123\n")
    assert has_wandb_key({"NETRC": str(tmp_path / "keys")}, tmp_path, hosts)


def test_wandb_offline_needs_no_account_and_leaves_no_process(tmp_path: Path) -> None:
    code = f"""if True:
        import sys
        from pathlib import Path
        import psutil
        from autoshard.runtime.metrics import MetricsWriter
        metrics = MetricsWriter(Path({str(tmp_path / "run")!r}), wandb=True, project="test", config={{"tp": 2}})
        for step in range(3):
            metrics.write(step, {{"loss": 1.0 / (step + 1)}})
        metrics.close(summary={{"max_difference": 1e-7}})
        location = metrics.locations[2]  # said at a run's end
        assert "torch" not in sys.modules and "tensorboard" not in sys.modules
        print(location)
        print([child.name() for child in psutil.Process().children()])
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    location, children = done.stdout.splitlines()
    assert children == "[]"
    folder = Path(location.removeprefix("wandb sync "))
    assert folder.parent == tmp_path / "run" / "wandb"
    (log,) = folder.glob("run-*.wandb")
    content = log.read_bytes()
    assert b"loss" in content
    assert b"max_difference" in content


def test_wandb_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(AutoshardError) as error:
        MetricsWriter(tmp_path, wandb=True)
    assert str(error.value) == "--wandb needs the wandb package: pip install 'autoshard[wandb]'"


def with_wandb(folder: Path, **variables: str) -> str:
    """The output of a process that begins to log on W&B: the places that it names, or the error."""
    code = f"""if True:
        from pathlib import Path
        from autoshard.errors import AutoshardError
        from autoshard.runtime.metrics import MetricsWriter
        try:
            with MetricsWriter(Path({str(folder)!r}), wandb=True) as metrics:
                print(metrics.locations)
        except AutoshardError as error:
            print(error)
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_wandb_that_does_not_start(tmp_path: Path) -> None:
    said = with_wandb(tmp_path, WANDB_API_KEY="short")
    assert said.startswith("Weights & Biases did not start: WANDB_API_KEY invalid: ")
    assert said.endswith("; WANDB_MODE=offline needs neither account nor network\n")


def test_a_mode_that_wandb_does_not_know_is_named(tmp_path: Path) -> None:
    said = with_wandb(tmp_path, WANDB_MODE="nonsense")
    assert said.startswith("Weights & Biases did not start: mode: Input should be 'online', 'offline', ")
    assert "input_value='nonsense'" in said and said.count("\n") == 1
    assert said.endswith("; WANDB_MODE=offline needs neither account nor network\n")


def test_wandb_that_is_disabled_is_no_place_to_look(tmp_path: Path) -> None:
    places = (str(tmp_path / "metrics.jsonl"), f"tensorboard --logdir {tmp_path / 'tensorboard'}")
    assert with_wandb(tmp_path, WANDB_MODE="disabled") == f"{places}\n"
