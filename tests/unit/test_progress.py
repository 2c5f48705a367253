"""The bar and the lines, on a clock that the test sets."""

import io
import re

import pytest

from autoshard.runtime.progress import ProgressDisplay, format_duration, wants_plain_text


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_where_there_is_no_terminal() -> None:
    file, clock = io.StringIO(), Clock()
    with ProgressDisplay(20, tokens_per_step=512, file=file, clock=clock) as display:
        for step in range(1, 21):
            # the first step takes 30 s more, which nothing after it pays for
            clock.now_s += 30.5 if step == 1 else 0.5
            display.update(step, loss=5.0 - step / 10)
            if step == 4:
                display.note("a [note]")
    lines = file.getvalue().splitlines()
    # 512 tokens in 0.5 s; after 2 of 20 steps 18 x 0.5 = 9 s are left
    assert lines[:4] == [
        "training 1/20  loss 4.9000",
        "training 2/20  loss 4.8000  1.02 K tokens/s  0:09 left",
        "training 4/20  loss 4.6000  1.02 K tokens/s  0:08 left",
        "a [note]",
    ]
    assert lines[-1] == "training 20/20  loss 3.0000  1.02 K tokens/s  0:00 left"
    assert len(lines) == 12
    assert re.sub(r"[ -~\n]", "", file.getvalue()) == ""
    assert display.tokens_per_s == 1024


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file, clock = Terminal(), Clock()
    with ProgressDisplay(8, tokens_per_step=512, description="rehearsal", file=file, clock=clock) as display:
        for step in range(1, 5):
            clock.now_s += 0.5
            display.update(step, loss=float("nan") if step == 3 else 4.0)
        display.note("a [note]")
    display.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "rehearsal" in shown
    assert "4/8 loss 4.0000  1.02 K tokens/s  0:02 left" in shown
    assert "a [note]\n" in shown
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1  # the cursor is back


def test_who_gets_plain_text() -> None:
    assert wants_plain_text(io.StringIO(), {})
    assert not wants_plain_text(Terminal(), {"TERM": "xterm", "NO_COLOR": ""})
    assert wants_plain_text(Terminal(), {"NO_COLOR": "1"})
    assert wants_plain_text(Terminal(), {"TERM": "dumb"})


def test_durations() -> None:
    assert [format_duration(s) for s in (0, 59.6, 65, 3725, 90_000)] == ["0:00", "1:00", "1:05", "1:02:05", "25:00:00"]
