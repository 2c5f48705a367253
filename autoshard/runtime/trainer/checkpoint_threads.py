"""Threads that save a checkpoint beside training: each rank writes its file, and rank 0 completes the checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from autoshard.checkpoint.layout import Shard
from autoshard.checkpoint.manifest import FileRecord, Manifest
from autoshard.checkpoint.store import PLAN, Folder, Hashed, Store, complete_folders, prune, step_of
from autoshard.errors import AutoshardError
from autoshard.files.codec import to_json
from autoshard.runtime.trainer.shard_files import State, write_rank

WRITING, WRITTEN = 0, 1
Result = dict[str, Any]
"""Outcome of one rank's writing: under 'files' its FileRecords as JSON values, or under 'problem' a sentence."""


class Writer(threading.Thread):
    """Writes one snapshot of one rank; whatever goes wrong is its result. plan: the plan's text, from rank 0 alone."""

    def __init__(self, store: Store, step: int, rank: int, shards: Sequence[Shard], state: State, plan: str | None):
        super().__init__(daemon=True, name="checkpoint")
        self._store, self._step, self._rank = store, step, rank
        self._shards, self._state, self._plan = shards, state, plan
        self.status = WRITING
        self.result: Result = {}
        self.start()

    def run(self) -> None:
        try:
            files = [write_rank(self._store, self._step, self._rank, self._shards, self._state)]
            if self._plan is not None:
                files.append(_write_plan(self._store, self._step, self._plan.encode()))
            self.result = {"files": to_json(files)}
        except AutoshardError as error:
            self.result = {"problem": f"rank {self._rank}: {error}"}
        except Exception as error:  # the other ranks wait for this one's word
            self.result = {"problem": f"rank {self._rank}: {error!r}"}
        self._state = ()
        self.status = WRITTEN


class Committer:
    """On rank 0: manifest, pointer and pruning of one save after the other. Training does not wait for them."""

    def __init__(self, store: Store, keep: int, keep_every: int | None):
        self._store, self._keep, self._keep_every = store, keep, keep_every
        self.unsaved = ""
        """Sentence on the newest save that was submitted, where it is not saved; '' where it is."""
        self._waiting: SimpleQueue[tuple[Manifest, list[Result], bool]] = SimpleQueue()
        self._said: SimpleQueue[str] = SimpleQueue()
        self._idle = threading.Condition()
        self._unfinished = 0
        threading.Thread(target=self._run, daemon=True, name="checkpoint-commit").start()

    def submit(self, manifest: Manifest, results: list[Result], last: bool) -> None:
        """Hand over a save that every rank has written, to be completed by this object's thread.

        manifest: without its files. results: one for each rank. last: whether it is the last save of the run.
        """
        with self._idle:
            self._unfinished += 1
        self._waiting.put((manifest, results, last))

    def wait(self) -> None:
        """Return once every submitted save is done."""
        with self._idle:
            self._idle.wait_for(lambda: not self._unfinished)

    def said(self) -> list[str]:
        """Lines for people since the last call."""
        return [self._said.get() for _ in range(self._said.qsize())]

    def _run(self) -> None:
        while True:
            manifest, results, last = self._waiting.get()
            self.unsaved = f"checkpoint of step {manifest.step} NOT saved"  # until it is
            try:
                self._complete(manifest, results, last)
            except Exception as error:  # the next save must find this thread
                self._said.put(f"checkpoint of step {manifest.step}: {error!r}")
            with self._idle:
                self._unfinished -= 1
                self._idle.notify_all()

    def _complete(self, manifest: Manifest, results: list[Result], last: bool) -> None:
        store, step = self._store, manifest.step
        problem = next((result["problem"] for result in results if "problem" in result), "")
        if not problem:
            files = tuple(_record(one) for result in results for one in result["files"])
            try:
                folder = store.commit(step, replace(manifest, files=files).to_json(), {f.name: f.bytes for f in files})
            except AutoshardError as error:
                problem = str(error)
        if problem:
            self.unsaved = f"checkpoint of step {step} NOT saved, {newest_complete(store)}: {problem}"
            if not last:  # the end of the run says it
                self._said.put(f"{self.unsaved}; training goes on")
            self._try(lambda: store.discard(step), f"what was written of step {step} was not deleted")
            return
        self.unsaved = ""
        self._finish(folder)

    def _finish(self, folder: Folder) -> None:
        store, step = self._store, step_of(folder)
        self._try(lambda: store.point_to(folder), f"checkpoint of step {step} is saved, but `latest` does not name it")
        self._try(
            lambda: prune(store, step, self._keep, self._keep_every),
            f"checkpoint of step {step} is saved, but older ones were not deleted",
        )

    def _try(self, action: Callable[[], None], otherwise: str) -> None:
        try:
            action()
        except AutoshardError as error:
            self._said.put(f"{otherwise}: {error}")


def newest_complete(store: Store) -> str:
    """Which checkpoint there is to go on from, in words."""
    try:
        steps = [step_of(folder) for folder in complete_folders(store)]
    except AutoshardError as error:
        return f"and whether {store} holds another cannot be seen ({error})"
    return f"the newest complete one in {store} is of step {steps[0]}" if steps else f"{store} holds no complete one"


def _write_plan(store: Store, step: int, text: bytes) -> FileRecord:
    """The plan beside the tensors, checked as they are."""
    hashed = Hashed([memoryview(text)])
    store.write(step, PLAN, hashed, len(text))
    return FileRecord(PLAN, len(text), hashed.hexdigest(), ())


def _record(values: dict[str, Any]) -> FileRecord:
    return FileRecord(**{**values, "tensors": tuple(values["tensors"])})
