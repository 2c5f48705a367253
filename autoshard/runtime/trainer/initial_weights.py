"""Loads the weights that a run starts from (Hugging Face folder, checkpoint or NxD's files), only this rank's boxes."""

from __future__ import annotations

from pathlib import Path

import torch

from autoshard.conversion.convert import open_source, source_for
from autoshard.conversion.source import WeightReader
from autoshard.runtime.session import Session
from autoshard.runtime.trainer.shard_files import DTYPE_NAMES


def load_weights(session: Session, folder: Path) -> None:
    """Loads this rank's shards of the masters from the files, then sets parameters from the masters (collective).

    Raises AutoshardError for files that are not whole weights of the plan's model.
    """
    plan, rank = session.plan, session.rank
    source = source_for(open_source(folder, plan.model, share=(rank, plan.mesh.world_size)), plan)
    with WeightReader(source) as reader:
        for shard, bucket in zip(session.shards(), session.optimizer.buckets, strict=True):
            master = bucket.master.data
            for piece in shard.pieces:
                bits = reader.read(piece.name, piece.box, DTYPE_NAMES[master.dtype])
                values = torch.frombuffer(bytearray(bits.tobytes()), dtype=master.dtype)
                piece.view(master).copy_(values.view(piece.box.sizes))
            bucket.publish()
        reader.finish()
