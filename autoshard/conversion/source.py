"""Describe weights to be converted: which model they are of, and where on the disk every parameter lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np

from autoshard.checkpoint.boxes import Box
from autoshard.checkpoint.layout import parameter_shapes
from autoshard.checkpoint.manifest import WEIGHTS, Base
from autoshard.conversion.dtypes import as_dtype, element_type
from autoshard.conversion.merge import boxes, computed_dtype, merged
from autoshard.conversion.mxfp4 import Mxfp4Region, read_packed
from autoshard.conversion.regions import Array, OpenFiles, Region, read_box
from autoshard.conversion.sample import sampled
from autoshard.conversion.verified import VerifiedFiles
from autoshard.errors import AutoshardError
from autoshard.models.adapter_weights import Adapter, adapters
from autoshard.spec.model import ModelSpec


@dataclass(frozen=True)
class Source:
    """Weights on the disk.

    form: what they are, for people. dtypes, regions: by parameter; the regions of one cover it and do not overlap.
    carried: files of a Hugging Face folder that describe the model and its tokenizer, if it has them.
    sha256: of files that are to be compared while they are read.
    quantities: QUANTITIES with an optimizer's state after `step` steps, the last at `learning_rate`, else the weights;
    dtypes and regions have the moments by `key_of`.
    adapters: by weight, which is read with what they add; their parameters are in dtypes and regions, and not in the
    model.
    place: the folder in which a later run finds the weights beside adapters again; None: in none that is sure to stay.
    base: of adapters alone, the weights that they stand beside, which are not in regions.
    """

    form: str
    model: ModelSpec
    dtypes: Mapping[str, str]
    regions: Mapping[str, Sequence[Region]]
    carried: tuple[Path, ...] = ()
    sha256: Mapping[Path, str] = field(default_factory=dict)
    quantities: tuple[str, ...] = WEIGHTS
    step: int = 0
    learning_rate: float = 0.0
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    place: Path | None = None
    base: Base | None = None

    def __post_init__(self) -> None:
        elsewhere = frozenset[str]() if self.base is None else self._beside_adapters
        for name, shape in self.shapes.items():
            if name in elsewhere:
                continue
            whole = Box((0,) * len(shape), shape)
            held = sum(region.box.elements for region in self.regions.get(name, ()))
            if held != whole.elements:
                raise AutoshardError(f"{self.form} has {held:,} of {whole.elements:,} elements of {name}")

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter by key, in the order of the model, and then of every moment."""
        shapes = parameter_shapes(self.model)
        return {key_of(quantity, name): shape for quantity in self.quantities for name, shape in shapes.items()}

    @property
    def merged(self) -> Source:
        """The weights of the model without adapters, each with what its adapter adds. The source has weights alone."""
        return replace(self, model=self.model.without_adapters, adapters=adapters(self.model))

    @cached_property
    def _beside_adapters(self) -> frozenset[str]:
        """Names of the parameters that are no adapter's."""
        return frozenset(parameter_shapes(self.model.without_adapters))

    @property
    def beside_adapters(self) -> Base | None:
        """The weights that the adapters stand beside, for another run to find; None where they may be gone then."""
        if self.place is None:
            return None
        return Base(str(self.place), sampled(self.without_adapters.files))

    @property
    def files(self) -> frozenset[Path]:
        """The files in which the weights lie."""
        return frozenset(one.path for held in self.regions.values() for one in held)

    @property
    def without_adapters(self) -> Source:
        """The weights beside the adapters alone."""
        dtypes = {name: dtype for name, dtype in self.dtypes.items() if name in self._beside_adapters}
        regions = {name: held for name, held in self.regions.items() if name in self._beside_adapters}
        return replace(self, model=self.model.without_adapters, dtypes=dtypes, regions=regions)

    def with_adapters_of(self, other: Source) -> Source:
        """These weights, which have none, and the adapters of another source of the same model."""
        weights = self if other.model.multi_token_prediction is not None else self.without_prediction
        names = other.shapes.keys() - weights.shapes.keys()
        return replace(
            other,
            dtypes={**weights.dtypes, **{name: other.dtypes[name] for name in names}},
            regions={**weights.regions, **{name: other.regions[name] for name in names}},
            carried=other.carried or weights.carried,
            sha256={**weights.sha256, **other.sha256},
            place=weights.place,
            base=None,
        )

    @property
    def without_prediction(self) -> Source:
        """The weights without those of a prediction module."""
        if self.model.multi_token_prediction is None:
            return self
        model = replace(self.model, multi_token_prediction=None)
        kept = {key_of(quantity, name) for quantity in self.quantities for name in parameter_shapes(model)}
        dtypes = {key: dtype for key, dtype in self.dtypes.items() if key in kept}
        regions = {key: held for key, held in self.regions.items() if key in kept}
        return replace(self, model=model, dtypes=dtypes, regions=regions)


def key_of(quantity: str, parameter: str) -> str:
    """The key of a quantity of a parameter: weights go by the parameter's name, moments have their own name
    before it.
    """
    return parameter if quantity == WEIGHTS[0] else f"{quantity}/{parameter}"


class WeightReader:
    """Reads boxes of parameters from a source's files; a context manager."""

    def __init__(self, source: Source):
        self._source = source
        self._files = OpenFiles()
        self._verified = VerifiedFiles(source.sha256)

    def read(self, parameter: str, box: Box, dtype: str) -> Array:
        """Elements of a box, as bits of the dtype, with what an adapter adds.

        Raises AutoshardError naming the file if it cannot be read.
        """
        values, path = self._stored(parameter, box)
        have = self._source.dtypes[parameter]
        try:
            if (adapter := self._source.adapters.get(parameter)) is not None:
                down_box, up_box = boxes(adapter, box)
                wide = computed_dtype(have)
                down, up = self.read(adapter.down, down_box, wide), self.read(adapter.up, up_box, wide)
                values, have = merged(adapter, as_dtype(values, have, wide), down, up, wide), wide
            return as_dtype(values, have, dtype)
        except AutoshardError as error:
            raise AutoshardError(f"{path}: {parameter} has {error}") from None

    def _stored(self, parameter: str, box: Box) -> tuple[Array, Path]:
        """(bits of a box's elements as they are stored, the last file that has some)."""
        values = np.empty(box.sizes, element_type(self._source.dtypes[parameter]))
        elements_read, path = 0, Path()
        for region in self._source.regions[parameter]:
            common = region.box.common(box)
            if common is not None:
                path = region.path
                try:
                    part = values[common.slices(box.offsets)]
                    if isinstance(region, Mxfp4Region):
                        read_packed(self._files, region, common, part, self._verified.saw)
                    else:
                        read_box(self._files[path], region, common, part, self._verified.saw)
                except OSError as error:
                    raise AutoshardError(f"{path} cannot be read: {error.strerror or error}") from None
                elements_read += common.elements
        if elements_read != box.elements:
            raise AutoshardError(
                f"{self._source.form} has {elements_read:,} of {box.elements:,} elements of {parameter}"
            )
        return values, path

    def finish(self) -> None:
        """Raise AutoshardError naming a file that was changed after it was written, if its checksum is known."""
        self._verified.finish()

    def __enter__(self) -> WeightReader:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._verified.close()
        self._files.close()
