"""Read weights in MXFP4 (OCP Microscaling Formats 1.0, 5.2 and 6.3): blocks of 32 numbers of 4 bits with one exponent.

A number is E2M1: sign, two bits of exponent, one of mantissa; the low half of a byte comes first. A scale is E8M0: a
power of two, stored with a bias of 127. gpt-oss packs along the dim that its products sum over, and holds
`<name>_blocks` [..., blocks, 16] and `<name>_scales` [..., blocks] in place of `<name>`, whose last two dims are
exchanged. The products are exact in bfloat16, which is what they are read as.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autoshard.checkpoint.boxes import Box
from autoshard.checkpoint.tensor_file import StoredTensor
from autoshard.conversion.dtypes import as_dtype
from autoshard.conversion.places import Place, part_shape
from autoshard.conversion.regions import Array, OpenFiles, Region, Saw, read_box
from autoshard.errors import AutoshardError
from autoshard.models.weight_names import Part

BLOCKS, SCALES = "_blocks", "_scales"
DTYPE, STORED = "BF16", "U8"
BLOCK, PACKED = 32, 2
"""Numbers that share a scale, and numbers in a byte."""
BIAS, NOT_A_NUMBER = 127, 255
MAGNITUDES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
VALUES = np.concatenate((MAGNITUDES, -MAGNITUDES))
"""By the four bits of a number."""


Stored = tuple[Path, str, int]
"""(file, tensor, its first byte in the file)."""


@dataclass(frozen=True)
class Mxfp4Region(Region):
    """A box of a parameter in MXFP4. The fields of Region are those of the numbers as if they were bfloat16.

    blocks, scales: the same box in their tensors, with fewer elements along `dim`, in which a block's numbers follow
    each other.
    """

    blocks: Region
    scales: Region
    dim: int


def stored_part(part: Part) -> Part:
    """The part as its blocks hold it: the last two dims of the tensor exchanged."""
    *outer, first, second = (f"({' '.join(dims)})" if len(dims) > 1 else dims[0] for dims in part.groups)
    return replace(part, layout=" ".join((*outer, second, first)))


def check_shapes(path: Path, part: Part, sizes: dict[str, int], blocks: StoredTensor, scales: StoredTensor) -> None:
    """Raise AutoshardError where the two tensors are not what the model's tensor packs into. part: as stored."""
    *outer, columns = part_shape(part, sizes)
    if columns % BLOCK:
        raise AutoshardError(f"{path}: {part.tensor} has rows of {columns}: MXFP4's blocks of {BLOCK} do not fill them")
    packed = (*outer, columns // BLOCK)
    for name, stored, shape in ((BLOCKS, blocks, (*packed, BLOCK // PACKED)), (SCALES, scales, packed)):
        if stored.dtype != STORED or stored.shape != shape:
            raise AutoshardError(
                f"{path}: {part.tensor}{name} is {stored.dtype} {list(stored.shape)}; MXFP4 of the model's is "
                f"{STORED} {list(shape)}"
            )


def packed_region(place: Place, dim: int, blocks: Stored, scales: Stored) -> Mxfp4Region:
    """A parameter's place in a tensor as stored. dim: of the parameter, along which it is packed."""

    def thinned(where: Stored, numbers: int) -> Region:
        path, tensor, first_byte = where
        strides = tuple(1 if i == dim else stride // numbers for i, stride in enumerate(place.strides))
        start = first_byte + place.start // numbers
        return Region(path, tensor, _thinned(place.box, dim, numbers), start, strides, width=1)

    width = 2
    strides = tuple(stride * width for stride in place.strides)
    path, tensor, first_byte = blocks
    return Mxfp4Region(
        path, tensor, place.box, first_byte, strides, width, thinned(blocks, PACKED), thinned(scales, BLOCK), dim
    )


def _thinned(box: Box, dim: int, numbers: int) -> Box:
    """The box of what holds so many numbers along a dim each: of bytes, or of scales."""
    first = box.offsets[dim] // numbers
    stop = -(-(box.offsets[dim] + box.sizes[dim]) // numbers)
    return Box(
        tuple(first if i == dim else at for i, at in enumerate(box.offsets)),
        tuple(stop - first if i == dim else size for i, size in enumerate(box.sizes)),
    )


def read_packed(files: OpenFiles, found: Mxfp4Region, box: Box, out: Array, saw: Saw | None = None) -> None:
    """Read a box into `out`, as bits of bfloat16. Raises AutoshardError as `read_box`, and for scales that stand for no
    number or for one that bfloat16 does not hold."""
    first = box.offsets[found.dim] // BLOCK * BLOCK
    stop = -(-(box.offsets[found.dim] + box.sizes[found.dim]) // BLOCK) * BLOCK
    whole = Box(
        tuple(first if i == found.dim else at for i, at in enumerate(box.offsets)),
        tuple(stop - first if i == found.dim else size for i, size in enumerate(box.sizes)),
    )
    parts = []
    for part, numbers in ((found.blocks, PACKED), (found.scales, BLOCK)):
        thin = _thinned(whole, found.dim, numbers)
        values = np.empty(thin.sizes, np.uint8)
        read_box(files[part.path], part, thin, values, saw)
        parts.append(np.moveaxis(values, found.dim, -1))
    blocks, scales = parts
    if (scales == NOT_A_NUMBER).any():
        raise AutoshardError(f"{found.scales.path}: {found.scales.tensor} has a scale that is not a number")
    mantissas = np.stack((VALUES[blocks & 15], VALUES[blocks >> 4]), -1).reshape(*scales.shape, BLOCK)
    with np.errstate(over="ignore"):
        wide = np.ldexp(mantissas, (scales.astype(np.int32) - BIAS)[..., None])
    if not np.isfinite(wide).all():
        raise AutoshardError(f"{found.scales.path}: {found.scales.tensor} has values beyond what bfloat16 holds")
    bits = as_dtype(np.ascontiguousarray(wide).view(np.uint32), "F32", DTYPE)
    flat = np.moveaxis(bits.reshape(*scales.shape[:-1], stop - first), -1, found.dim)
    out[...] = flat[box.slices(whole.offsets)]
