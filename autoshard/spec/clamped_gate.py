"""The activation of a gated MLP whose gate and raised values are cut off."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.codec import Positive
from autoshard.files.fields import check_positive


@dataclass(frozen=True)
class ClampedGate:
    """An activation (u + 1) g sigmoid(alpha g) in place of u silu(g), under the names of gpt-oss's config.

    swiglu_limit: g, the gate, is at most this; u, what is raised, is cut off at plus and minus this.
    swiglu_alpha: By which the gate is multiplied inside the sigmoid.

    Raises AutoshardError for a number that is not above 0.
    """

    swiglu_limit: Positive
    swiglu_alpha: Positive

    def __post_init__(self) -> None:
        for field in ("swiglu_limit", "swiglu_alpha"):
            check_positive("clamped_gate", field, getattr(self, field))

    @property
    def expression(self) -> str:
        """The activation as an expression (graph/pointwise.py) of the gate x0 and the raised values x1."""
        limit, alpha = self.swiglu_limit, self.swiglu_alpha
        gate = f"(minimum x0 {limit!r})"
        raised = f"(maximum (minimum x1 {limit!r}) {-limit!r})"
        return f"(mul (add {raised} 1.0) (mul {gate} (sigmoid (mul {gate} {alpha!r}))))"
