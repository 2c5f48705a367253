"""Loads the weights that a run starts from (Hugging Face folder, checkpoint or NxD's files), only this rank's boxes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from autoshard.checkpoint.manifest import Base
from autoshard.conversion.convert import open_source, source_for
from autoshard.conversion.plan_checkpoint import checkpoint_folder
from autoshard.conversion.sample import sampled
from autoshard.conversion.source import Source, WeightReader
from autoshard.errors import AutoshardError
from autoshard.runtime.session import Session
from autoshard.runtime.trainer.alike import unlike
from autoshard.runtime.trainer.exchange import exchange
from autoshard.runtime.trainer.shard_files import DTYPE_NAMES


class Start(NamedTuple):
    """The weights that a run began with. folder: that was read. base: the weights beside the plan's adapters, where a
    later run finds them; None where the plan has no adapters, or the weights may be gone then."""

    folder: Path
    base: Base | None


def load_weights(session: Session, folder: Path, adapter: Path | None = None) -> Start:
    """Loads this rank's shards of the masters from the files, then sets parameters from the masters, and returns what
    was read (collective).

    adapter: a folder with adapters beside the weights, of PEFT or a checkpoint. Of a folder of checkpoints, all take
    the one that is the newest to rank 0.
    Raises AutoshardError for files that are not whole weights of the plan's model, and where ranks see other ones.
    """
    plan, rank = session.plan, session.rank
    newest = checkpoint_folder(folder) if rank == 0 else None
    chosen = folder / exchange(session, "" if newest in (None, folder) else newest.name)[0]
    source = source_for(open_source(chosen, plan.model, (rank, plan.mesh.world_size), adapter=adapter), plan)
    _check_alike(session, source)
    with WeightReader(source) as reader:
        for shard, bucket in zip(session.shards(), session.optimizer.buckets, strict=True):
            master = bucket.master.data
            for piece in shard.pieces:
                if piece.name not in source.shapes:
                    continue  # an adapter that begins as `initial_parameter` made it
                bits = reader.read(piece.name, piece.box, DTYPE_NAMES[master.dtype])
                values = torch.frombuffer(bytearray(bits.tobytes()), dtype=master.dtype)
                piece.view(master).copy_(values.view(piece.box.sizes))
            bucket.publish()
        reader.finish()
    return Start(chosen, None if plan.model.lora is None else source.beside_adapters)


def _check_alike(session: Session, source: Source) -> None:
    """Raises AutoshardError, on every rank, where ranks read other weights, wherever their files are. Collective."""
    difference = unlike([{"weights": told} for told in exchange(session, sampled(source.files))])
    if difference:
        raise AutoshardError(f"{difference}: give every rank the same weights")
