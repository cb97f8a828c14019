# SPDX-License-Identifier: Apache-2.0
"""lint and the real parser on a part of the bench's graphs: no disagreement without a reason, and the table's words."""

from __future__ import annotations

import pytest

from tests.bench.mutant_nets import base
from tests.bench.parser_agreement import Judged, judge, report
from tests.bench.parser_mutants import mutants

EVERY = tuple(mutants())
PART = [one for one in EVERY if one.name.startswith(("conv:", "matmul:"))]


def test_there_are_more_than_five_hundred_graphs_and_no_two_of_one_name() -> None:
    names = [one.name for one in EVERY]
    assert len(names) == len(set(names)) > 500
    assert {one.family for one in EVERY} == {
        "form",
        "axis",
        "type",
        "zero-point",
        "scale",
        "opset",
        "rank",
        "block",
    }


def test_every_mutant_but_the_sound_ones_differs_from_its_base() -> None:
    for one in PART:
        kind, _, name = one.name.partition(": ")
        same = one.model == base(kind)
        assert same is (name in ("sound", *_NO_CHANGE[kind])), one.name


_NO_CHANGE = {
    "conv": ("w along axis 0", "w along axis 0, scales as they were", "x is 1x8x16x16"),
    "matmul": ("w along axis 1", "w along axis 1, scales as they were", "axis of the Q alone"),
}


@pytest.mark.parametrize(
    ("errors", "refusals", "verdict", "reasons"),
    [
        ((), (), "neither", 0),
        (("Q004",), ("Non-zero zero point is not supported",), "both", 0),
        (("Q012",), (), "lint", 1),
        ((), ("GEMM must have 2D inputs!",), "parser", 1),
    ],
)
def test_who_refuses(errors: tuple[str, ...], refusals: tuple[str, ...], verdict: str, reasons: int) -> None:
    row = Judged("axis", "a", errors, refusals)
    assert (row.verdict, len(row.reasons())) == (verdict, reasons) and all(row.reasons())


@pytest.mark.parametrize(
    "row", [Judged("axis", "a", ("Q001",)), Judged("axis", "a", (), ("what nobody has heard of",))]
)
def test_what_has_no_reason_is_told(row: Judged) -> None:
    assert row.reasons() == [""] and any(line.endswith("NONE |") for line in report([row]))


def test_a_graph_that_neither_opens_is_left_out() -> None:
    assert judge("rank", "a", base("conv").__class__()) is None


@pytest.mark.rtx
@pytest.mark.parametrize("mutant", PART[::3], ids=lambda one: one.name)
def test_the_judges_agree_or_the_table_says_why_not(mutant: object) -> None:
    row = judge(mutant.family, mutant.name, mutant.model)  # type: ignore[attr-defined]
    assert row is None or all(row.reasons()), row
