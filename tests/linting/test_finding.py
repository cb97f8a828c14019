# SPDX-License-Identifier: Apache-2.0
"""Findings: the order in which they are told, and which are grave enough."""

from __future__ import annotations

import json

from qdqtool.linting.finding import Finding, at_least, by_code

ERROR, WARNING = Finding("Q005", "error", "a", "m"), Finding("Q001", "warning", "b", "m")
NOTE, OTHER = Finding("Q002", "note", "c", "m"), Finding("Q005", "warning", "d", "m")


def test_a_level_takes_what_is_graver() -> None:
    every = [NOTE, WARNING, ERROR]
    assert at_least(every, "error") == [ERROR]
    assert at_least(every, "warning") == [WARNING, ERROR]
    assert at_least(every, "note") == every


def test_the_codes_with_the_gravest_findings_come_first() -> None:
    assert list(by_code([NOTE, OTHER, WARNING, ERROR])) == ["Q005", "Q001", "Q002"]
    assert by_code([OTHER, ERROR])["Q005"] == [OTHER, ERROR]


def test_the_key_is_code_and_place_and_json_has_every_field() -> None:
    assert ERROR.key == ("Q005", "a")
    assert set(json.loads(json.dumps(ERROR.to_json()))) == set(Finding.__dataclass_fields__)
