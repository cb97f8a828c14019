# SPDX-License-Identifier: Apache-2.0
"""The page: nothing asks a network, nothing of a model is markup, tables and drawings are whole."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from qdqtool.amax.histogram import Histogram
from qdqtool.cache.check import check
from qdqtool.cache.other_export import ConstantFact, find_evidence
from qdqtool.cache.text import Cache
from qdqtool.linting.checks import check_named
from qdqtool.linting.finding import Finding
from qdqtool.reporting import sections
from qdqtool.reporting.differences import DifferingScale, DifferingType, differences_section
from qdqtool.reporting.page import Cell, Column, Section, render_page, table_html
from qdqtool.reporting.svg import HIST_HEIGHT, HIST_WIDTH, curve_svg, escaped, histogram_svg, ranges_svg, share_svg
from qdqtool.reporting.tensor_rows import TensorRow, WeightRow
from qdqtool.reporting.training_curves import curves_section
from qdqtool.scales import Scale

HOSTILE = "</script><img src=http://x onerror=alert(1)>\"'&\u202e"


class Seen(HTMLParser):
    """The elements of a page with their attributes, and what stands in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts.append(data)
        self.words.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(parts: list[Section] | None = None, data: dict[str, Any] | None = None) -> str:
    return render_page("m.onnx", "One sentence.", parts or [Section("a", "A", "<p>x</p>")], data or {"rows": []})


# ---------------------------------------------------------------------------------------------------- the whole


def test_the_policy_allows_the_style_and_the_script_that_are_there_and_nothing_else() -> None:
    text = page()
    policy = next(one["content"] for one in Seen(text).of("meta") if "http-equiv" in one) or ""
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert len(content) == 1
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_no_attribute_is_style_or_a_handler_or_leads_out() -> None:
    for _, attributes in Seen(page()).tags:
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        assert all((attributes.get(name) or "#").startswith("#") for name in ("src", "href"))


def test_sections_have_headings_and_links_to_them() -> None:
    seen = Seen(page([Section("a", "First", ""), Section("b", "Second", "")]))
    assert [one["href"] for one in seen.of("a")] == ["#main", "#a", "#b"]
    assert {one["aria-labelledby"] for one in seen.of("section")} <= {one.get("id") for one in seen.of("h2")}


def test_data_cannot_end_its_element_and_comes_back_whole() -> None:
    text = page(data={"tensors": [HOSTILE]})
    stored = next(one for one in Seen(text).scripts if one.startswith("{"))
    assert "<" not in stored
    assert json.loads(stored) == {"tensors": [HOSTILE]}


def test_same_parts_same_text() -> None:
    assert page() == page()


def test_hostile_names_are_text_everywhere() -> None:
    scale = Scale.of(0.5, origin="qdq", method=HOSTILE)
    row = TensorRow(HOSTILE, HOSTILE, scale, True, HOSTILE)
    weight = WeightRow(HOSTILE, HOSTILE, HOSTILE, np.ones(2, np.float32), HOSTILE)
    cache = Cache.of("8502", {"x": np.float32(0.5), HOSTILE[:5]: np.float32(1)})
    parts = [
        sections.verdict_section([sections.Card(HOSTILE, HOSTILE, HOSTILE)]),
        sections.tensors_section([row], HOSTILE),
        sections.weights_section([weight]),
        sections.findings_section([Finding("Q001", "error", HOSTILE, HOSTILE, HOSTILE)], HOSTILE),
        sections.pictures_section([sections.DrawnImage(b"jpeg", "jpeg", HOSTILE)], HOSTILE),
        sections.cache_section(cache, check(cache, ["x", HOSTILE]), HOSTILE),
        curves_section([{"step": 1, "loss": 2.0}], HOSTILE),
        sections.made_section({HOSTILE: HOSTILE}),
    ]
    seen = Seen(render_page(HOSTILE, HOSTILE, parts, {}))
    assert [one.get("src") for one in seen.of("img")] == ["data:image/jpeg;base64,anBlZw=="]
    assert len(seen.of("script")) == 2
    assert not [one for _, one in seen.tags if "onerror" in one]
    assert "\u202e" not in "".join(seen.words), "marks that turn the direction of writing are escaped"


# ---------------------------------------------------------------------------------------------------- tables


def test_a_table_has_a_caption_heads_that_sort_and_rows_with_heads() -> None:
    columns = [Column("name"), Column("size", True), Column("picture", sortable=False)]
    text = table_html("t", "A table", columns, [[Cell("a"), Cell("2 MB", 2e6), Cell("")]])
    seen = Seen(text)
    assert [one.get("aria-sort") for one in seen.of("th")] == ["none", "none", None, None]
    assert [one.get("scope") for one in seen.of("th")] == ["col", "col", "col", "row"]
    assert seen.of("td")[0] == {"class": "n", "data-v": "2e+06"}
    assert len(seen.of("button")) == 2 and len(seen.of("caption")) == 1
    assert seen.of("tr")[1]["id"] == "t-0"


def counted(values: list[float]) -> Histogram:
    one = Histogram()
    one.add(np.array(values, np.float32))
    return one


def test_the_tensor_table_shows_what_is_known_and_leaves_out_the_rest() -> None:
    bare = TensorRow("a", "Conv", Scale.of(0.5, origin="estimated", method="moments"), True, "Conv b reads INT8")
    text = sections.tensors_section([bare], "").content
    assert "63.5" in text and "estimated moments" in text and "clipped" not in text and "SQNR" not in text
    full = TensorRow("a", "Conv", Scale.of(1 / 127), True, "", counted([0.1, 0.2, 2.0, -3.0]), 21.5)
    text = sections.tensors_section([full, TensorRow("b", "Relu", None, False, "is all zero")], "").content
    assert "50 %" in text and "21.50" in text and text.count('class="cut"') == 1
    assert text.count('<option value="pair" selected>') == 1


def test_clipped_shares_are_those_of_values_beyond_amax() -> None:
    row = TensorRow("a", "Conv", Scale.of(1 / 127), True, "", counted([0.5, -0.5, 0.0, 1.5]))
    assert row.amax == pytest.approx(1, rel=1e-6)
    assert row.clipped == 0.25
    assert TensorRow("a", "Conv", None, False, "", counted([1.0])).clipped is None


def test_findings_carry_the_command_that_repairs_them() -> None:
    found = [Finding("Q003", "error", f"t{n}", "is wrong", "do it", fixable=True) for n in range(50)]
    found.append(Finding("Q016", "note", "y", "is so", "look"))
    text = sections.findings_section(found, "qdqtool lint m.onnx -o m.fixed.onnx").content
    assert "<code>qdqtool lint m.onnx -o m.fixed.onnx --fix Q003</code>" in text
    assert "10 more findings of Q003" in text and text.count("<tr id=") == 41
    assert "50 errors, 1 note" in text
    assert f"<code>Q016</code> {check_named('Q016').summary[:20]}" in text, "what a code means is beside the table"
    assert sections.findings_section([], "").content == "<p>Nothing found.</p>"


def test_a_cache_of_another_export_says_so() -> None:
    cache = Cache.of("8502", {"x": np.float32(0.5), "k": np.float32(1)})
    evidence = find_evidence(cache.entries, ["x"], {"k": ConstantFact(0.0)})
    text = sections.cache_section(cache, check(cache, ["x"], ["k"], evidence), "c.cache").content
    assert re.search("1 constant contradicts .* k", text)
    assert "another export" not in sections.cache_section(cache, check(cache, ["x"], ["k"]), "c.cache").content


def test_a_cache_shows_missing_names_and_near_misses() -> None:
    cache = Cache.of("8502", {"x": np.float32(0.5), "conv1/relu": np.float32(1), "a:0": np.float32(2)})
    text = sections.cache_section(cache, check(cache, ["x", "conv1_relu", "a:0"]), "c.cache").content
    assert "2 of 3 float tensors" in text
    assert "conv1/relu (is it conv1_relu?)" in text
    assert "not in the model (1)" in text and "in float) (1)" in text
    assert "With a colon" in text and "3f000000" in text


def test_differences_name_scales_and_types_of_both() -> None:
    scales = [DifferingScale("x", Scale.of(1), Scale.of(4)), DifferingScale("r", None, Scale.of(2))]
    types = [DifferingType("c1", "Conv", "INT8", "FP32", "a head")]
    text = differences_section(("a.onnx", "b.onnx"), [("Pairs", "1", "2")], scales, types).content
    assert "Scales that differ (2)" in text and "another type (1)" in text
    assert 'data-v="0.25">0.25' in text and "no pair" in text and "a head" in text
    empty = differences_section(("a", "b"), [], [], []).content
    assert "Scales that differ (0)" in empty and empty.count("<table") == 1


def test_sensitivity_is_shown_by_loss() -> None:
    one = {"node": "c1", "op": "Conv", "local": 0.25, "without": 0.5, "share": 0.125}
    text = sections.sensitivity_section({"loss": 0.75, "operators": [one, {**one, "without": None}]}).content
    assert "0.75" in text and "12.50%" in text and text.count("<tr id=") == 2
    with pytest.raises(KeyError):
        sections.sensitivity_section({"loss": 1})


def test_losses_are_bars_of_the_largest_one() -> None:
    one = {"node": "c1", "op": "Conv", "local": 0.5, "without": 0.5, "share": 0.125}
    text = sections.sensitivity_section({"loss": 0.75, "operators": [one, {**one, "local": 0.125}]}).content
    assert re.findall(r"M0 1h([\d.]+)v8", text) == [f"{HIST_WIDTH:.1f}", f"{HIST_WIDTH / 4:.1f}"]
    assert "M0 1h0.0v8" in sections.sensitivity_section({"loss": 0, "operators": [{**one, "local": 0.0}]}).content
    assert "<tr id=" not in sections.sensitivity_section({"loss": 0, "operators": []}).content


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300, float("nan"), float("inf"), None, "1", [1]])
def test_what_is_no_loss_is_left_out_of_a_curve(value: Any) -> None:
    """JSON has numbers of any length, and Python reads them as such."""
    good = {"step": 1, "loss": 0.5}
    for bad in ({"step": value, "loss": 0.5}, {"step": 2, "loss": value}):
        text = curves_section([bad, good], "x").content
        assert text.count('class="curve"') == 1 and "from 0.5 to 0.5" in text and "nan" not in text


def test_curves_are_those_of_the_steps() -> None:
    events: list[dict[str, Any]] = [{"event": "step", "step": n, "loss": 1 / n, "rate": 0.1} for n in range(1, 2001)]
    events += [{"event": "measure", "step": 0, "measure": 0.5}, {"event": "step", "step": 9, "loss": None}]
    text = curves_section(events, "train.log").content
    assert text.count('class="curve"') == 3
    assert len(re.findall("L", text)) < 1300, "long runs are thinned"
    assert "has no steps" in curves_section([{"event": "other"}], "x").content


# ---------------------------------------------------------------------------------------------------- drawings


def numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_a_histogram_is_closed_and_stays_inside() -> None:
    one = counted(list(np.random.default_rng(1).normal(size=500)))
    counts, width = one.folded()
    text = histogram_svg(counts, width, float(one.amax), 1.5)
    path = re.findall(r'd="M0 (\d+)((?:[vh]-?\d+)*)v(-?\d+)z"', text)
    assert path, text
    down, strokes, last = path[0]
    at, right = int(down), 0
    for kind, length in re.findall(r"([vh])(-?\d+)", strokes):
        at, right = (at + int(length), right) if kind == "v" else (at, right + int(length))
        assert 0 <= at <= HIST_HEIGHT and right <= HIST_WIDTH
    assert right == HIST_WIDTH and at + int(last) == HIST_HEIGHT


@pytest.mark.parametrize(("amax", "place"), [(0.0, None), (1.0, HIST_WIDTH / 4 / 1.02), (4.0, HIST_WIDTH / 1.02)])
def test_the_threshold_stands_where_amax_is(amax: float, place: float | None) -> None:
    one = counted([4.0, 0.5])
    counts, width = one.folded()
    found = re.findall(r'class="cut" d="M([\d.]+)', histogram_svg(counts, width, 4.0, amax))
    assert found == [] if place is None else float(found[0]) == pytest.approx(place, abs=0.06)


@pytest.mark.filterwarnings("error")
def test_weights_beyond_all_bounds_are_shown_without_a_complaint() -> None:
    for values in ([np.inf, 1.0], [np.nan, 1.0], [3e38, 1e-38], [0.0, 0.0]):
        row = WeightRow("w", "c", "Conv", np.array(values, np.float32), "INT8")
        text = sections.weights_section([row]).content
        assert text.count("<tr id=") == 1
        assert 'data-v="nan"' not in text and 'data-v="inf"' not in text


def test_ranges_and_shares_stay_inside() -> None:
    ranges = ranges_svg(np.array([1.0, 0.0, 1e-9, 100.0] * 40, np.float32))
    assert ranges.count("M") == 48
    assert max(numbers(re.findall(r' d="(.*?)"', ranges)[0])) <= HIST_WIDTH
    for share, wide in ((-1.0, 0.0), (0.5, HIST_WIDTH / 2), (7.0, HIST_WIDTH)):
        assert f"h{wide:.1f}v8" in share_svg(share)


def test_a_curve_of_one_point_and_of_equal_ones_is_drawn() -> None:
    for points in ([(0.0, 1.0)], [(0.0, 1.0), (5.0, 1.0)]):
        assert "nan" not in curve_svg(points, "flat")


def test_names_are_cut_and_escaped() -> None:
    assert escaped("<a>") == "&lt;a&gt;"
    assert len(escaped("x" * 10_000)) < 400


def test_a_page_has_the_first_entries_of_a_large_cache_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_MOST_ENTRIES", 2)
    cache = Cache.of("8502", {name: np.float32(1) for name in ("x", "y", "z")})
    text = sections.cache_section(cache, check(cache, ["x"]), "c.cache").content
    assert text.count("<tr id=") == 2 and "the first 2 entries; qdqtool cache show lists 1 more" in text
