"""Stream every parameter from a source into the output files, a few megabytes at a time, each byte read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autoshard.checkpoint.boxes import Box
from autoshard.conversion.dtypes import WIDTHS
from autoshard.conversion.output_file import OutputFile
from autoshard.conversion.output_folder import OutputFolder
from autoshard.conversion.regions import divider, tiles
from autoshard.conversion.source import Source, WeightReader

CHUNK_BYTES = 16_000_000
"""Held in memory about five times: read, reordered, two that wait and one that is written."""
Advance = Callable[[int], None]
"""Told how many bytes of the source were done since it was told last."""


def stream(
    source: Source, dtypes: Mapping[str, str], files: Sequence[OutputFile], folder: Path, advance: Advance
) -> dict[Path, str]:
    """Write the files into the folder, and return the SHA-256 of each file for which it is wanted. What no file has is
    not read.

    dtypes: of every parameter in the files. advance: is called with the bytes done.
    Raises AutoshardError for the source, OSError for the folder.
    """
    with WeightReader(source) as reader, OutputFolder(folder, files, source.shapes) as output:
        for parameter, shape in source.shapes.items():
            if not (targets := output.regions(parameter)):
                continue
            divide = divider([*source.regions[parameter], *targets])
            width = max(WIDTHS[source.dtypes[parameter]], WIDTHS[dtypes[parameter]])
            for box in tiles(Box((0,) * len(shape), shape), CHUNK_BYTES // width, divide):
                output.write(parameter, box, reader.read(parameter, box, dtypes[parameter]))
                advance(box.elements * WIDTHS[source.dtypes[parameter]])
            output.complete(parameter)
        reader.finish()
        return output.finish()
