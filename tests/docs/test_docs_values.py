# SPDX-License-Identifier: Apache-2.0
"""Values in the documentation: methods, preprocessing, origins, rules, constraints and heads are those there are."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_args

from qdqtool.amax.method_table import NAMES
from qdqtool.data.preprocess import PRESETS, Color, Interpolation, Layout, Preprocess, Resize, parse_preprocess
from qdqtool.dla.rules import Layer, Limit
from qdqtool.match import constraints
from qdqtool.match.options import FloatHeads
from qdqtool.rule_kinds import (
    AttentionForm,
    CommonScale,
    Composite,
    Fusion,
    HeadRules,
    Int8Consumer,
    LateBiasReader,
    Rule,
    SharedScale,
    StackedOperand,
    UnfoldedOperator,
    WeightAxis,
)
from qdqtool.scales import Origin
from tests.docs.pages import (
    PROJECT,
    VERB_PAGES,
    first_cells,
    prose_of,
    rows_of,
)


def test_methods_are_those_there_are() -> None:
    reported = first_cells(VERB_PAGES["calibrate"], "method")
    assert sorted(name.partition("=")[0] for name in reported) == sorted(NAMES)
    verbs = (PROJECT / "docs" / "verbs.md").read_text(encoding="utf-8")
    assert all(f"`{name}" in verbs for name in NAMES)


def test_preprocess_keys_values_and_presets_are_those_there_are() -> None:
    page = VERB_PAGES["calibrate"]
    keys, rows = [field.name for field in fields(Preprocess)], prose_of(page).splitlines()
    for key in keys:
        row = next(line for line in rows if line.startswith("| `") and f"`{key}`" in line.split(" | ")[0])
        literal: Any = {"layout": Layout, "color": Color, "resize": Resize, "interpolation": Interpolation}.get(key)
        assert all(f"`{value}`" in row for value in get_args(literal))
    reported = rows_of(page, "preset")
    assert sorted(reported) == sorted(PRESETS)
    for name, row in reported.items():
        spelled = re.findall(r"`([^`]+)`", row.split(" | ")[1])[0]
        assert parse_preprocess(spelled) == PRESETS[name]


def test_defaults_of_preprocessing_are_reported() -> None:
    page, plain = prose_of(VERB_PAGES["calibrate"]), Preprocess()
    row = {line.split("`")[1]: line for line in page.splitlines() if re.match(r"\| `(color|resize|pad|interp)", line)}
    assert f"| `{plain.color}` |" in row["color"]
    assert f"| `{plain.resize}` |" in row["resize"]
    assert f"| {plain.pad} |" in row["pad"]
    assert f"| `{plain.interpolation}` |" in row["interpolation"]


def test_origins_are_those_there_are() -> None:
    row = next(line for line in prose_of(VERB_PAGES["calibrate"]).splitlines() if line.startswith("| `origin`"))
    assert set(re.findall(r"`(\w+)`", row)) == {"origin", *get_args(Origin)}


def test_kinds_of_rules_and_their_keys_are_those_there_are() -> None:
    rows = rows_of(PROJECT / "docs" / "rules.md", "kind")
    other = {
        WeightAxis: "weight",
        Int8Consumer: "consumer",
        SharedScale: "shared_scale",
        LateBiasReader: "late_bias",
    }
    other |= {CommonScale: "common_scale", StackedOperand: "stacked_concat", UnfoldedOperator: "unfolded"}
    kinds = {other.get(kind, kind.__name__.lower()): kind for kind in Rule.__subclasses__()}
    kinds |= {"float": Fusion, "attention": AttentionForm}
    assert {Layer, Limit} <= set(kinds.values())
    assert sorted(rows) == sorted(kinds)
    for name, kind in kinds.items():
        keys = set(re.findall(r"`(\w+)`", rows[name].split(" | ")[1]))
        own = {field.name for field in fields(kind)} - {field.name for field in fields(Rule)} - {"steps"}
        assert keys == own | ({"match"} if issubclass(kind, Fusion) else set() if kind is Composite else {"ops"})
    common = {field.name for field in fields(Rule)}
    assert set(first_cells(PROJECT / "docs" / "rules.md", "key")) == common


def test_constraints_are_those_there_are() -> None:
    assert sorted(first_cells(PROJECT / "docs" / "rules.md", "constraint")) == sorted(constraints._CONSTRAINTS)


def test_head_words_labels_and_policies_are_those_there_are() -> None:
    page = PROJECT / "docs" / "heads.md"
    assert sorted(first_cells(page, "key")) == sorted(field.name for field in fields(HeadRules))
    assert sorted(first_cells(page, "label")) == ["last layer", "mixed", "regression", "score"]
    policies = [word.split()[1] for word in first_cells(page, "option") if word.startswith("--float-heads")]
    assert sorted(policies) == sorted(get_args(FloatHeads))
