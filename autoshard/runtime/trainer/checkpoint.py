"""Saving and resuming a run: this rank's shards to its file and back, and what the ranks have to agree on.

A save copies the shards to the host, at most 3 times the bytes of this rank's master weights, and a thread writes them
while training goes on. Of adapters beside weights that are found elsewhere again it copies and writes these alone.
There is one such copy at a time: the next save waits for the last. Between steps the ranks tell each other whether they
have written; when all have, a thread of rank 0 completes the checkpoint. No gather.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import autoshard
from autoshard.checkpoint.manifest import QUANTITIES, Base, Manifest, read_manifest
from autoshard.checkpoint.open_place import open_folder, open_store
from autoshard.checkpoint.store import PLAN, Folder, PlaceError, file_problem
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.plans.mixture_changes import mixture_changes
from autoshard.plans.plan_json import plan_to_json
from autoshard.plans.validate import MAX_PLAN_BYTES, plan_from_dict
from autoshard.runtime.resume import candidates, check_not_mixed
from autoshard.runtime.session import Session
from autoshard.runtime.torch_backend.optimizer_settings import DTYPES
from autoshard.runtime.trainer.checkpoint_threads import WRITTEN, Committer, Writer
from autoshard.runtime.trainer.exchange import all_true, exchange
from autoshard.runtime.trainer.shard_files import DTYPE_NAMES, host_copy, read_rank
from autoshard.runtime.worker_arguments import CheckpointOptions
from autoshard.units import format_bytes

if TYPE_CHECKING:
    from autoshard.conversion.source import Source

Say = Callable[[str], None]


class Checkpoints:
    """The checkpoints of one run, from the side of one rank. Every method is collective.

    say: gets a line for people, on rank 0 alone.
    """

    def __init__(self, session: Session, options: CheckpointOptions, seed: int, say: Say):
        self._session, self._options, self._seed = session, options, seed
        self._say: Say = say if session.rank == 0 else lambda text: None
        self._shards = session.shards()
        self._store = open_store(options.location)
        self._writer: Writer | None = None
        self._pending: Manifest | None = None
        self._committer: Committer | None = None
        self.resumed_from: Folder | None = None
        """What `resume` loaded."""
        self.base: Base | None = None
        """The weights that adapters stand beside, where these alone are saved; None: all that ranks hold is."""
        if session.rank == 0 and options.every is not None:
            self._committer = Committer(self._store, options.keep, options.keep_every)

    def resume(self, weights: Path | None = None) -> Manifest | None:
        """Load what options.resume asks for -> its manifest; None: the run starts anew.

        weights: where those are that a checkpoint of adapters alone stands beside; None: where they were.
        Raises AutoshardError when a named checkpoint will not do, where checkpoints would be mixed, and where those
        weights are gone or changed.
        """
        folder = self.resumed_from = self._chosen()
        manifest = None if folder is None else read_manifest(folder)
        if folder is not None and manifest is not None:
            model = self._session.plan.model
            manifest.check_model(model, folder)
            manifest.check_optimizer(self._session.plan.training.optimizer, folder)
            beside = self._weights_beside(folder, manifest, weights)
            self._load(folder, manifest, beside)
            self.base = None if beside is None else beside.beside_adapters
            if manifest.dropout != model.dropout:
                self._say(f"dropout={model.dropout} from here on, the checkpoint was trained with {manifest.dropout}")
            if model.is_moe and self._session.rank == 0:
                self._say_of_experts(folder)
        if self._options.every is not None:
            problem = self._clean(-1 if manifest is None else manifest.step) if self._session.rank == 0 else ""
            problem = exchange(self._session, problem)[0]
            if problem:
                raise AutoshardError(problem)
        return manifest

    def after_step(self, steps: int, learning_rate: float, position: dict[str, Any], last: bool) -> None:
        """Save where it is due; steps: how many are done."""
        every, wait = self._options.every, last or self._options.synchronous
        if every is None:
            return
        if steps % every == 0 or last:
            self._settle(wait=True)
            self._save(steps, learning_rate, position)
        self._settle(wait, last)
        if self._committer is not None and wait:
            self._committer.wait()
        if wait:
            exchange(self._session, "")  # nobody leaves before it is complete
        if self._committer is not None:
            for line in self._committer.said():
                self._say(line)

    @property
    def saves(self) -> bool:
        """Whether anything is saved."""
        return self._options.every is not None

    def _weights_beside(self, folder: Folder, manifest: Manifest, weights: Path | None) -> Source | None:
        """The weights that a checkpoint's adapters stand beside; None where it holds them. Collective."""
        if manifest.base is None:
            return None
        from autoshard.conversion.convert import source_for, weights_beside  # brings all that converts weights

        plan, problem, found = self._session.plan, "", None
        share = (self._session.rank, plan.mesh.world_size)
        try:
            beside = weights_beside(manifest.base, plan.model, f"checkpoint {folder}", weights, share)
            found = source_for(beside, plan)
        except AutoshardError as error:
            problem = str(error)
        if problems := [one for one in exchange(self._session, problem) if one]:
            raise AutoshardError(problems[0])
        return found

    def _load(self, folder: Folder, manifest: Manifest, beside: Source | None) -> None:
        """Load the checkpoint into the optimizer and say how much was read. beside: weights that it does not hold.

        A shard that several data-parallel ranks hold alike is read by one of them, which sends it to the others. With
        ZeRO each rank holds another shard. Collective.
        """
        optimizer, device = self._session.optimizer, self._session.device
        shared = optimizer.sharing_groups()
        mine = [group is None or group.index == 0 for group in shared]
        loaded = read_rank(folder, manifest, self._shards, mine, beside)
        state = []
        for group, values in zip(shared, loaded.state, strict=True):
            if group is not None:
                values = tuple(one.to(device) for one in values)
                for one in values:
                    dist.broadcast(one, group.ranks[0], group=group.handle)
            state.append(values)
        optimizer.load_state(state, manifest.step)
        read = [int(text) for text in exchange(self._session, str(loaded.bytes_read))]
        many = f"{sum(map(bool, read))} of {len(read)} ranks" if len(read) > 1 else "one rank"
        self._say(f"resumed from {folder}, after step {manifest.step}: {format_bytes(sum(read))} read by {many}")

    def _say_of_experts(self, folder: Folder) -> None:
        try:
            before = plan_from_dict(folder.json(PLAN, "plan", int(MAX_PLAN_BYTES)))
        except AutoshardError:  # of another program, or another autoshard: what it was trained with is not known
            return
        for sentence in mixture_changes(before, self._session.plan):
            self._say(sentence)

    def _save(self, steps: int, learning_rate: float, position: dict[str, Any]) -> None:
        session = self._session
        state = host_copy(session.optimizer.state(learned_only=self.base is not None))
        precision = session.plan.training.precision
        dtype, moments = (DTYPE_NAMES[DTYPES[one]] for one in (precision.kept_dtype, precision.optimizer_dtype))
        versions = {
            "autoshard": autoshard.__version__,
            "torch": str(torch.__version__),  # a class of torch's own, which is no plain text
            "python": platform.python_version(),
        }
        model = to_json(session.plan.model)
        world = session.plan.mesh.world_size
        self._pending = Manifest(
            steps,
            model,
            position,
            dtype,
            learning_rate,
            self._seed,
            versions,
            world,
            (),
            base=self.base,
            optimizer=session.plan.training.optimizer,
            moments_dtype="" if moments == dtype else moments,
        )
        plan = plan_to_json(session.plan) if session.rank == 0 else None
        self._writer = Writer(self._store, steps, session.rank, self._shards, state, plan)

    @property
    def unsaved(self) -> str:
        """On rank 0, what to say of the newest save where it is not there; '' where it is."""
        return "" if self._committer is None else self._committer.unsaved

    def _settle(self, wait: bool, last: bool = False) -> None:
        """Hand over the save in flight when every rank has written; wait: stay until then; last: it is the run's."""
        if self._writer is None:
            return
        if wait:
            self._writer.join()
        if not all_true(self._session, self._writer.status == WRITTEN):
            return
        results = [json.loads(text) for text in exchange(self._session, json.dumps(self._writer.result))]
        if self._committer is not None:
            assert self._pending is not None
            self._committer.submit(self._pending, results, last)
        self._writer = self._pending = None

    def _chosen(self) -> Folder | None:
        """The checkpoint to load: named, or the newest complete one; ranks share the work of checking the files."""
        options = self._options
        if options.resume == "never":
            return None
        auto = options.resume == "auto"
        found = []
        if self._session.rank == 0:
            found = list(candidates(self._store, options.resume))
        names = [str(one) for one in found] or ([] if auto else [options.resume])
        problems = [""]
        for text in json.loads(exchange(self._session, json.dumps(names))[0]):
            folder = open_folder(text)
            problems = [problem for problem in exchange(self._session, self._problem(folder)) if problem]
            if not problems:
                return folder
            self._say(f"skipped checkpoint {folder.name}: {problems[0]}")
        if not auto:
            raise AutoshardError(f"resume={options.resume} has no complete checkpoint: {problems[0]}")
        if problems[0]:
            self._say(f"no complete checkpoint in {self._store}: the run starts anew")
        return None

    def _problem(self, folder: Folder) -> str:
        """The first fault in this rank's share of the files, in words; '' without any.

        Raises PlaceError where the files cannot be looked at.
        """
        try:
            manifest = read_manifest(folder)
        except PlaceError:
            raise
        except AutoshardError as error:
            return str(error)
        if manifest.quantities != QUANTITIES:
            return "it holds weights and no optimizer state: --weights starts from it"
        rank, world = self._session.rank, self._session.plan.mesh.world_size
        found = (file_problem(folder, one.name, one.bytes, one.sha256) for one in manifest.files[rank::world])
        return next((problem for problem in found if problem), "")

    def _clean(self, step: int) -> str:
        """-> what went wrong, on rank 0."""
        try:
            check_not_mixed(self._store, self._options.resume)
            moved = self._store.clean(step)
        except AutoshardError as error:
            return str(error)
        if moved:
            self._say(f"set aside in {self._store}: {', '.join(moved)}")
        return ""
