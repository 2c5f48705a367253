"""Two blocks of Llama-3-70B converted between all forms: peak memory against the largest file, speed against the disk.

7.6 GB of bf16 weights, embedding and head included, with the shapes of the 70B. Every conversion is a process of its
own, of which the peak resident memory and the processor time are reported. Before and after each the same disk is
timed twice: 3 GB in a row to one file, and fsync, as any program writes (`disk`, what the limit is of), and past the
page cache, as convert does (`past`): with nothing to read, no order to change and no checksum. Where before and after
differ by more than half, something else used the machine: it is timed once more.

    python -m benchmarks.convert_speed                  # minutes; the last line is JSON
    python -m benchmarks.convert_speed --folder /mnt/x  # needs 35 GB there
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from autoshard.conversion.huggingface import huggingface_files
from autoshard.conversion.output_file import OutputFile
from autoshard.conversion.page_cache import WrittenOnce
from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy
from autoshard.models.huggingface import to_config
from autoshard.models.registry import load_model
from autoshard.models.weights import parameter_dims
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.spec.cluster import load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision

MOST_MEMORY = 1.5
"""Limit of the peak memory, over the largest file that is written."""
LEAST_SPEED = 0.5
"""Limit of the speed, over that of the disk as any program writes."""
BLOCK_BYTES = 16_000_000
DISK_BYTES = 3_008_000_000
"""Bytes of the file that times the disk; a whole number of blocks."""
STEADY, TRIES = 0.5, 2
CONVERSIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "HF -> plan": ("hf", "plan", ("--plan", "plan.json")),
    "plan -> HF": ("plan", "back", ("--to", "hf")),
    "HF -> NxD": ("hf", "nxd", ("--plan", "plan.json", "--to", "nxd")),
    "NxD -> HF": ("nxd", "back", ("--to", "hf")),
    "NxD -> plan": ("nxd", "again", ("--plan", "plan.json")),
    "plan -> NxD, xser": ("plan", "xser", ("--plan", "plan.json", "--to", "nxd", "--xser")),
    "NxD, xser -> HF": ("xser", "back", ("--to", "hf")),
}
"""Name -> (source, target, options)."""
LAST_USE = {source: name for name, (source, _, _) in CONVERSIONS.items()}
"""Source -> the last conversion that reads it; files that nobody reads again are removed at once."""


@dataclass(frozen=True)
class Row:
    """The result of one conversion. processor_s: of both cores, user and system. The disk's speeds are means of before
    and after."""

    conversion: str
    bytes: int
    largest_file_bytes: int
    peak_memory_bytes: int
    seconds: float
    processor_s: float
    disk_bytes_per_s: float
    past_cache_bytes_per_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds

    @property
    def memory_ratio(self) -> float:
        return self.peak_memory_bytes / self.largest_file_bytes

    @property
    def speed_ratio(self) -> float:
        return self.bytes_per_s / self.disk_bytes_per_s


def two_blocks() -> ModelSpec:
    return replace(load_model("llama3-70b"), name="llama3-70b-two-blocks", num_hidden_layers=2)


def plan_of(model: ModelSpec) -> Plan:
    """A plan with tp=8 in two stages of one block."""
    training = TrainingSpec(8192, 16, load_precision("mixed_precision"))
    cluster = load_cluster("trn1.32xlarge", 1)
    strategy = Strategy(8, 2, 2, 1, 1, 1, 1, "1f1b", ("none",), True, 0, "flash", (1, 1))
    return make_plan(model, training, cluster, "torch", strategy, estimate(model, training, cluster, strategy))


def write_weights(folder: Path, model: ModelSpec) -> None:
    """Writes a Hugging Face folder with random weights, in which no two rows of a tensor are alike."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_config(model)))
    dims, _ = parameter_dims(model)
    random = np.random.default_rng(0)
    block = random.integers(0, 2**15, BLOCK_BYTES // 2 + 4099, np.uint16)
    for file in huggingface_files(model, dict.fromkeys(dims, "BF16")):
        _write(folder / file.path, file, block)


def _write(path: Path, file: OutputFile, block: np.ndarray[tuple[int], np.dtype[np.uint16]]) -> None:
    with path.open("wb") as out:
        out.write(file.known[0][1])
        for number, (_, region) in enumerate(file.regions):
            left = prod(region.box.sizes) * region.width
            while left:
                part = block[number % 4099 :][: min(left, BLOCK_BYTES) // 2]
                out.write(part.data)
                left -= part.nbytes


def disk_bytes_per_s(folder: Path, past_cache: bool) -> float:
    """Speed of writing one file sequentially until it is on the disk. past_cache: past the page cache."""
    block = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES, np.uint8)
    path = folder / "disk"
    begin = perf_counter()
    with path.open("wb") as file:
        passing = WrittenOnce()
        for start in range(0, DISK_BYTES, BLOCK_BYTES):
            at = start
            while at < start + BLOCK_BYTES:
                count = os.pwrite(file.fileno(), block[at - start :].data, at)
                if past_cache:
                    passing.wrote(file.fileno(), at, count)
                at += count
        os.fsync(file.fileno())
    seconds = perf_counter() - begin
    path.unlink()
    return DISK_BYTES / seconds


def disk_speeds(folder: Path) -> tuple[float, float]:
    """(bytes per second as any program writes, bytes per second past the page cache)."""
    return disk_bytes_per_s(folder, False), disk_bytes_per_s(folder, True)


def measure(folder: Path) -> Iterator[Row]:
    model = two_blocks()
    write_plan(plan_of(model), folder / "plan.json")
    write_weights(folder / "hf", model)
    for name, (source, target, options) in CONVERSIONS.items():
        for _ in range(TRIES):
            shutil.rmtree(folder / target, ignore_errors=True)
            before = disk_speeds(folder)
            start = perf_counter()
            peak, processor = run(folder, source, target, *options)
            seconds = perf_counter() - start
            after = disk_speeds(folder)
            if all(min(one) >= STEADY * max(one) for one in zip(before, after, strict=True)):
                break
        disk, past_cache = ((one + other) / 2 for one, other in zip(before, after, strict=True))
        sizes = [path.stat().st_size for path in (folder / target).rglob("*") if path.is_file()]
        if target == "back":
            assert same(folder / "hf", folder / "back"), name
        for done in (target, source):
            if LAST_USE.get(done, name) == name and done != "hf":
                shutil.rmtree(folder / done)
        yield Row(name, sum(sizes), max(sizes), peak, seconds, processor, disk, past_cache)


def run(folder: Path, *arguments: str) -> tuple[int, float]:
    """Runs a conversion: (the process's peak resident memory in bytes, its processor seconds)."""
    process = subprocess.Popen([sys.executable, "-m", "autoshard", "convert", *arguments], cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    return usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime


def same(one: Path, other: Path) -> bool:
    """Whether the weights are equal, file by file."""
    names = sorted(path.name for path in one.glob("*.safetensors"))
    return all(subprocess.run(["cmp", "-s", one / name, other / name], check=False).returncode == 0 for name in names)


def main() -> int:
    """Runs all conversions. Exit code 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write (default: the folder for temporary files)")
    with TemporaryDirectory(prefix="convert-", dir=parser.parse_args().folder) as folder:
        rows = []
        columns = {
            "GB": 6,
            "largest MB": 12,
            "peak MB": 9,
            "ratio": 7,
            "CPU s": 7,
            "GB/s": 7,
            "disk": 7,
            "ratio ": 7,
            "past": 7,
        }
        print("conversion".ljust(18) + "".join(name.rjust(width) for name, width in columns.items()))
        for row in measure(Path(folder)):
            rows.append(row)
            print(
                f"{row.conversion:18}{row.bytes / 1e9:6.2f}{row.largest_file_bytes / 1e6:12.0f}"
                f"{row.peak_memory_bytes / 1e6:9.0f}{row.memory_ratio:7.2f}{row.processor_s:7.1f}"
                f"{row.bytes_per_s / 1e9:7.2f}{row.disk_bytes_per_s / 1e9:7.2f}{row.speed_ratio:7.2f}"
                f"{row.past_cache_bytes_per_s / 1e9:7.2f}",
                flush=True,
            )
    ok = all(row.memory_ratio <= MOST_MEMORY and row.speed_ratio >= LEAST_SPEED for row in rows)
    print(f"{'OK' if ok else 'NOT OK'}: at most {MOST_MEMORY} of the largest file, at least {LEAST_SPEED} of the disk")
    print(json.dumps({"ok": ok, "rows": [asdict(row) for row in rows]}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
