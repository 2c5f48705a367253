"""The activation of a gated MLP that cuts off the outputs of its gate and up projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Positive


@dataclass(frozen=True)
class ClampedGate:
    """An activation of g and u, the outputs of the gate and up projections, in place of u silu(g): with an alpha
    (u + 1) g sigmoid(alpha g), where g and u are cut off; without one u silu(g), where u and silu(g) are, or u and g.
    The names are those of gpt-oss's and Step's configs.

    swiglu_limit: g, or silu(g), of routed experts is at most this; their u is cut off at plus and minus this.
    swiglu_alpha: By which the gate is multiplied inside the sigmoid; absent where silu(g) is cut off.
    swiglu_limit_shared: The same limit of the shared expert, and of the MLP of blocks without experts; absent where
        theirs are not cut off.
    cuts_before_silu: Whether g is cut off, not silu(g), where there is no alpha (DeepSeek-V4).

    Raises AutoshardError for a number that is not above 0.
    """

    swiglu_limit: Positive
    swiglu_alpha: Annotated[Positive | None, Absence.WRITTEN] = None
    swiglu_limit_shared: Annotated[Positive | None, Absence.WRITTEN] = None
    cuts_before_silu: Annotated[bool, Absence.WRITTEN] = False

    def __post_init__(self) -> None:
        check_annotated("clamped_gate", self)
        if self.cuts_before_silu and self.swiglu_alpha is not None:
            raise AutoshardError(
                f"cuts_before_silu=True of clamped_gate goes without swiglu_alpha={self.swiglu_alpha}, with which g is "
                "cut off in any case"
            )

    def expression(self, limit: float) -> str:
        """The activation as an expression (graph/pointwise.py) of x0 and x1, the outputs of the gate and up
        projections. limit: swiglu_limit or swiglu_limit_shared."""
        up = f"(maximum (minimum x1 {limit!r}) {-limit!r})"
        if self.cuts_before_silu:
            return f"(mul {up} (silu (minimum x0 {limit!r})))"
        if self.swiglu_alpha is None:
            return f"(mul {up} (minimum (silu x0) {limit!r}))"
        gate = f"(minimum x0 {limit!r})"
        return f"(mul (add {up} 1.0) (mul {gate} (sigmoid (mul {gate} {self.swiglu_alpha!r}))))"
