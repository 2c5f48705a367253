"""The fields that a model's family needs, and those that it cannot have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.spec.model_types import NEEDED_FIELDS, OPTIONAL_FIELDS, SHARED, with_trait

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_family(model: ModelSpec) -> None:
    """Raises AutoshardError for the first field that the model_type needs and that is absent, or that it cannot
    have."""
    family = model.family
    for field in (*NEEDED_FIELDS, *OPTIONAL_FIELDS):
        if field in family.needs:
            if getattr(model, field) is None:
                raise AutoshardError(f"model_type={model.model_type} of {model.name} needs {field}, which is absent")
        elif field not in family.may_have:
            _check_absent(model, field, field)
    if SHARED not in family.experts:
        _check_absent(model, "shared_expert_intermediate_size", SHARED)


def _check_absent(model: ModelSpec, field: str, trait: str) -> None:
    """Nothing in a field. trait: the word that families have in whose models there may be something."""
    value, usual = getattr(model, field), getattr(type(model), field)
    if value == usual:
        return
    said = f"{field}={value}" if isinstance(value, int) else field
    wanted = "absent" if usual in (None, ()) else usual
    raise AutoshardError(
        f"{said} of {model.name} must be {wanted} with model_type={model.model_type}; that is of {with_trait(trait)}"
    )
