# SPDX-License-Identifier: Apache-2.0
"""rules/parser.toml: that it is sound, and what it says of some operators at some versions."""

from __future__ import annotations

import onnx.defs
import pytest

from qdqtool.parser_rules import load_parser_rules, tomllib
from qdqtool.rule_files import rules_folder
from qdqtool.trtversion import TrtVersion, parse


def test_every_rule_says_why_and_where_from() -> None:
    document = tomllib.loads((rules_folder() / "parser.toml").read_text())
    names = [rule["name"] for kind in ("operator", "plugin") for rule in document[kind]]
    assert len(names) == len(set(names))
    for rule in (*document["operator"], *document["plugin"]):
        assert rule["why"].endswith(".") and rule["see"] and rule["status"] == "documented", rule["name"]
        assert rule["trt"].startswith(">=") and len(rule["ops"]) == len(set(rule["ops"]))


def test_operators_are_those_of_onnx_or_of_its_first_versions() -> None:
    rules = load_parser_rules()
    old = {"SpatialBN", *rules.removed}
    for op in rules.operators:
        assert onnx.defs.has(op) or op in old or op.startswith("TRT_"), op
    assert not any(onnx.defs.has(op) for op in rules.removed)


@pytest.mark.parametrize(
    ("op", "first", "before"),
    [
        ("Conv", "5.0.6", ""),
        ("Einsum", "8.2.1", "8.0.1"),
        ("GridSample", "8.5.1", "8.4.1"),
        ("LayerNormalization", "8.6.1", "8.5.2"),
        ("Hardmax", "9.2.0", "9.1.0"),
        ("Attention", "10.14.0", "10.7.0"),
    ],
)
def test_operators_come_with_versions(op: str, first: str, before: str) -> None:
    rules = load_parser_rules()
    assert rules.imports(op) and rules.imports(op, parse(first))
    assert not before or not rules.imports(op, parse(before))


def test_plugins_come_and_go() -> None:
    rules = load_parser_rules()
    shipped = [
        v for v in ((7, 1, 3), (8, 0, 1), (10, 7, 0), (11, 0, 0)) if rules.ships("EfficientNMS_TRT", TrtVersion(*v))
    ]
    assert shipped == [(8, 0, 1), (10, 7, 0), (11, 0, 0)]
    batched = [
        v
        for v in ((7, 0, 0), (7, 1, 3), (10, 7, 0), (11, 0, 0))
        if rules.ships("BatchedNMSDynamic_TRT", TrtVersion(*v))
    ]
    assert batched == [(7, 1, 3), (10, 7, 0)], "the parser of 7.0 has no fallback to plugins"
    assert not rules.ships("FusedConv") and not rules.imports("FusedConv")
