"""Numbers as people read them."""

from __future__ import annotations

import pytest

from autoshard.units import format_bytes, format_count, format_days, format_seconds, slower_text, slower_than

BYTES = {
    0: "0 B",
    999: "999 B",
    999.4: "999 B",
    999.6: "1.00 KB",
    1_000: "1.00 KB",
    999_400: "999 KB",
    999_500: "1.00 MB",
    999_960_000: "1.00 GB",
    -999_960_000: "-1.00 GB",
    15_900_000_000: "15.9 GB",
    999_499_999_999: "999 GB",
    999_999_999_999: "1.00 TB",
    4_321e12: "4,321 TB",
}
SECONDS = {
    0: "0 s",
    4e-9: "0 s",
    5e-9: "0.01 us",
    9.996e-6: "10.0 us",
    9.994e-4: "999 us",
    9.996e-4: "1.00 ms",
    -9.996e-4: "-1.00 ms",
    0.0021: "2.10 ms",
    0.9994: "999 ms",
    0.9996: "1.00 s",
    99.94: "99.9 s",
    99.96: "100 s",
    1_234.4: "1,234 s",
    1.234e300: "1.23e+300 s",
}


@pytest.mark.parametrize(("count", "text"), BYTES.items())
def test_bytes(count: float, text: str) -> None:
    """Less than 1,000 of a unit: what three digits make 1,000 is 1.00 of the next."""
    assert format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), SECONDS.items())
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_ratios_of_step_times() -> None:
    ratios = (1.05, 0.9, 1.0004, 0.9996, 1.0006)
    assert [slower_text(one) for one in ratios] == [
        *("5.0 % slower", "10.0 % faster", "as fast", "as fast", "0.1 % slower"),
    ]
    assert [slower_than(one) for one in ratios[1:3]] == ["10.0 % faster than", "as fast as"]


def test_days() -> None:
    days = (5_000, 59.96, 1, 0.9999, 1.5, 0.5, 1 / 24, 1 / 48, 4.26e-7)
    assert [format_days(one) for one in days] == [
        *("5,000 days", "60 days", "1 day", "1 day", "1.5 days"),
        *("12 hours", "1 hour", "1,800 s", "36.8 ms"),
    ]


def test_counts() -> None:
    assert [format_count(count) for count in (7, 999, 999_499, 999_999, 999_999_999, 70_553_706_496)] == [
        "7",
        "999",
        "999 K",
        "1.00 M",
        "1.00 B",
        "70.6 B",
    ]
