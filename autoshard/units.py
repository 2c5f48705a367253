"""Units are converted here and nowhere else: SI inside, people's units at the edges."""

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
US, MS = 1e-6, 1e-3
TFLOPS = 1e12
MOST_WRITTEN_OUT = 1e15
"""Numbers from here on are written as 1.00e+300: a wrong one may have hundreds of digits."""
BILLION, HOUR_S, DAY_S = 1e9, 3_600.0, 86_400.0


def format_bytes(count: float) -> str:
    """Decimal, three digits: 15_900_000_000 -> '15.9 GB'."""
    for unit, size in (("TB", TB), ("GB", GB), ("MB", MB), ("KB", KB)):
        if _reaches(count, size):
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Three digits: 134.9 -> '135 s', 0.0021 -> '2.10 ms'; what rounds to nothing is '0 s'."""
    if abs(seconds) < 0.005 * US:
        return "0 s"
    if _reaches(seconds, 1):
        return f"{_three_digits(seconds)} s"
    if _reaches(seconds, MS):
        return f"{_three_digits(seconds / MS)} ms"
    return f"{_three_digits(seconds / US)} us"


def format_days(days: float) -> str:
    """A long time: 59.96 -> '60 days', 1 -> '1 day', 0.5 -> '12 hours', 0.0001 -> '8.64 s'."""
    seconds = days * DAY_S
    for unit, size in (("day", DAY_S), ("hour", HOUR_S)):
        if _reaches(seconds, size):
            number = format_number(seconds / size)
            return f"{number} {unit}{'' if number == '1' else 's'}"
    return format_seconds(seconds)


def format_count(count: float) -> str:
    """Three digits: 70_553_706_496 -> '70.6 B', as parameters and tokens are counted."""
    for unit, size in (("T", TB), ("B", GB), ("M", MB), ("K", KB)):
        if _reaches(count, size):
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f}" if count % 1 == 0 else _three_digits(count)


def counted(count: int, noun: str) -> str:
    """A number of things: 1 -> '1 node', 1024 -> '1,024 nodes', 4 -> '4 processes'."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def format_number(value: float, digits: int = 3) -> str:
    """At least so many digits, and no exponent where a number is large: 1534.2 -> '1,534', 12.345 -> '12.3'."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def percent(probability: float) -> str:
    """A probability as text. It is never '100 %' or '0.0 %', because no prediction is that sure."""
    if probability < 0.001:
        return "less than 0.1 %"
    return "more than 99.9 %" if probability > 0.999 else f"{probability * 100:.1f} %"


def slower_text(ratio: float) -> str:
    """A ratio of step times in words: 1.05 -> '5.0 % slower', 0.9 -> '10.0 % faster'; 'as fast' where a digit shows no
    difference."""
    share = f"{abs(ratio - 1) * 100:.1f}"
    return "as fast" if share == "0.0" else f"{share} % {'slower' if ratio >= 1 else 'faster'}"


def slower_than(ratio: float) -> str:
    """The same before what it is compared with: '5.0 % slower than', 'as fast as'."""
    words = slower_text(ratio)
    return f"{words} {'as' if words == 'as fast' else 'than'}"


def _reaches(value: float, unit: float) -> bool:
    """Whether a value is told in this unit. A little less is too, where three digits of the unit below are 1,000."""
    return abs(value) >= 0.9995 * unit


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= MOST_WRITTEN_OUT:
        return f"{value:.2e}"
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
