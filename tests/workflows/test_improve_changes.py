# SPDX-License-Identifier: Apache-2.0
"""What is said of two Q/DQ models that differ in their pairs."""

from __future__ import annotations

from dataclasses import replace

from qdqtool.workflows.improve_changes import PairsOfModel

GIVEN = PairsOfModel((), ("c",), (), 35, 4, ("FP8",), typed=False)


def test_lost_attentions_and_another_format_are_named() -> None:
    assert GIVEN.changes_to(GIVEN) == []
    said = GIVEN.changes_to(replace(GIVEN, attentions=0, formats=("INT8",)))
    assert said == ["pairs in INT8, FP8 before", "0 attentions quantized, 4 before"]
