"""Saving and resuming a run: this rank's shards to its file and back, and what the ranks have to agree on.

A save copies the shards to the host, at most 3 times the bytes of this rank's master weights, and a thread writes them
while training goes on. There is one such copy at a time: the next save waits for the last. Between steps the ranks tell
each other whether they have written; when all have, rank 0 writes the manifest and renames the folder. No gather.
"""

from __future__ import annotations

import json
import platform
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import autoshard
from autoshard.checkpoint.directory import (
    being_written,
    clean,
    commit,
    file_problem,
    step_folders,
    step_of,
    write_plan_file,
)
from autoshard.checkpoint.layout import Shard, rank_shards
from autoshard.checkpoint.manifest import MANIFEST, QUANTITIES, FileRecord, Manifest, read_manifest
from autoshard.checkpoint.read import CheckpointReader, tensor_key
from autoshard.checkpoint.tensor_file import ELEMENT_BYTES, Bytes, TensorBytes, write_tensors
from autoshard.errors import AutoshardError
from autoshard.layout.plan_json import plan_to_json
from autoshard.runtime.torch_backend.session import DTYPES, Session

DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
State = Sequence[tuple[torch.Tensor, ...]]
Say = Callable[[str], None]
WRITING, WRITTEN = 0, 1


@dataclass(frozen=True)
class CheckpointOptions:
    """every: save after so many steps, None: never. resume: "auto", "never" or a path."""

    directory: Path
    every: int | None
    keep: int
    resume: str
    synchronous: bool


def rank_file(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def host_copy(state: State) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(one.detach().to("cpu", copy=True) for one in shard) for shard in state]


def write_rank(folder: Path, rank: int, shards: Sequence[Shard], state: State) -> FileRecord:
    """The pieces that this rank is the first to hold. Raises OSError."""
    tensors = []
    for shard, quantities in zip(shards, state, strict=True):
        for quantity, values in zip(QUANTITIES, quantities, strict=True):
            assert values.shape == (shard.elements,), (values.shape, shard.elements)
            name, data = DTYPE_NAMES[values.dtype], _bytes_of(values)
            width = ELEMENT_BYTES[name]
            for piece in shard.pieces:
                if piece.writes:
                    part = data[piece.start * width : (piece.start + piece.box.elements) * width]
                    tensors.append(
                        TensorBytes(tensor_key(quantity, piece.name, piece.box), name, piece.box.sizes, part)
                    )
    size, sha256 = write_tensors(folder / rank_file(rank), tensors)
    names = sorted({piece.name for shard in shards for piece in shard.pieces if piece.writes})
    return FileRecord(rank_file(rank), size, sha256, tuple(names))


def read_rank(folder: Path, manifest: Manifest, shards: Sequence[Shard]) -> list[tuple[torch.Tensor, ...]]:
    """This rank's shards, from a checkpoint of any layout; padding is zero. In the checkpoint's dtype."""
    names = {piece.name for shard in shards for piece in shard.pieces}
    reader = CheckpointReader(folder, manifest, names)
    dtypes = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    found = []
    for shard in shards:
        values = tuple(torch.zeros(shard.elements, dtype=dtypes[manifest.dtype]) for _ in QUANTITIES)
        for quantity, one in zip(QUANTITIES, values, strict=True):
            for piece in shard.pieces:
                reader.fill(quantity, piece, _bytes_of(one))
        found.append(values)
    return found


class Checkpoints:
    """The checkpoints of one run, from the side of one rank. Every method is collective.

    say: gets a line for people, on rank 0 alone.
    """

    def __init__(self, session: Session, options: CheckpointOptions, seed: int, say: Say):
        self._session, self._options, self._seed = session, options, seed
        self._say: Say = say if session.rank == 0 else lambda text: None
        self._shards = rank_shards(session.plan, session.rank)
        self._writer: _Writer | None = None
        self._pending: Manifest | None = None

    def resume(self) -> Manifest | None:
        """Load what options.resume asks for -> its manifest; None: the run starts anew.

        Raises AutoshardError when a named checkpoint will not do, and where checkpoints would be mixed.
        """
        options = self._options
        folder = self._chosen()
        manifest = None if folder is None else read_manifest(folder)
        if folder is not None and manifest is not None:
            manifest.check_model(self._session.plan.model, folder)
            state = read_rank(folder, manifest, self._shards)
            self._session.optimizer.load_state(state, manifest.step)
            self._say(f"resumed from {folder}, after step {manifest.step}")
        if options.every is not None:
            problem = self._clean(-1 if manifest is None else manifest.step) if self._session.rank == 0 else ""
            problem = self._exchange(problem)[0]
            if problem:
                raise AutoshardError(problem)
        return manifest

    def after_step(self, steps: int, learning_rate: float, position: dict[str, Any], last: bool) -> None:
        """Save where it is due; steps: how many are done."""
        every = self._options.every
        if every is None:
            return
        if steps % every == 0 or last:
            self._settle(wait=True)
            self._save(steps, learning_rate, position)
        self._settle(wait=last or self._options.synchronous)

    def _save(self, steps: int, learning_rate: float, position: dict[str, Any]) -> None:
        session, directory = self._session, self._options.directory
        folder = being_written(directory, steps)
        state = host_copy(session.optimizer.state())
        precision = session.plan.training.precision
        dtype = DTYPE_NAMES[DTYPES[precision.master_dtype or precision.parameter_dtype]]
        versions = {"autoshard": autoshard.__version__, "torch": torch.__version__, "python": platform.python_version()}
        model = json.loads(json.dumps(session.plan.model.to_dict()))
        world = session.plan.mesh.world_size
        self._pending = Manifest(steps, model, position, dtype, learning_rate, self._seed, versions, world, ())
        self._writer = _Writer(folder, session.rank, self._shards, state, plan_to_json(session.plan))

    def _settle(self, wait: bool) -> None:
        """Commit the save in flight when every rank has written; wait: stay until then."""
        if self._writer is None:
            return
        if wait:
            self._writer.join()
        if not self._all_true(self._writer.status == WRITTEN):
            return
        assert self._pending is not None
        results = [json.loads(text) for text in self._exchange(json.dumps(self._writer.result))]
        failed = self._exchange(self._commit(self._pending, results) if self._session.rank == 0 else "")[0]
        if failed:
            self._say(
                f"checkpoint of step {self._pending.step} NOT saved, training goes on, older ones are intact: {failed}"
            )
        self._writer = self._pending = None

    def _commit(self, pending: Manifest, results: list[dict[str, Any]]) -> str:
        """On rank 0, from every rank's result -> what went wrong."""
        options = self._options
        folder = being_written(options.directory, pending.step)
        problem = next((result["problem"] for result in results if "problem" in result), "")
        if not problem:
            files = tuple(
                FileRecord(**{**one, "tensors": tuple(one["tensors"])}) for result in results for one in result["files"]
            )
            try:
                commit(options.directory, replace(pending, files=files), options.keep)
            except (OSError, AutoshardError) as error:
                problem = str(error)
        if problem:
            shutil.rmtree(folder, ignore_errors=True)
        return problem

    def _chosen(self) -> Path | None:
        """The checkpoint to load: named, or the newest complete one; ranks share the work of checking the files."""
        options = self._options
        if options.resume == "never":
            return None
        named = options.directory if options.resume == "auto" else Path(options.resume)
        found = [] if options.resume != "auto" and (named / MANIFEST).exists() else step_folders(named)
        names = [str(one) for one in found] or ([] if options.resume == "auto" else [options.resume])
        problems = [""]
        for text in json.loads(self._exchange(json.dumps(names))[0]):
            folder = Path(text)
            problems = [problem for problem in self._exchange(self._problem(folder)) if problem]
            if not problems:
                return folder
            self._say(f"skipped checkpoint {folder.name}: {problems[0]}")
        if options.resume != "auto":
            raise AutoshardError(f"resume={options.resume} has no complete checkpoint: {problems[0]}")
        if problems[0]:
            self._say(f"no complete checkpoint in {named}: the run starts anew")
        return None

    def _problem(self, folder: Path) -> str:
        """What is wrong with this rank's share of the files."""
        try:
            manifest = read_manifest(folder)
        except AutoshardError as error:
            return str(error)
        if manifest.quantities != QUANTITIES:
            return "it holds weights and no optimizer state: --weights starts from it"
        rank, world = self._session.rank, self._session.plan.mesh.world_size
        found = (file_problem(folder, record) for record in manifest.files[rank::world])
        return next((problem for problem in found if problem), "")

    def _clean(self, step: int) -> str:
        """-> what went wrong, on rank 0."""
        directory = self._options.directory
        if self._options.resume == "never" and step_folders(directory):
            return (
                f"resume=never: checkpoint_dir={directory} holds checkpoints of another run up to step "
                f"{step_of(step_folders(directory)[0])}: name another folder"
            )
        try:
            moved = clean(directory, step)
        except OSError as error:
            return f"checkpoint_dir={directory} cannot be written to: {error.strerror or error}"
        if moved:
            self._say(f"set aside in {directory}: {', '.join(moved)}")
        return ""

    def _all_true(self, value: bool) -> bool:
        if not dist.is_initialized():
            return value
        flag = torch.tensor(int(value), device=self._session.device)
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag)

    def _exchange(self, text: str) -> list[str]:
        """Every rank's text, by rank: bytes, no pickles."""
        if not dist.is_initialized():
            return [text]
        device = self._session.device
        data = torch.frombuffer(bytearray(text.encode() + b"\n"), dtype=torch.uint8).to(device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, torch.tensor([data.numel()], device=device))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        padded[: data.numel()] = data
        texts = [torch.zeros_like(padded) for _ in sizes]
        dist.all_gather(texts, padded)
        return [
            one[: int(size)].cpu().numpy().tobytes().decode().removesuffix("\n")
            for one, size in zip(texts, sizes, strict=True)
        ]


class _Writer(threading.Thread):
    """Writes one snapshot of one rank; whatever goes wrong is its result."""

    def __init__(self, folder: Path, rank: int, shards: Sequence[Shard], state: State, plan: str):
        super().__init__(daemon=True, name="checkpoint")
        self._folder, self._rank, self._shards, self._state, self._plan = folder, rank, shards, state, plan
        self.status = WRITING
        self.result: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files = [write_rank(self._folder, self._rank, self._shards, self._state)]
            if self._rank == 0:
                files.append(write_plan_file(self._folder, self._plan))
            self.result = {"files": [one.to_dict() for one in files]}
        except (OSError, AutoshardError) as error:
            self.result = {"problem": f"rank {self._rank}: {error}"}
        except Exception as error:  # the other ranks wait for this one's word
            self.result = {"problem": f"rank {self._rank}: {error!r}"}
        self._state = ()
        self.status = WRITTEN


def _bytes_of(values: torch.Tensor) -> Bytes:
    found: Bytes = values.view(torch.uint8).numpy()
    return found
