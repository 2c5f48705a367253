"""Whether a run can go on from a checkpoint: asked before ranks start, and by every rank of what it loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.checkpoint.manifest import QUANTITIES, Manifest, read_manifest
from autoshard.checkpoint.open_place import named_folders, open_store
from autoshard.checkpoint.store import MANIFEST, Folder, PlaceError, Store, size_problem, step_of
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json
from autoshard.runtime.worker_arguments import CheckpointOptions
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import ADAMW

if TYPE_CHECKING:
    from autoshard.runtime.data import TokenStream


def candidates(store: Store, resume: str) -> Sequence[Folder]:
    """Checkpoints to go on from, the one to take first: none with "never", those of the store with "auto", else those
    that `resume` names."""
    if resume == "never":
        return ()
    return store.folders() if resume == "auto" else named_folders(resume, MANIFEST)


def check_not_mixed(store: Store, resume: str) -> None:
    """Raises AutoshardError where a run that starts anew, or goes on from another place, would save beside another
    one's checkpoints."""
    there = [] if resume == "auto" else store.folders()
    asked = {str(folder) for folder in candidates(store, resume)} if there else set()
    if there and (asked or resume == "never") and asked.isdisjoint(map(str, there)):
        cure = "name another folder" + ("" if resume == "never" else ", or resume=auto to go on there")
        raise AutoshardError(
            f"resume={resume}: checkpoint_dir={store} holds checkpoints of another run up to step "
            f"{step_of(there[0])}: {cure}"
        )


def batches_ahead(manifest: Manifest, stream: TokenStream, steps: int, folder: Folder) -> int:
    """By how much a step's batch in the data differs from its number, where a run goes on from there.

    folder: of the manifest. Raises AutoshardError where the data are others, and where nothing is left to train.
    """
    from autoshard.runtime.data import DataPosition  # brings numpy

    ahead = 0
    if manifest.data_position:  # other programs' checkpoints have none: step k takes the k-th batch
        ahead = stream.step_at(from_json(DataPosition, manifest.data_position, "the data position")) - manifest.step
    if manifest.step >= steps:
        raise AutoshardError(
            f"the checkpoint {folder} is at step {manifest.step}: steps={steps} leaves nothing to train; give more "
            "steps, or another folder"
        )
    return ahead


def check_resume(
    checkpoints: CheckpointOptions,
    model: ModelSpec,
    stream: TokenStream,
    steps: int,
    weights: Path | None = None,
    optimizer: str = ADAMW,
) -> Folder | None:
    """The checkpoint that a run will go on from, as far as is seen before any rank starts; None: it starts anew. Raises
    AutoshardError for what every rank would say of it.

    weights: where those are that a checkpoint of adapters alone stands beside; None: where they were.
    optimizer: the run's.

    Whether its files are whole, the ranks see, and take an older one: of a manifest that is not, and of a checkpoint
    that lacks files or bytes, nothing is said here.
    """
    store, resume = open_store(checkpoints.location), checkpoints.resume
    if checkpoints.every is not None:
        check_not_mixed(store, resume)
    for folder in candidates(store, resume):
        try:
            manifest = read_manifest(folder)
        except PlaceError:
            raise
        except AutoshardError:
            continue
        if manifest.quantities != QUANTITIES:
            continue
        try:
            manifest.check_model(model, folder)
            manifest.check_optimizer(optimizer, folder)
            batches_ahead(manifest, stream, steps, folder)
            if manifest.base is not None:
                from autoshard.conversion.convert import weights_beside  # brings numpy

                weights_beside(manifest.base, model, f"checkpoint {folder}", weights)
            return folder
        except AutoshardError:
            if not any(size_problem(folder, one.name, one.bytes) for one in manifest.files):
                raise
    return None
