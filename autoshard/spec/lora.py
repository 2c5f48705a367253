"""Low-rank adapters (LoRA, Hu et al. 2021) in PEFT's words: what is trained in place of the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count, Limit, Positive
from autoshard.files.fields import show

MOST_MODULES = 64
FORM = "a rank such as 16, or r=16,lora_alpha=32,target_modules=q_proj+v_proj, of which r alone is needed"
_LONGEST = 200
_MODULE = re.compile(r"[A-Za-z_]\w{0,99}")


@dataclass(frozen=True)
class Lora:
    """Adapters beside linear layers W of blocks: W x + lora_alpha / r * B A x, where A and B alone are learned.

    r: Rank of an adapter: rows of A, columns of B.
    lora_alpha: What an adapter's output is multiplied by, times r.
    target_modules: Names of the linear layers that have one, the last parts of their weights', such as q_proj; sorted.
    """

    r: Count
    lora_alpha: Positive
    target_modules: Annotated[tuple[str, ...], Limit(items=1, most_items=MOST_MODULES)]

    def __post_init__(self) -> None:
        check_annotated("lora", self)
        names = self.target_modules
        if not names or not all(isinstance(name, str) and _MODULE.fullmatch(name) for name in names):
            joined = "+".join(map(str, names))
            shown = joined if joined.isprintable() and len(joined) <= _LONGEST else show(joined)
            raise AutoshardError(f"target_modules={shown} of lora must be names of linear layers such as q_proj")
        if names != tuple(sorted(set(names))):
            raise AutoshardError(f"target_modules={'+'.join(names)} of lora must be sorted, each name once")

    @property
    def scale(self) -> float:
        """By which an adapter's output is multiplied."""
        return self.lora_alpha / self.r

    def __str__(self) -> str:
        """'r=16,lora_alpha=32,target_modules=q_proj+v_proj', as `parse_lora` reads it."""
        alpha = str(float(self.lora_alpha)).removesuffix(".0")
        return f"r={self.r},lora_alpha={alpha},target_modules={'+'.join(self.target_modules)}"


def parse_lora(text: str, linear_layers: tuple[str, ...]) -> Lora:
    """The adapters that a text asks for, in one of the forms of FORM: without lora_alpha it is r, without
    target_modules each linear layer has one. linear_layers: names of those of a model. Raises AutoshardError for
    anything else."""
    parts = [part.partition("=")[::2] for part in (text if "=" in text else f"r={text}").split(",")]
    given = dict(parts)
    try:
        rank, alpha = int(given.pop("r")), given.pop("lora_alpha", None)
        modules = given.pop("target_modules", None)
        scale = float(rank if alpha is None else alpha)
    except (KeyError, ValueError):
        raise AutoshardError(f"lora={show(text)} must be {FORM}") from None
    if given or len({name for name, _ in parts}) < len(parts):
        raise AutoshardError(f"lora={show(text)} must be {FORM}")
    return Lora(rank, scale, linear_layers if modules is None else tuple(sorted({*modules.split("+")})))
