"""One step of the fits against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.calibration.least_squares import Prior, by_size, slope_of, stepped

NO_TOPS = np.full(2, np.inf)


def test_a_step_lies_between_the_residuals_and_the_prior() -> None:
    """4 (1 + 2 x)^2 + (x - 3)^2 / 0.5^2 is least where 8 (1 + 2 x) + 4 (x - 3) = 0, which is x = 0.2."""
    prior = Prior(np.array([3.0]), np.array([0.5]), np.array([np.inf]))
    found = stepped(np.zeros(1), np.array([1.0]), np.array([[2.0]]), np.array([4.0]), prior, limit=9.0)
    assert found == pytest.approx([0.2])


def test_a_step_starts_where_the_residuals_were_taken() -> None:
    """The same sum, seen from x = 1, where the residual is 3."""
    prior = Prior(np.array([3.0]), np.array([0.5]), np.array([np.inf]))
    found = stepped(np.ones(1), np.array([3.0]), np.array([[2.0]]), np.array([4.0]), prior, limit=9.0)
    assert found == pytest.approx([0.2])


def test_a_step_is_cut_and_keeps_below_the_tops() -> None:
    prior = Prior(np.zeros(2), np.full(2, 1e3), np.array([np.inf, 0.1]))
    found = stepped(np.zeros(2), np.array([5.0, -5.0]), np.eye(2), np.ones(2), prior, limit=0.5)
    assert found.tolist() == [-0.5, 0.1]


def test_rows_without_weight_say_nothing() -> None:
    prior = Prior(np.array([1.0, 2.0]), np.ones(2), NO_TOPS)
    assert stepped(np.zeros(2), np.ones(1), np.ones((1, 2)), np.zeros(1), prior, limit=9.0) == pytest.approx([1, 2])


def test_slopes_are_differences_of_either_direction() -> None:
    """Of (x^2, x y) at (3, 5): 2 x + step and y to the right, x to the left."""

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.array([x[0] ** 2, x[0] * x[1]])

    at = np.array([3.0, 5.0])
    assert slope_of(residuals, at, residuals(at), np.array([0.5, -0.25])) == pytest.approx(
        np.array([[6.5, 0.0], [5.0, 3.0]])
    )


def test_errors_count_by_their_size() -> None:
    errors = np.array([-4.0, 2.0, 0.5, 0.0])
    assert (by_size(errors, 1.0) * errors**2).tolist() == [4.0, 2.0, 0.25, 0.0]
