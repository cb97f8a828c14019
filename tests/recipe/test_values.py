# SPDX-License-Identifier: Apache-2.0
"""Which recipes are for engines with the types of their files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from qdqtool.recipe.values import RecipeStep, builds_by_file_types


@pytest.mark.parametrize(
    ("verb", "options", "typed"),
    [
        ("insert", {"trt-version": "11.1.0"}, True),
        ("graft", {"trt-version": "11.4.1"}, True),
        ("insert", {"trt-version": "10.3"}, False),
        ("peel", {"trt-version": 7100}, False),
        ("insert", {}, False),
        ("insert", {"rest": "fp16"}, True),
        ("insert", {"rest": "fp32"}, False),
        ("insert", {"target": "rtx"}, True),
        ("amp", {}, True),
        ("insert", {"trt-version": "none such"}, False),
    ],
)
def test_one_step_that_needs_the_types_of_the_file_decides(
    verb: str, options: Mapping[str, str | int], typed: bool
) -> None:
    steps = [RecipeStep("a", "evaluate"), RecipeStep("b", verb, options=options)]
    assert builds_by_file_types(steps) == typed
    assert not builds_by_file_types(steps[:1])
