# SPDX-License-Identifier: Apache-2.0
"""What is tried for which target, and what a target is said to run."""

from __future__ import annotations

import re

import onnx
import pytest

from qdqtool.deploying.candidates import candidates_for
from qdqtool.deploying.options import EFFORTS
from qdqtool.deploying.target import DeployTarget, dla_report, require_opset, target_at, target_lines
from qdqtool.errors import QdqError
from qdqtool.forecasting.boards import find_place
from qdqtool.graph.model import Model
from tests.graphs import SMALL_NET, model_of

CASES = [("jp4.6.1", True), ("jp4.4", False), ("8.6", False), ("11.4", False), ("orin", True), ("rtx4090:rtx", False)]


def target(text: str, *, dla: bool = False) -> DeployTarget:
    return target_at(find_place(text), dla=dla)


def lines(text: str, model: onnx.ModelProto, *, dla: bool = False) -> list[str]:
    place = target(text, dla=dla)
    return target_lines(place, model, dla_report(place, Model(model)) if dla else None)


@pytest.mark.parametrize(
    ("text", "dla", "kind", "form", "typed"),
    [
        ("jp4.6.1", True, "dla", "cache", False),
        ("jp4.4", False, "gpu", "cache", False),
        ("8.6", False, "gpu", "qdq", False),
        ("11.4", False, "gpu", "qdq", True),
        ("orin:jp7.2.2", True, "dla", "qdq", True),
        ("rtx4090:rtx", False, "rtx", "qdq", True),
    ],
)
def test_a_place_has_one_form_of_int8(text: str, dla: bool, kind: str, form: str, typed: bool) -> None:
    found = target(text, dla=dla)
    assert (found.kind, found.form, found.typed) == (kind, form, typed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("orin-nano", "Jetson Orin Nano has no DLA"),
        ("rtx4090:rtx", "TensorRT for RTX has no DLA"),
        ("10.13.3", "supports no DLA"),
    ],
)
def test_a_dla_that_is_not_there_is_refused(text: str, said: str) -> None:
    with pytest.raises(QdqError, match=said):
        target(text, dla=True)


@pytest.mark.parametrize(("text", "dla"), CASES)
def test_more_effort_tries_more_and_all_of_the_less(text: str, dla: bool) -> None:
    counts = [{one.name for one in candidates_for(target(text, dla=dla), effort)} for effort in EFFORTS]
    assert counts[0] < counts[1] < counts[2] or (counts[0] < counts[1] and text == "orin")
    assert all("fp16" in names for names in counts)


@pytest.mark.parametrize(("text", "dla"), CASES)
def test_caches_are_tried_where_they_are_read_and_names_are_told_apart(text: str, dla: bool) -> None:
    found = target(text, dla=dla)
    tried = candidates_for(found, "best")
    assert len({one.name for one in tried}) == len(tried)
    assert [one.form for one in tried if one.is_float] == ["fp16", *(["as-is"] if not dla else [])]
    assert found.has_caches or not any(one.form == "cache" for one in tried)
    assert all(one.form == "cache" for one in tried if not one.is_float) or found.form == "qdq"


def test_without_int8_only_the_float_model_is_tried() -> None:
    assert [one.name for one in candidates_for(target("jetson-nano"), "best")] == ["fp16", "as-is"]


@pytest.mark.parametrize(
    ("place", "dla", "rest"),
    [
        ("rtx4090", False, ""),
        ("rtx4090:rtx", False, ""),
        ("thor", False, ""),
        ("l4:10.13.3", False, "fp16"),
        ("rtx4090:8.6.1", False, None),
        ("orin-nano", False, None),
        ("rtx3090", False, None),
        ("orin:jp7.2.2", True, None),
        ("11.4", False, None),
    ],
)
def test_fp8_is_tried_on_boards_that_run_it(place: str, dla: bool, rest: str | None) -> None:
    """Where the builder chooses types, FP8 is built from a typed file."""
    found = [one for one in candidates_for(target(place, dla=dla), "fast") if one.format == "fp8"]
    steps = [dict(step.options) for one in found for step in one.steps]
    assert steps == ([] if rest is None else [{"format": "fp8", **({"rest": rest} if rest else {})}])
    assert target(place, dla=dla).fp8 is bool(found)


def test_a_typed_target_gets_its_float_model_by_amp() -> None:
    assert [step.verb for step in candidates_for(target("11.4"), "fast")[-2].steps] == ["amp"]
    assert not candidates_for(target("8.6"), "fast")[-2].steps


def test_a_dla_is_told_in_five_lines() -> None:
    model = model_of(SMALL_NET.replace("float[N", "float[1"), opset=13)
    found = lines("xavier-nx:jp4.6.1", model, dla=True)
    assert found[0] == "for Jetson Xavier NX, JetPack 4.6.1: TensorRT 8.2.1"
    assert found[0].startswith("for Jetson Xavier NX, JetPack 4.6.1") and found[0].endswith("TensorRT 8.2.1")
    assert re.match("types: INT8 yes; FP16 yes, .*builder; FP8 no$", found[1])
    assert re.match("INT8 by calibration cache: .*TRT-8201-EntropyCalibration2$", found[2])
    assert found[4] == "parser: reads ONNX up to opset 13, the model has 13"


def test_an_opset_that_the_parser_does_not_read_is_refused() -> None:
    model = model_of(SMALL_NET, opset=17)
    with pytest.raises(QdqError, match=r"opset 17.* TensorRT 8.2.1 .* 13; export it"):
        require_opset(target("xavier-nx:jp4.6.1"), model, "m.onnx")
    for text in ("8.6", "orin-nano:jp6.2", "rtx4090:rtx"):  # reads it, no limit is known, no version
        require_opset(target(text), model, "m.onnx")
    assert lines("xavier-nx:jp4.6.1", model)[3] == "DLA: not used (add --dla)"


def test_a_board_without_int8_is_told() -> None:
    found = lines("jetson-nano:jp4.6.1", model_of(SMALL_NET, opset=13))
    assert "INT8 no:" in found[1]
    assert found[2].startswith("INT8: none") and found[3] == "DLA: none"


def test_typed_targets_are_told() -> None:
    model = model_of(SMALL_NET)
    assert re.match("types: INT8 yes; FP16 yes, by Casts .*; FP8 yes", lines("rtx4090", model)[1])
    assert re.match("INT8 by Q/DQ .*no caches", lines("11.4", model)[2])
    assert re.match("INT8 by Q/DQ .*reads caches", lines("8.6", model)[2])
    fixed = model_of(SMALL_NET.replace("float[N", "float[1"))
    assert re.search("FP16 .*; up to TensorRT 10.7, .* INT8$", lines("orin:jp7.2.2", fixed, dla=True)[2])
    assert lines("rtx4090:rtx", model)[4].endswith(" opset 17")


def test_operators_that_the_parser_does_not_import_are_told() -> None:
    model = model_of("net (float[1,4] x) => (float[1,4] y) { y = trt.MyPlugin(x) }")
    assert "not import" in lines("8.6", model)[4]
