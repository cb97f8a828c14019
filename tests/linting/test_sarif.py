# SPDX-License-Identifier: Apache-2.0
"""SARIF 2.1.0 by its structure: what the standard requires of a log, a run, a rule and a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdqtool.linting.checks import checks_of
from qdqtool.linting.finding import Finding
from qdqtool.linting.sarif import sarif_log

FOUND = [
    Finding("Q001", "warning", "conv1_out", "a Q/DQ pair between Conv a and the Relu", "remove it"),
    Finding("Q010", "error", "x", "its scale is zero"),
]


def log(model: str = "a b/m.onnx") -> dict[str, Any]:
    return json.loads(json.dumps(sarif_log(model, FOUND, checks_of(), "1.2.3")))


def test_the_log_and_its_run() -> None:
    document = log()
    assert document["version"] == "2.1.0" and document["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("qdqtool lint", "1.2.3")
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"] and rule["fullDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])


def test_each_result_names_its_rule_place_and_level() -> None:
    (run,) = log()["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result, finding in zip(run["results"], FOUND, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] == finding.severity
        (place,) = result["locations"]
        assert place["logicalLocations"][0]["fullyQualifiedName"] == finding.where
    texts = [result["message"]["text"] for result in run["results"]]
    first, second = FOUND[:2]
    assert texts[:2] == [f"{first.where}: {first.message}; {first.fix}", f"{second.where}: {second.message}"]


@pytest.mark.parametrize(
    ("model", "uri"),
    [("a b/m.onnx", "a%20b/m.onnx"), ("/t/ü.onnx", "file:///t/%C3%BC.onnx"), ("\udcff.onnx", "%FF.onnx")],
)
def test_places_are_uris(model: str, uri: str) -> None:
    result = log(model)["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri
    assert Path(model).suffix == ".onnx"


def test_a_code_of_no_rule_has_no_index() -> None:
    document = sarif_log("m.onnx", FOUND, checks_of(("Q001",)), "1")
    first, second = document["runs"][0]["results"]  # type: ignore[index]
    assert first["ruleIndex"] == 0 and "ruleIndex" not in second
