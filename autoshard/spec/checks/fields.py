"""Each number, flag and object of a model by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.fields import check_choice, show
from autoshard.spec.model_types import FAMILIES, LONGEST_NAME, TRACED
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_fields(model: ModelSpec) -> None:
    """Raises AutoshardError for the first field that no model of its model_type could have."""
    of = model.name
    if not isinstance(of, str) or not of.isprintable() or not 1 <= len(of) <= LONGEST_NAME:
        raise AutoshardError(f"name={show(of)} of the model must be 1 to {LONGEST_NAME} printable characters")
    known = [name for name in FAMILIES.known(model.model_type) if name != TRACED]
    check_choice(of, "model_type", model.model_type, known if model.graph is None else (TRACED,))
    check_choice(of, "hidden_act", model.hidden_act, model.family.activations)
    check_annotated(of, model)
    _check_frequencies(model)


def _check_frequencies(model: ModelSpec) -> None:
    """A factor for each frequency, where each has one."""
    for field in ("short_factor", "long_factor") if model.rope_scaling is not None else ():
        count = len(getattr(model.rope_scaling, field))
        if count and count != model.rotary_dim // 2:
            needed = f"the {model.rotary_dim} numbers of a head that turn need {model.rotary_dim // 2}"
            raise AutoshardError(f"{field} of rope_scaling of {model.name} has {counted(count, 'number')}; {needed}")
