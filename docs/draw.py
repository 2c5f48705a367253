"""Draws the pictures of the README by Chromium: a notebook, a report, the page of `autoshard serve`.
`python -m docs.draw` makes them anew.

The notebook is a page with the HTML that plans and results give to one, between cells that look like a notebook's. Each
picture says in its file what it shows, so that a test can tell when it shows an old plan.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import autoshard
from autoshard.units import format_bytes, format_seconds

PICTURES = Path(__file__).parent / "pictures"
SHOWS = "shows"
"""The text of a picture's file that says what it shows."""
COLORS = 128
"""Of a picture's palette."""
CELLS = (
    'import autoshard\n\nresult = autoshard.search("llama3-8b", nodes=4)\nresult',
    'autoshard.compare(result.plan, autoshard.plan("llama3-8b", nodes=4, tp=32))',
)
MODEL, NODES = "llama3-70b", 16
"""Of the plan in the report and on the page."""
WIDTH, TALLEST = 980, 780
"""Of a picture, pixels."""
STYLE = """
body { margin: 16px; font: 14px/1.4 system-ui, sans-serif; color: #111; background: #fff }
.cell { display: grid; grid-template-columns: 60px 1fr; gap: 8px; margin-bottom: 10px }
.cell > b { font: 12px/1.6 monospace; color: #2f5bb7; text-align: right; padding-top: 6px }
pre.code { margin: 0; padding: 6px 10px; background: #f5f5f5; border: 1px solid #ddd; font: 13px/1.5 monospace }
table { border-collapse: collapse; font-size: 13px }
th, td { padding: 3px 9px; text-align: right }
tr:nth-child(even) td { background: #f7f7f7 }
th { border-bottom: 1px solid #999 }
th:first-child, td:first-child { text-align: left }
h2, h3 { font-size: 16px; margin: 8px 0 }
"""


def page(cells: tuple[str, ...] = CELLS) -> str:
    """A page with cells and what they show, as HTML. A cell's last line is the value that it shows."""
    names: dict[str, Any] = {}
    body = []
    for number, code in enumerate(cells, 1):
        *before, last = ast.parse(code).body
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(before, []), "<cell>", "exec"), names)  # noqa: S102  the cells above
        shown = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307
        body.append(f'<div class="cell"><b>[{number}]:</b><pre class="code">{escape(code)}</pre></div>')
        body.append(f'<div class="cell"><b></b><div>{shown._repr_html_()}</div></div>')
    head = f"<meta charset=utf-8><title>autoshard in a notebook</title><style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>'


def plan() -> autoshard.Plan:
    """The plan in the report and on the page."""
    return autoshard.plan(MODEL, nodes=NODES)


def shows() -> dict[str, str]:
    """Name of each picture -> what it has to show today."""
    found = plan()
    size = format_bytes(found.estimate.fullest.total_bytes)
    words = f"{found.title}: {found.short_layout}; {format_seconds(found.step_time_s)}, {size}"
    text = re.sub(r"<style>.*?</style>|<[^>]*>", " ", page())
    notebook = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]
    return {"notebook": f"text {notebook}", "report": words, "serve": words}


def shown(picture: Path) -> str:
    """What a picture says that it shows."""
    from PIL import Image

    with Image.open(picture) as taken:
        return str(taken.info[SHOWS])


def save(parts: list[bytes], picture: Path, words: str) -> None:
    """Writes screenshots, one below the other, as one picture. words: what it shows."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    taken = [Image.open(BytesIO(part)).convert("RGB") for part in parts]
    whole = Image.new("RGB", (max(one.width for one in taken), sum(one.height for one in taken)), "white")
    down = 0
    for one in taken:
        whole.paste(one, (0, down))
        down += one.height
    told = PngInfo()
    told.add_text(SHOWS, words)
    whole.quantize(COLORS).save(picture, optimize=True, pnginfo=told)


def draw_notebook(browser: Any, picture: Path, words: str) -> None:
    """browser: of playwright. words: what the picture shows."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": 400})
    tab.set_content(page())
    height = min(TALLEST, tab.evaluate("document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height}
    save([tab.screenshot(clip=clip, full_page=True)], picture, words)
    tab.close()


def draw_report(browser: Any, picture: Path, words: str) -> None:
    """The mesh with the groups of one rank, the beginning of the pipeline, the memory of each stage."""
    file = picture.with_suffix(".html")
    autoshard.report(plan(), file, quick=True)
    tab = browser.new_page(viewport={"width": 900, "height": 900})
    tab.goto(file.as_uri())
    machine, timeline = (tab.locator(f"figure:has(canvas[data-picture={name}])") for name in ("machine", "timeline"))
    for figure in (timeline, machine):
        canvas = figure.locator("canvas")
        canvas.scroll_into_view_if_needed()
        canvas.and_(tab.locator("[data-drawn]")).wait_for()
        canvas.click(position={"x": 60, "y": 60})  # the left end of the clock, a device of the first node
        if figure is timeline:
            tab.mouse.wheel(0, -1100)
            canvas.hover(position={"x": 320, "y": 90})
        else:
            for key in [*["ArrowDown"] * 2, *["ArrowRight"] * 9]:
                tab.keyboard.press(key)
    tab.wait_for_timeout(500)
    legend = tab.locator("section:has(canvas[data-picture=timeline]) > .legend")
    memory = tab.locator("section:has(.stacks) > .stacks, section:has(.stacks) > .legend")
    boxes = [one.bounding_box() for one in (machine, timeline, legend, *memory.all())]
    scrolled = tab.evaluate("scrollY")
    clips = [{"x": 0, "y": box["y"] + scrolled - 6, "width": 900, "height": box["height"] + 12} for box in boxes if box]
    save([tab.screenshot(clip=clip, full_page=True) for clip in clips], picture, words)
    tab.close()
    file.unlink()


def draw_serve(browser: Any, picture: Path, words: str) -> None:
    """The page at night, as it answers once its server is warm."""
    with serving() as address:
        tab = browser.new_context(viewport={"width": 900, "height": 900}, color_scheme="dark").new_page()
        for model in ("llama3-8b", MODEL):
            tab.goto(f"{address}?model={model}&nodes={NODES}")
            tab.get_by_text("answered in").wait_for(timeout=60_000)
        save([tab.screenshot()], picture, words)
        tab.close()


@contextmanager
def serving() -> Iterator[str]:
    """The address of `autoshard serve`, which ends with the block."""
    command = [sys.executable, "-m", "autoshard", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.terminate()


DRAWN = {"notebook": draw_notebook, "report": draw_report, "serve": draw_serve}


def main() -> None:
    from playwright.sync_api import sync_playwright

    from tests.unit.browsers import CHROMIUM

    words = shows()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, draw in DRAWN.items():
            draw(found, PICTURES / f"{name}.png", words[name])
        found.close()


if __name__ == "__main__":
    main()
