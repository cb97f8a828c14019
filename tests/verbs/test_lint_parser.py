# SPDX-License-Identifier: Apache-2.0
"""When lint asks NVIDIA's parser: where it is told to, or for rtx and TensorRT 11 where it is installed."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.tensorrt_rtx import installed
from qdqtool.tensorrt_rtx.installed import RtxLibrary
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions
from tests.graphs import model_of
from tests.linting.quantized import classifier, conv, pair
from tests.tensorrt_rtx.fake_python import ACCEPTED, giving, library

SHIFTED = classifier(f"{pair('x', zero='middle')} {conv('c', 'x_dq')} a = Relu(c)")
ERROR = {"code": "INVALID_NODE", "text": "shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported."}
REFUSED: dict[str, Any] = {
    **ACCEPTED,
    "accepted": False,
    "errors": [{**ERROR, "node": "", "operator": "QuantizeLinear", "tensor": "x_dq_q"}],
}
needs_script = pytest.mark.skipif(sys.platform == "win32", reason="starts a script by its first line")


@pytest.fixture(autouse=True)
def _own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_CACHE_DIR", str(tmp_path / "results"))


def use(monkeypatch: pytest.MonkeyPatch, child: RtxLibrary) -> None:
    for place in (installed.__name__, "qdqtool.verbs.lint"):
        monkeypatch.setattr(f"{place}.find_library", lambda: child)


@needs_script
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (LintOptions(), False),
        (LintOptions(trt_version="10.3"), False),
        (LintOptions(trt_version="11.0"), True),
        (LintOptions(trt_version="11.0", parser=False), False),
        (LintOptions(parser=True), True),
        (LintOptions(trt_version="11.0", select=("Q005",)), False),
        (LintOptions(trt_version="11.0", ignore=("Q050",)), True),
        (LintOptions(trt_version="11.0", ignore=("Q050", "Q051")), False),
    ],
)
def test_when_it_is_asked(options: LintOptions, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, giving(tmp_path, REFUSED))
    found = {finding.code for finding in lint(SHIFTED, options).findings}
    assert (tmp_path / "jobs").exists() is asked
    assert ("Q050" in found) is (asked and "Q050" not in options.ignore)


@needs_script
def test_the_repaired_model_is_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"""open({str(tmp_path / "jobs")!r}, "a").write("1")
data = pathlib.Path(job["model"]).read_bytes()
give({REFUSED!r} if bytes([128]) * 1 in data and b"middle" in data else {ACCEPTED!r})
"""
    use(monkeypatch, library(tmp_path, body))
    result = lint(SHIFTED, LintOptions(parser=True, select=("Q005", "Q050"), fix=("Q005",)))
    assert (tmp_path / "jobs").read_text() == "11"
    assert result.model is not None


def test_asked_for_and_not_installed_is_exit_3_before_anything_is_opened() -> None:
    with pytest.raises(MissingPackageError, match="TensorRT for RTX"):
        lint(SHIFTED, LintOptions(parser=True))


def test_unasked_and_not_installed_finds_nothing() -> None:
    assert not {finding.code for finding in lint(SHIFTED, LintOptions(trt_version="11.0")).findings} & {"Q050", "Q051"}


@pytest.mark.parametrize(
    ("options", "place", "told"),
    [
        (LintOptions("rtx"), "", True),
        (LintOptions(trt_version="11.0"), "", True),
        (LintOptions("rtx", fix=("all",)), "", True),
        (LintOptions("rtx"), "none", False),  # left out on purpose
        (LintOptions("rtx", parser=False), "", False),
        (LintOptions("rtx", select=("Q005",)), "", False),
        (LintOptions(trt_version="10.3"), "", False),
        (LintOptions(), "", False),
    ],
)
def test_a_note_says_that_it_was_not_asked_where_it_would_have_been(
    options: LintOptions, place: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDQTOOL_RTX_PYTHON", place)
    monkeypatch.setattr(installed, "_version_here", lambda: "")
    notes = [note for note in lint(SHIFTED, options).notes if note.startswith("NVIDIA's parser was not asked")]
    assert len(notes) == told
    assert not told or re.search("RTX .*(not installed; pip install|cannot be installed)", notes[0])


@needs_script
def test_a_parser_that_crashes_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, library(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)"))
    with pytest.raises(QdqError) as caught:
        lint(SHIFTED, LintOptions(parser=True))
    assert "SIGSEGV" in caught.value.line()


# The real parser


@pytest.mark.rtx
def test_the_real_parser_stands_beside_our_finding_and_is_content_with_the_repair(tmp_path: Path) -> None:
    options = LintOptions(trt_version="11.0", select=("Q005", "Q050"))
    (ours, theirs) = lint(SHIFTED, options).findings
    assert (ours.code, ours.where, theirs.code, theirs.where) == ("Q005", "x", "Q050", "x")
    assert theirs.severity == "error" and "Q005 says the same" in theirs.message
    repaired = lint(SHIFTED, LintOptions(trt_version="11.0", select=("Q005", "Q050"), fix=("all",)))
    assert repaired.findings == () and {one.code for one in repaired.fixed} == {"Q005", "Q050"}


COUNTED = {
    "Conv": "y = Conv<pads=[1,1,1,1]>(x, w)",
    "Gemm": "f = Flatten(x) y = Gemm(f, g)",
    "Squeeze": "y = Squeeze(x)",
    "Clip": "y = Clip(x)",
    "Slice": "y = Slice(x, a, e, a)",
    "Split": "y = Split<num_outputs=1>(x)",
    "Trilu": "y = Trilu(x)",
    "QuantizeLinear": "q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)",
}


@pytest.mark.rtx
@pytest.mark.parametrize("op", COUNTED)
def test_the_real_parser_refuses_an_empty_last_input_and_takes_the_repair(op: str) -> None:
    constants = "float[8,8,3,3] w, float[512,4] g, int64[1] a = {0}, int64[1] e = {1}, float s = {0.1}"
    model = model_of(f"net (float[1,8,8,8] x) => (float y) <{constants}> {{ {COUNTED[op]} }}", 18)
    next(node for node in model.graph.node if node.op_type == op).input.append("")
    options = LintOptions(parser=True, select=("Q050", "Q060"))
    found = {one.code: one for one in lint(model, options).findings}
    assert "Q060 says the same" in found["Q050"].message and found["Q050"].severity == "error"
    assert lint(model, replace(options, fix=("all",))).findings == ()
