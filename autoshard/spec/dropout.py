"""How much of which activations training drops at random. Evaluation drops nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Limit
from autoshard.files.fields import show

Probability = Annotated[float, Limit(at_least=0, below=1)]


@dataclass(frozen=True)
class Dropout:
    """Probabilities, from 0 to below 1, that an element becomes zero; the others are scaled by 1 / (1 - probability).

    embedding: Of what the embedding gives to the first block.
    residual: Of what attention and MLP give to the residual stream.
    attention: Of the probabilities that attention weighs values with.
    lora: Of what each low-rank adapter reads, PEFT's lora_dropout; left out where it is 0.
    """

    embedding: Probability = 0.0
    residual: Probability = 0.0
    attention: Probability = 0.0
    lora: Annotated[float, Limit(at_least=0, below=1), Absence.WRITTEN] = 0.0

    def __post_init__(self) -> None:
        check_annotated("dropout", self)

    def __bool__(self) -> bool:
        """Whether anything is dropped."""
        return any((self.embedding, self.residual, self.attention, self.lora))

    def __str__(self) -> str:
        """'embedding=0.1,attention=0.1', as `parse_dropout` reads it."""
        return ",".join(f"{name}={rate!r}" for name, rate in asdict(self).items() if rate) or "0"


NO_DROPOUT = Dropout()
PUBLISHED = "config"
"""In place of probabilities: those of the model's config.json."""


def parse_dropout(text: str) -> Dropout:
    """'0.1' for all three of a model, or some of all: 'residual=0.1,lora=0.05'. Raises AutoshardError for anything
    else."""
    names = tuple(field.name for field in fields(Dropout))
    some = ", ".join(f"{name}=0.1" for name in names)
    form = f"{PUBLISHED}, a probability such as 0.1, or some of {some} joined by commas"
    try:
        if "=" not in text:
            return Dropout(*(float(text),) * 3)
        pairs = [part.split("=") for part in text.split(",")]
        rates = {name.strip(): float(rate) for name, rate in pairs}
    except ValueError:
        raise AutoshardError(f"dropout={show(text)} must be {form}") from None
    if len(rates) < len(pairs) or not rates.keys() <= set(names):
        raise AutoshardError(f"dropout={show(text)} must be {form}")
    return Dropout(**rates)
