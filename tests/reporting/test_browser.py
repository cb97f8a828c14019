# SPDX-License-Identifier: Apache-2.0
"""A report in a real browser, opened from the disk: no request, no complaint, and everything that can be clicked works.

Needs Playwright for Python (extra `browser`) and a Chromium, which Linux distributions have; QDQTOOL_BROWSER names
another one. With QDQTOOL_AXE naming axe-core's axe.min.js the pages are also judged by it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qdqtool.match.plan import PlanOptions
from qdqtool.verbs.insert import insert
from qdqtool.verbs.insert_options import InsertOptions
from qdqtool.workflows.report import report
from qdqtool.workflows.report_options import ReportOptions

pytestmark = pytest.mark.slow  # a browser takes seconds to start
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


@dataclass
class PageLog:
    """A page, and what it asked for and complained of."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install qdqtool[browser]")
    program = os.environ.get("QDQTOOL_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium, or name one in QDQTOOL_BROWSER")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the bundled detector with data."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("PIL")
    models, folder = Path(__file__).resolve().parents[2] / "models", tmp_path_factory.mktemp("report")
    how = InsertOptions(PlanOptions(float_heads="regression"))
    insert(models / "digits_detector.onnx", output=folder / "q.onnx", options=how)
    options = ReportOptions(parser=False, data=str(models / "digits_calib.npz"))
    report(folder / "q.onnx", folder / "r.html", options)
    return folder / "r.html"


def opened(browser: Any, file: Path, **how: Any) -> PageLog:
    context = browser.new_context(viewport={"width": 1360, "height": 1000}, **how)
    heard = PageLog(context.new_page())
    heard.page.on("request", lambda one: heard.requests.append(one.url))
    heard.page.on("console", lambda one: heard.complaints.append(one.text))
    heard.page.on("pageerror", lambda one: heard.complaints.append(str(one)))
    heard.page.goto(file.as_uri())
    return heard


@pytest.fixture
def heard(browser: Any, written: Path) -> Iterator[PageLog]:
    found = opened(browser, written)
    yield found
    pictures = [one for one in found.requests if one.startswith("data:image/")]
    assert [one for one in found.requests if one not in pictures] == [written.as_uri()], "nothing but the file itself"
    assert found.complaints == []
    found.page.context.close()


def shown(page: Any, column: int, table: str = "tensors") -> list[str]:
    """The texts of a column in the rows that are seen."""
    rows = page.locator(f"#{table} tbody tr:not([hidden])")
    return [row.locator("th, td").nth(column).inner_text() for row in rows.all()]


def test_a_head_sorts_both_ways_and_says_so(heard: PageLog) -> None:
    page = heard.page
    head = page.locator("#tensors thead th", has_text="scale").first
    for direction, reverse in (("ascending", False), ("descending", True)):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == direction
        scales = [float(one) for one in shown(page, 3) if one != "–"]
        assert len(scales) > 3 and scales == sorted(scales, reverse=reverse)
    page.locator("#tensors thead th", has_text="made by").locator("button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert shown(page, 1) == sorted(shown(page, 1), key=str.lower)


def test_filters_leave_the_rows_that_fit_and_count_them(heard: PageLog) -> None:
    page = heard.page
    paired, count = len(shown(page, 0)), page.locator("[data-counts=tensors]")
    assert set(shown(page, 2)) == {"pair"}
    page.locator("[data-kinds=tensors]").select_option("")
    every = len(shown(page, 0))
    assert every > paired and count.inner_text() == f"{every} of {every}"
    page.get_by_label("Filter tensors").fill("relu")
    fitting = shown(page, 0)
    assert 0 < len(fitting) < every
    assert all("relu" in row.inner_text().lower() for row in page.locator("#tensors tbody tr:not([hidden])").all())
    page.get_by_label("Filter tensors").fill("no such tensor")
    assert count.inner_text() == f"0 of {every}"


def test_a_click_on_a_box_tells_of_it_and_leads_to_its_tensor(heard: PageLog) -> None:
    page = heard.page
    box = page.locator("#graph .b.int8").first
    box.click()
    assert "on" in (box.get_attribute("class") or "").split()
    detail = page.locator("#detail")
    assert "INT8" in detail.inner_text() and "Operators" in detail.inner_text()
    detail.locator("button").first.click()
    assert page.locator("#tensors tr.on").count() == 1


def test_boxes_in_float_are_listed_before_one_is_chosen(heard: PageLog) -> None:
    page = heard.page
    kept = page.locator("#graph .b.kept").count()
    assert kept > 0 and f"({kept})" in page.locator("#detail").inner_text()
    button = page.locator("#detail [data-box]").first
    name = button.inner_text()
    button.click()
    assert page.locator("#graph .b.kept.on").count() == 1 and name in page.locator("#detail").inner_text()


def test_find_marks_boxes_and_goes_from_one_to_the_next(heard: PageLog) -> None:
    page = heard.page
    page.locator("#search").fill("conv int8")
    hits = page.locator("#graph .b.hit").count()
    assert hits > 1 and page.locator("#found").inner_text().startswith(f"{hits} of ")
    titles = []
    for _ in range(2):
        page.locator("#search").press("Enter")
        titles.append(page.locator("#detail h3").first.inner_text())
        assert page.locator("#graph .b.hit.on").count() == 1
    assert titles[0] != titles[1]
    assert "pads 1, 1, 1, 1" in page.locator("#detail").inner_text()
    page.locator("#search").fill("no such operator")
    assert page.locator("#graph .b.hit").count() == 0 and page.locator("#found").inner_text().startswith("0 of ")


def test_boxes_are_colored_by_their_signal_to_noise(heard: PageLog) -> None:
    page = heard.page
    page.get_by_label("Color by SQNR").check()
    colored = [page.locator(f"#graph .b.s{step}").count() for step in range(5)]
    assert sum(colored) > 3 and page.locator("#scale").is_visible()
    page.get_by_label("Color by SQNR").uncheck()
    assert page.locator("#graph .b.s3").count() == 0


def test_a_click_on_a_tensor_shows_its_box(heard: PageLog) -> None:
    page = heard.page
    button = page.locator("#tensors tbody tr:not([hidden]) th button").nth(2)
    name = button.inner_text()
    button.click()
    assert page.locator("#graph .b.on").count() == 1
    assert name in page.locator("#detail").inner_text()
    box, view = page.locator("#graph .b.on").bounding_box(), page.locator("#view").bounding_box()
    assert view["x"] <= box["x"] <= view["x"] + view["width"], "it was brought into view"


def scale_of(page: Any) -> float:
    return float(page.evaluate("document.querySelector('#all').transform.baseVal.consolidate().matrix.a"))


def place_of(page: Any) -> tuple[float, float]:
    x, y = page.evaluate("(m => [m.e, m.f])(document.querySelector('#all').transform.baseVal.consolidate().matrix)")
    return float(x), float(y)


def test_the_graph_zooms_and_pans_by_buttons_mouse_and_keys(heard: PageLog) -> None:
    page = heard.page
    page.get_by_role("button", name="Zoom in").click()
    assert scale_of(page) == pytest.approx(1.4)
    page.get_by_role("button", name="Whole graph").click()
    assert scale_of(page) == 1
    view = page.locator("#view")
    view.scroll_into_view_if_needed()
    box = view.bounding_box()
    x, y = box["x"] + box["width"] - 40, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 50, y - 30, steps=4)
    page.mouse.up()
    moved = place_of(page)
    assert moved[0] < 0 and moved[1] < 0
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function("document.querySelector('#all').transform.baseVal.consolidate().matrix.a > 1.5")
    view.focus()
    page.keyboard.press("0")
    page.keyboard.press("+")
    assert scale_of(page) == pytest.approx(1.3)
    before = place_of(page)
    page.keyboard.press("ArrowRight")
    assert place_of(page)[0] < before[0]


def test_the_keyboard_goes_from_box_to_box(heard: PageLog) -> None:
    page = heard.page
    page.locator("#view").focus()
    titles = []
    for _ in range(3):
        page.keyboard.press("n")
        titles.append(page.locator("#detail h3").first.inner_text())
    assert len(set(titles)) == 3
    page.keyboard.press("p")
    assert page.locator("#detail h3").first.inner_text() == titles[1]


def test_everything_that_acts_is_reached_by_tab(heard: PageLog) -> None:
    page, reached = heard.page, set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"zoom-in", "zoom-fit", "next", "view", "detail", "A", "INPUT", "SELECT"} <= reached


def test_a_narrow_window_does_not_scroll_sideways(browser: Any, written: Path) -> None:
    page = opened(browser, written).page
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.context.close()


def test_it_prints(browser: Any, written: Path, tmp_path: Path) -> None:
    page = opened(browser, written).page
    data = page.pdf(path=str(tmp_path / "r.pdf"))
    assert data.startswith(b"%PDF") and len(data) > 10_000
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Any, written: Path, scheme: str) -> None:
    script = os.environ.get("QDQTOOL_AXE")
    if not script:
        pytest.skip("axe-core is not named: npm install axe-core, QDQTOOL_AXE=.../axe.min.js")
    page = opened(browser, written, color_scheme=scheme, bypass_csp=True).page  # the policy refuses scripts of others
    page.locator("#graph .b").nth(3).click()
    page.add_script_tag(path=script)
    found = page.evaluate("rules => axe.run(document, rules)", _RULES)
    said = [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in found["violations"]]
    assert said == []
    assert len(found["passes"]) > 20
    page.context.close()
