"""A migration on the disk: plan, checkpoint, job and page, all of it or nothing."""

from __future__ import annotations

from pathlib import Path

from autoshard.conversion.convert import Conversion, convert, open_source
from autoshard.conversion.dtypes import CONFIG_NAMES
from autoshard.conversion.folder import check_free, new_folder
from autoshard.conversion.nxd import nxd_folder
from autoshard.files.atomic_file import write_text
from autoshard.jobs.options import LaunchOptions, quoted
from autoshard.jobs.slurm import sbatch_script
from autoshard.migration.migrate import Migration, consumed_samples
from autoshard.migration.page import CHECKPOINT, JOB, PAGE, PLAN, page, run_words
from autoshard.plans.plan_json import write_plan


def write_migration(migration: Migration, folder: Path, checkpoint: Path | None, weights_only: bool) -> str:
    """Makes the folder. Returns sentences on what its checkpoint holds and where in the data it is; "" without one.

    checkpoint: a folder of NxD's files. weights_only: leave out the optimizer's state that it has.
    Raises AutoshardError, and leaves nothing behind, where something is at `folder` or the checkpoint cannot be read.
    """
    check_free(folder)
    position, begins = "", None
    with new_folder(folder) as written:
        if checkpoint is not None:
            position, begins = _converted(checkpoint, written / CHECKPOINT, migration, weights_only)
        options = LaunchOptions(str(folder / PLAN), quoted(run_words(migration, folder, begins)))
        write_plan(migration.after, written / PLAN)
        write_text(written / JOB, sbatch_script(migration.after, options), "job")
        write_text(written / PAGE, page(migration, folder, position), "page")
    return position


def _converted(source: Path, target: Path, migration: Migration, weights_only: bool) -> tuple[str, str]:
    """Writes the checkpoint for the new plan. Returns the sentences on it, and the option of `autoshard run` that takes
    it."""
    weights = open_source(source, migration.before.model, training=not weights_only)
    done = convert(weights, target, Conversion("plan", migration.after), lambda count: None, lambda count: None)
    if done.step is None:
        told = f"Weights of {done.model} alone: no optimizer's state was saved there, or --weights-only left it out."
        return told, "--weights"
    batch, seen = migration.before.training.global_batch_size, consumed_samples(nxd_folder(source) or source)
    counted = f"{done.step * batch:,}, {done.step:,} steps of {batch:,}"
    sentences = (
        f"Weights of {done.model} and AdamW's state after step {done.step:,}: training goes on with the next one. "
        f"Sequences that it has seen: {counted if seen is None else f'{seen:,}, as its folder says in its name'}."
    )
    narrow = sorted({CONFIG_NAMES[dtype] for dtype in weights.dtypes.values()} - {"float32"})
    if narrow and migration.after.training.precision.master_dtype == "float32":
        sentences += f" Its master weights were not saved: they begin as the weights, in {' and '.join(narrow)}."
    return sentences, "--resume"
