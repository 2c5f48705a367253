"""Draws pictures/notebook.png: what cells of a notebook show, by Chromium. `python -m docs.notebook` makes it anew.

The page has the HTML that plans and results give to a notebook, between cells that look like a notebook's.
"""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path
from typing import Any

CELLS = (
    'import autoshard\n\nresult = autoshard.search("llama3-8b", nodes=4)\nresult',
    'autoshard.compare(result.plan, autoshard.plan("llama3-8b", nodes=4, tp=32))',
)
PICTURE = Path(__file__).parent / "pictures" / "notebook.png"
WIDTH, TALLEST, COLORS = 980, 780, 64
"""Of the picture: pixels, and colours of its palette."""
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


def draw(browser: Any, html: str, picture: Path = PICTURE) -> None:
    """Takes the picture. browser: of playwright."""
    from PIL import Image

    shown = browser.new_page(viewport={"width": WIDTH, "height": 400})
    shown.set_content(html)
    height = min(TALLEST, shown.evaluate("document.documentElement.scrollHeight"))
    shown.screenshot(path=picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": height}, full_page=True)
    shown.close()
    with Image.open(picture) as taken:
        taken.convert("RGB").quantize(COLORS).save(picture, optimize=True)


def main() -> None:
    from playwright.sync_api import sync_playwright

    from tests.unit.browsers import CHROMIUM

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        draw(found, page())
        found.close()


if __name__ == "__main__":
    main()
