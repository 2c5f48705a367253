"""Reports and the page of `autoshard serve` in a real browser: they load, draw, answer to mouse and keys, and can be
read by everybody. Needs Chromium; conftest.py says in one line where there is none.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

import autoshard
from autoshard.reports.comparison import comparison_report
from autoshard.reports.pipeline import predicted_rows
from docs import draw
from tests.unit.browsers import CHROMIUM
from tests.unit.test_units import BYTES, SECONDS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
WIDTHS = (360, 1024, 1920)
COLORS = ("light", "dark")
CONFIG = Path(__file__).parents[2] / "models/llama/configs/llama3-8b.json"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(autouse=True)
def _pages_end_with_their_test(browser: Any) -> Iterator[None]:
    """Pages that stay open go on drawing."""
    yield
    for context in browser.contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report with everything in it."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    autoshard.report(autoshard.plan("llama3-8b", nodes=4, tp=8, pp=4), file)
    return file.as_uri()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from serving("autoshard", "serve", "--port", "0")


@pytest.fixture
def slow_server() -> Iterator[str]:
    yield from serving("tests.unit.slow_server")


def serving(*module: str) -> Iterator[str]:
    """The address at which the server of a module listens until the test has ended."""
    command = [sys.executable, "-m", *module]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0]
        process.terminate()


def opened(browser: Any, address: str, width: int = 1024) -> Any:
    """A page with lists of what it complained about and asked for, as `complaints` and `asked`."""
    page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
    page.complaints, page.asked = [], []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(address)
    return page


def drawn(page: Any, name: str) -> Any:
    """The canvas of this name, once it is drawn."""
    canvas = page.locator(f"canvas[data-picture={name}]")
    canvas.scroll_into_view_if_needed()
    canvas.and_(page.locator("[data-drawn]")).wait_for(timeout=30_000)
    return canvas


def told(page: Any, name: str) -> str:
    """What is said of the mark that is pointed at."""
    return str(page.locator(f"figure:has(canvas[data-picture={name}]) .told").inner_text())


OVERLAPS = """() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), boxes = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    const hidden = "script, style, option, details:not([open]) > :not(summary)";
    if (!node.textContent.trim() || parent.closest(hidden)) continue;
    const scroll = parent.closest(".scroll"), frame = scroll && scroll.getBoundingClientRect();
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 2 || frame && (box.bottom > frame.bottom || box.right > frame.right)) continue;
      boxes.push([box, node.textContent.trim().slice(0, 40)]);
    }
  }
  boxes.sort((a, b) => a[0].top - b[0].top);
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, b] = [boxes[i][0], boxes[j][0]];
    if (b.top >= a.bottom - 3) break;
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - b.top > 4)
      found.push(`${boxes[i][1]} | ${boxes[j][1]}`);
  }
  return found;
}"""


def is_readable(page: Any, pictures: Sequence[str] = ()) -> None:
    """Asserts that pages that are already open can be read at each width, and that axe has nothing against either
    colours: these change no width, and widths no colour."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        for name in pictures:
            drawn(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERLAPS) == []
    for colors in COLORS:
        page.emulate_media(color_scheme=colors)
        assert violations(page) == []


def test_a_report_loads_alone_and_is_readable(browser: Any, report: str) -> None:
    page = opened(browser, report, 360)
    is_readable(page, ("machine", "timeline", "candidates"))
    assert page.complaints == []
    assert page.asked == [report]


def test_a_report_is_printed_with_its_pictures(browser: Any, report: str) -> None:
    """Also those that were never scrolled to: paper does not wait for the next frame. Bars keep their colours, and
    nothing is wider than the page."""
    page = opened(browser, report, 760)
    page.locator("footer").wait_for()
    drawn_at_once = """() => {
      dispatchEvent(new Event("beforeprint"));
      return [...document.querySelectorAll("canvas")].map((one) => Boolean(one.dataset.drawn));
    }"""
    assert page.evaluate(drawn_at_once) == [True] * 3
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.bar')).printColorAdjust") == "exact"
    tables = page.locator(".scroll:visible").evaluate_all("all => all.map(one => one.scrollWidth - one.clientWidth)")
    assert max(tables) <= 0 and len(tables) > 5


def test_a_rank_of_two_digits_stays_on_its_line(browser: Any, report: str) -> None:
    page = opened(browser, report)
    cells = page.locator("tbody th", has_text="pipeline rank 0").element_handles()
    assert len(cells) == 2
    for width, cell in product(WIDTHS, cells):
        page.set_viewport_size({"width": width, "height": 800})
        cell.evaluate("cell => { cell.textContent = 'pipeline rank 0' }")
        before = cell.bounding_box()["height"]
        cell.evaluate("cell => { cell.textContent = 'pipeline rank 15' }")
        assert cell.bounding_box()["height"] == before


def test_a_comparison_is_readable(browser: Any, tmp_path: Path) -> None:
    one, other = (autoshard.plan("llama3-8b", nodes=1, tp=tp) for tp in (8, 32))
    file = tmp_path / "compare.html"
    file.write_text(comparison_report(one, other), encoding="utf-8")
    is_readable(opened(browser, file.as_uri()), ("timeline_0", "timeline_1"))


def violations(page: Any) -> list[str]:
    """What axe objects to, contrast among it."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]


def test_pointing_and_keys_tell_what_is_there(browser: Any, report: str) -> None:
    page = opened(browser, report)
    canvas = drawn(page, "machine")
    canvas.hover(position={"x": 20, "y": 32})
    assert told(page, "machine").startswith(
        "Rank 0: node 0, chip 0, device 0; pp 0 of 4, dp 0 of 4, tp 0 of 8. Groups: "
    )
    assert "tp with 0, 1, 2, 3, 4, 5, 6, 7" in told(page, "machine")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert told(page, "machine").startswith("Rank 1: ")
    page.keyboard.press("Escape")
    assert told(page, "machine") == ""


def test_the_picture_of_a_folded_mesh_has_the_places_of_its_ranks(browser: Any, tmp_path: Path) -> None:
    """pictures.js works out places and groups from the order of axes; here they are the mesh's own."""
    plan = autoshard.plan("llama3-8b", "trn2.48xlarge", nodes=2, lnc=2, tp=32)
    assert plan.mesh.fold is not None
    autoshard.report(plan, tmp_path / "report.html", quick=True)
    page = opened(browser, (tmp_path / "report.html").as_uri())
    drawn(page, "machine").focus()
    page.keyboard.press("ArrowRight")
    for rank in range(plan.mesh.world_size):
        pipeline_rank, index = plan.mesh.coordinates(rank)
        sizes = {axis.name: axis.size for axis in plan.mesh.rank_axes if axis.size > 1}
        places = {"pp": pipeline_rank, **index}
        words = ", ".join(f"{name} {places[name]} of {size}" for name, size in sizes.items())
        said = told(page, "machine")
        assert f"Rank {rank}: node {rank // 64}, " in said
        assert f"; {words}. Groups: " in said
        for name in sizes:
            group = next(sorted(group) for group in plan.mesh.groups([name]) if rank in group)
            shown = group if len(group) <= 8 else [*group[:6], "...", group[-1]]
            assert f"{name} with {', '.join(map(str, shown)).replace(', ..., ', ' ... ')} (" in said
        page.keyboard.press("ArrowRight")


def test_the_timeline_zooms(browser: Any, report: str) -> None:
    page = opened(browser, report)
    canvas = drawn(page, "timeline")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert re.fullmatch(
        r"pipeline rank 0: forward of microbatch 0, chunk 0, .+, from 0 s to .+", told(page, "timeline")
    )
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] / 2, "y": 30})
    before, picture = told(page, "timeline"), canvas.screenshot()
    for _ in range(8):
        page.keyboard.press("+")
    page.wait_for_timeout(200)
    assert canvas.screenshot() != picture
    canvas.hover(position={"x": box["width"] * 0.9, "y": 30})
    assert told(page, "timeline") != before
    page.keyboard.press("0")
    page.mouse.move(0, 0)
    page.wait_for_timeout(200)
    canvas.hover(position={"x": box["width"] / 2, "y": 30})
    page.wait_for_timeout(200)
    assert told(page, "timeline") == before
    assert canvas.screenshot() == picture


def test_the_wheel_scrolls_past_a_timeline_until_it_is_clicked(browser: Any, report: str) -> None:
    page = opened(browser, report)
    canvas = drawn(page, "timeline")
    box, picture = canvas.bounding_box(), canvas.screenshot()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, -200)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") < before
    canvas.scroll_into_view_if_needed()
    canvas.click(position={"x": box["width"] / 2, "y": 60})
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, -200)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == before and canvas.screenshot() != picture


COLUMNS = """(canvas, [places, top, height]) => {
  const scale = canvas.width / canvas.clientWidth, context = canvas.getContext("2d");
  return places.map((left) => {
    const found = {}, pixels = context.getImageData(left * scale, top * scale, 1, height * scale).data;
    for (let i = 0; i < pixels.length; i += 4) {
      const color = `#${[...pixels.slice(i, i + 3)].map((one) => one.toString(16).padStart(2, "0")).join("")}`;
      found[color] = (found[color] || 0) + 4 / pixels.length;
    }
    return found;
  });
}"""


def test_actions_too_narrow_to_stand_side_by_side_are_as_high_as_their_shares(browser: Any, tmp_path: Path) -> None:
    """In the middle of a step of 512 microbatches; the bubble, which is no colour of an action, is what is left."""
    plan = autoshard.plan("llama3-70b", nodes=16, tp=8, pp=16, cp=2, micro_batch=1)
    autoshard.report(plan, tmp_path / "report.html", quick=True)
    page = opened(browser, (tmp_path / "report.html").as_uri(), 1024)
    canvas = drawn(page, "timeline")
    forward, backward = "#2f6fb5", "#d97a1e"
    middle = canvas.bounding_box()["width"] / 2
    for rank, (_, spans) in enumerate(predicted_rows(plan)):
        at_s = plan.step_time_s * 0.4, plan.step_time_s * 0.6
        inside = [span for span in spans if at_s[0] < span.start_s and span.end_s < at_s[1]]
        long_s = inside[-1].end_s - inside[0].start_s
        shares = [
            sum(span.end_s - span.start_s for span in inside if span.what == what) / long_s
            for what in ("forward", "backward")
        ]
        columns = canvas.evaluate(COLUMNS, [[middle + x for x in range(-100, 101, 4)], 22 + 20 * rank, 18])
        for color, share in zip((forward, backward), shares, strict=True):
            drawn_share = sum(column.get(color, 0.0) for column in columns) / len(columns)
            assert drawn_share == pytest.approx(share, abs=0.07), (rank, color)


def test_pictures_have_numbers_as_the_text_has_them(browser: Any, report: str) -> None:
    page = opened(browser, report)
    for function, numbers in (("seconds", SECONDS), ("bytes", BYTES)):
        for value, text in numbers.items():
            assert page.evaluate(f"autoshard.{function}({value})") == text


def test_candidates_are_filtered(browser: Any, report: str) -> None:
    page = opened(browser, report)
    canvas = drawn(page, "candidates")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert told(page, "candidates").startswith("The plan: tp=8 pp=4")
    assert re.search(r" GB, fits with [\d.]+ % probability$", told(page, "candidates"))
    figure = page.locator("figure:has(canvas[data-picture=candidates])")
    figure.locator("select[data-choice=recompute]").select_option("full")
    canvas.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "recompute=full" in told(page, "candidates")
    assert re.search(r" GB, fits with (more than )?[\d.]+ % probability", told(page, "candidates"))


STAIRS = """() => {
  const own = CanvasRenderingContext2D.prototype, {beginPath, lineTo, stroke} = own;
  let path = [];
  window.stairs = [];
  own.beginPath = function () { path = []; beginPath.call(this); };
  own.lineTo = function (x, y) { path.push(y); lineTo.call(this, x, y); };
  own.stroke = function () { if (path.length > 4) window.stairs.push(path); stroke.call(this); };
}"""
"""Keeps the heights of each line of several pieces that is drawn from then on."""


def test_the_front_goes_down_only(browser: Any, tmp_path: Path) -> None:
    """Layouts of known times that lower bounds alone beat are on it too: they have a line of their own, or it would go
    up again."""
    plan = autoshard.plan("llama3-8b", nodes=1)
    page = browser.new_context(viewport={"width": 1024, "height": 800}).new_page()
    autoshard.report(plan, tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.evaluate(STAIRS)
    figure = page.locator("figure:has(canvas[data-picture=candidates])")
    drawn(page, "candidates")
    figure.locator("select[data-choice=color]").select_option("pp")
    page.wait_for_function("window.stairs.length >= 2")
    for heights in page.evaluate("window.stairs"):
        assert heights == sorted(heights)  # y counts from the top


def test_tables_are_copied_with_tabs(browser: Any, report: str) -> None:
    page = opened(browser, report)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button[aria-label='Copy: Terms of a step']").click()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.splitlines()[0] == "term\ttime\tshare\t"
    assert re.fullmatch(r"matrix products and vector operators\t~[\d.]+ m?s\t[\d.]+%\t", copied.splitlines()[1])


def test_a_notebook_shows_plans(browser: Any, tmp_path: Path) -> None:
    """The page of docs/pictures/notebook.png: nothing is loaded, no text lies over other text."""
    (tmp_path / "notebook.html").write_text(draw.page(), encoding="utf-8")
    page = opened(browser, (tmp_path / "notebook.html").as_uri(), draw.WIDTH)
    assert page.evaluate(OVERLAPS) == [] and page.complaints == [] and len(page.asked) == 1
    assert page.locator("table").count() >= 3 and "tp=32" in page.locator("body").inner_text()


@pytest.mark.parametrize("name", draw.DRAWN)
def test_the_pictures_of_the_readme_are_drawn_anew(browser: Any, name: str, tmp_path: Path) -> None:
    from PIL import Image

    draw.DRAWN[name](browser, tmp_path / f"{name}.png", "words")
    assert draw.shown(tmp_path / f"{name}.png") == "words"
    with Image.open(tmp_path / f"{name}.png") as found, Image.open(draw.PICTURES / f"{name}.png") as kept:
        assert found.width == kept.width
        assert abs(found.height - kept.height) <= 4  # another Chromium's lines may be a pixel taller
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.png"]


def test_the_served_page_plans_and_its_address_is_its_state(browser: Any, server: str) -> None:
    from playwright.sync_api import expect

    page = opened(browser, f"{server}?model=llama3-8b&nodes=1")
    status = page.locator("#status")
    expect(status).to_contain_text("answered in", timeout=60_000)
    drawn(page, "timeline")
    assert page.title().startswith("llama3-8b on 1 x trn1.32xlarge: tp=")
    page.locator("summary", has_text="Pins: fix a choice").first.click()
    page.locator("input[name=tp]").fill("32")
    expect(status).to_contain_text(": tp=32 ", timeout=60_000)
    assert parse_qs(urlparse(page.url).query) == {"model": ["llama3-8b"], "nodes": ["1"], "tp": ["32"]}
    other = opened(browser, page.url)
    expect(other.locator("#status")).to_contain_text(": tp=32 ", timeout=60_000)
    assert other.locator("input[name=tp]").input_value() == "32"
    assert other.locator("input[name=tp]").is_visible() and not other.locator("input[name=sdk]").is_visible()
    page.locator("a[data-why='pp=2']").click()
    page.get_by_role("heading", name="Why not pp=2?").wait_for(timeout=60_000)
    page.locator("#two").click()
    page.get_by_role("heading", name="Two plans").wait_for(timeout=60_000)
    assert "b.tp=32" in page.url
    assert page.complaints == [] == other.complaints
    assert {urlparse(address).netloc for address in page.asked} == {urlparse(server).netloc}
    assert page.locator("#downloads").is_visible()
    page.locator("input[name=tp]").fill("3")
    expect(status).to_contain_text("tp=3 is 3 devices, which must divide", timeout=60_000)
    assert not page.locator("#downloads").is_visible()
    page.locator("#two").click()
    expect(status).to_contain_text("tp=3 is 3 devices, which must divide", timeout=60_000)
    assert page.locator("[aria-invalid]").get_attribute("name") == "tp"
    page.locator("input[name=tp]").fill("2")
    expect(status).to_contain_text(": tp=2 ", timeout=60_000)
    assert page.locator("[aria-invalid]").count() == 0


def test_what_cannot_be_asked_for_is_refused_until_a_field_is_changed(browser: Any, server: str) -> None:
    from playwright.sync_api import expect

    page = opened(browser, f"{server}?model=llama3-8b&nodes=1&tpp=8")
    status = page.locator("#status")
    expect(status).to_contain_text("'tpp' cannot be asked for here; did you mean tp", timeout=60_000)
    page.locator("input[name=nodes]").fill("2")
    expect(status).to_contain_text("answered in", timeout=60_000)
    assert parse_qs(urlparse(page.url).query) == {"model": ["llama3-8b"], "nodes": ["2"]}


def test_the_served_page_shows_the_best_so_far_until_the_answer_comes(browser: Any, slow_server: str) -> None:
    from playwright.sync_api import expect

    page = opened(browser, f"{slow_server}?model=llama3-8b")
    status, answer, downloads = (page.locator(f"#{name}") for name in ("status", "answer", "downloads"))
    expect(status).to_contain_text("best so far, nothing is more than 1.5 times as fast, after ", timeout=60_000)
    expect(status).to_contain_text(": tp=1; still looking ...")
    assert answer.inner_text() == "Best so far" and not downloads.is_visible()
    expect(status).to_contain_text(re.compile(r"^answered in [0-9.]+ s: tp=2$"), timeout=60_000)
    assert answer.inner_text() == "The answer" and downloads.is_visible()
    assert page.complaints == []


def test_the_served_page_is_readable(browser: Any, server: str) -> None:
    from playwright.sync_api import expect

    page = opened(browser, f"{server}?model=llama3-8b&nodes=1")
    expect(page.locator("#status")).to_contain_text("answered in", timeout=60_000)
    is_readable(page)


def test_an_uploaded_plan_and_config_are_shown(browser: Any, server: str, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    page = opened(browser, f"{server}?model=llama3-8b&nodes=1")
    expect(page.locator("#status")).to_contain_text("answered in", timeout=60_000)
    file = autoshard.plan("llama3-8b", nodes=2, tp=32).save(tmp_path / "plan.json")
    page.locator("#upload").set_input_files(file)
    page.get_by_role("heading", name="llama3-8b on 2 x trn1.32xlarge").wait_for(timeout=60_000)
    assert re.search(r"\?plan=upload%3A[0-9a-f]{32}$", page.url)
    page.locator("#upload").set_input_files(CONFIG)
    page.get_by_role("heading", name="uploaded on 1 x trn1.32xlarge").wait_for(timeout=60_000)
    assert re.search(r"model=upload%3A[0-9a-f]{32}", page.url)
    assert page.complaints == []
    page.locator("#upload").set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"{"})
    expect(page.locator("#status")).to_contain_text("the upload, line 1, column 2: the JSON ends too early")
