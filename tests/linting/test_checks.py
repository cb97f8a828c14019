# SPDX-License-Identifier: Apache-2.0
"""The register of checks: every code explains itself, and selections are refused where they mean nothing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import qdqtool
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.linting.checks import Check, CheckFault, all_checks, check_named, checks_of, run_checks
from qdqtool.linting.finding import SEVERITIES
from qdqtool.linting.fixes import REPAIRS
from qdqtool.linting.lint_context import LintContext
from tests.graphs import V8_6, model_of

EMPTY = model_of("net (float[2] x) => (float[2] y) { y = Relu(x) }")


@pytest.mark.parametrize("code", all_checks())
def test_every_check_explains_itself(code: str) -> None:
    check = check_named(code)
    assert re.fullmatch(r"Q\d{3}", check.code) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", check.name)
    assert check.severity in SEVERITIES and set(check.targets) <= {"gpu", "rtx", "dla"} and check.targets
    assert len(check.summary) > 20 and check.summary.endswith(".")
    assert len(check.explanation.splitlines()) >= 3, "what it is, and why"


def test_codes_and_names_are_unique() -> None:
    checks = all_checks()
    assert len({check.name for check in checks.values()}) == len(checks)
    assert list(checks) == sorted(checks)


def test_selected_and_ignored() -> None:
    every = checks_of()
    assert [one.code for one in checks_of(("Q003", "Q001"))] == ["Q001", "Q003"]
    assert {one.code for one in every} - {one.code for one in checks_of(ignore=("Q016",))} == {"Q016"}
    assert checks_of(("Q001",), ("Q001",)) == []


@pytest.mark.parametrize(("code", "words"), [("q003", "did you mean Q003"), ("Q999", "codes are Q001 to"), ("", "''")])
def test_codes_that_no_check_has(code: str, words: str) -> None:
    for asked in ({"select": (code,)}, {"ignore": (code,)}):
        with pytest.raises(QdqError) as caught:
            checks_of(**asked)
        assert words in caught.value.line()


def look(context: LintContext) -> list[CheckFault]:
    """Two faults at one place, one of them said twice."""
    return [CheckFault("x", "one", "do"), CheckFault("x", "one", "do"), CheckFault("x", "two", "do", severity="error")]


def test_a_place_is_told_once_per_sentence_and_a_fault_may_be_graver() -> None:
    check = Check("Q900", "made-up", "note", look)
    found = check.findings(LintContext(Model(EMPTY)))
    assert [(one.message, one.severity) for one in found] == [("one", "note"), ("two", "error")]
    assert run_checks(LintContext(Model(EMPTY)), [check, check]) == found * 2


def test_a_check_is_asked_only_for_its_target_and_versions() -> None:
    for check, said in (
        (Check("Q900", "made-up", "note", look, targets=("dla",)), False),
        (Check("Q900", "made-up", "note", look, trt="<8.0"), False),
        (Check("Q900", "made-up", "note", look, trt=">=8.0,<9"), True),
    ):
        assert bool(check.findings(LintContext(Model(EMPTY), version=V8_6))) is said


def test_every_code_has_its_row_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "lint.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `Q")}
    assert list(rows) == list(all_checks())
    for code, check in all_checks().items():
        assert check.summary in rows[code] and f"| {check.name} | {check.severity} |" in rows[code]
        assert ("| yes |" in rows[code]) is (code in REPAIRS)


def test_every_file_of_checks_is_read() -> None:
    folder = Path(inspect.getfile(Check)).parent
    asked = {one.look.__module__.rpartition(".")[2] for one in all_checks().values()}
    assert asked == {file.stem for file in folder.glob("check_*.py")}


def test_products_inside_bodies_are_told_of() -> None:
    text = """g (float[1,4,8,8] x, bool p) => (float[1,4,8,8] z) <float[4,4,1,1] w> { c = Relu(x) z = If<
        then_branch = t () => (float[1,4,8,8] a) { [inner] a = Conv(c, w) },
        else_branch = e () => (float[1,4,8,8] b) { b = Relu(c) }>(p) }"""
    (note,) = [one for one in qdqtool.lint(model_of(text)).notes if "inside If" in one]
    assert note.startswith("1 product inside If")
    assert not any("inside If" in one for one in qdqtool.lint(model_of(text.replace("Conv(c, w)", "Relu(c)"))).notes)
