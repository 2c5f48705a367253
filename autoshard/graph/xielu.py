"""xIELU, the activation of Apertus (Huang and Schlag, arXiv 2411.13010): a parabola above zero, an exponential below.

Each is multiplied by a number that is learned, of one block and positive by a softplus.
"""

from __future__ import annotations

from math import expm1, log

ABOVE, BELOW = 0.8, 0.8
"""What a block's numbers are at first, of the parabola and of the exponential, whose least is BETA."""
BETA, EPS = 0.5, -1e-6
PARTS = {"alpha_p": log(expm1(ABOVE)), "alpha_n": log(expm1(BELOW - BETA)), "beta": BETA, "eps": EPS}
"""Parameter -> its value at first, as in transformers."""
LEARNED = ("alpha_p", "alpha_n")
"""Those that have a gradient; checkpoints hold the others too."""
_ABOVE = "(mul (softplus x1) (square (relu x0)))"
_BELOW = "(mul (mul (add x3 (softplus x2)) (sign (minimum x0 0))) (sub x0 (elu (minimum x0 x4))))"
EXPRESSION = f"(add (mul x3 x0) (add {_ABOVE} {_BELOW}))"
"""xIELU as an expression (graph/pointwise.py) of the input x0 and of PARTS, x1 to x4: beta x + above x^2 above zero,
beta x + below (e^min(x, eps) - 1 - x) below it. At 0 it is 0, as padding must be, where transformers' own is a
millionth off."""
