"""The whole file: style, sections, the numbers of the pictures and the script that draws them. It asks for nothing from
anywhere, and its policy forbids that it could.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from autoshard.reports.html import Html, element
from autoshard.reports.sections import body
from autoshard.reports.view import View

FOLDER = Path(__file__).parent
MOST_BYTES = 2_000_000
"""Of a report; what grows with a plan is thinned long before."""


@lru_cache(maxsize=2)
def asset(name: str) -> Html:
    """The text of page.css or pictures.js."""
    return Html((FOLDER / name).read_text(encoding="utf-8"))


def report_page(view: View) -> str:
    """The report on a plan as an HTML file."""
    html, data = body(view)
    title = f"{view.description.model} on {view.description.cluster}: {view.description.layout}"
    return document(title, html, data, view.description.made_by)


def document(title: str, html: Html, data: Mapping[str, Any], made_by: str) -> str:
    """A file that needs nothing else. html: its sections. data: what pictures.js draws in them."""
    script = asset("pictures.js")
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest(script)}'; base-uri 'none'"
    head = (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", asset("page.css")),
    )
    page = element(
        "body",
        element("header", contents(html), class_="top"),
        element("main", html),
        element("footer", f"Made by {made_by}. Predictions are marked ~."),
        element("script", Html(json_in_html(data)), type="application/json", id="data"),
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', element('head', *head), page, lang='en')}\n"


def digest(script: str) -> str:
    """The SHA-256 of a script as a content security policy writes it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def contents(html: str) -> Html:
    """Links to the sections; of a comparison to its sides, not to the sections of each, which have numbers."""
    found = re.findall(r'<h2 id="([^"_]*)">([^<]*)</h2>', html)
    links = [element("li", element("a", Html(name), href=f"#{anchor}")) for anchor, name in found]
    return element("nav", element("ul", links), aria_label="Sections")


def json_in_html(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser takes for the end of its element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
