# SPDX-License-Identifier: Apache-2.0
"""Findings as a SARIF 2.1.0 log, which code hosts show beside a change. Not how they are printed for people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from qdqtool.linting.checks import Check
from qdqtool.linting.finding import Finding

VERSION = "2.1.0"
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


def sarif_log(model: str, findings: Iterable[Finding], checks: Sequence[Check], version: str) -> dict[str, object]:
    """One run of lint as a SARIF log.

    A place in a graph has no line: each result names the model's file and, as a logical location, the tensor or node.
    """
    index = {one.code: place for place, one in enumerate(checks)}
    driver = {
        "name": "qdqtool lint",
        "version": version,
        "semanticVersion": version,
        "rules": [_rule(one) for one in checks],
    }
    results = [_result(model, finding, index) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": VERSION, "runs": [run]}


def _rule(check: Check) -> dict[str, object]:
    return {
        "id": check.code,
        "name": check.name,
        "shortDescription": {"text": check.summary},
        "fullDescription": {"text": check.explanation},
        "defaultConfiguration": {"level": check.severity},
    }


def _result(model: str, finding: Finding, index: dict[str, int]) -> dict[str, object]:
    text = finding.message + (f"; {finding.fix}" if finding.fix else "")
    place = {
        "physicalLocation": {"artifactLocation": {"uri": _uri(model)}},
        "logicalLocations": [{"fullyQualifiedName": finding.where}],
    }
    rule = {"ruleIndex": index[finding.code]} if finding.code in index else {}
    return {
        "ruleId": finding.code,
        **rule,
        "level": finding.severity,
        "message": {"text": f"{finding.where}: {text}"},
        "locations": [place],
    }


def _uri(model: str) -> str:
    """A relative reference for a relative path, a file URI for an absolute one."""
    path = Path(model)
    if path.is_absolute():
        return path.as_uri()
    from urllib.parse import quote

    return quote(os.fsencode(path.as_posix()))  # a name may be no UTF-8
