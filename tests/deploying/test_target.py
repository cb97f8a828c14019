# SPDX-License-Identifier: Apache-2.0
"""What a place can run, at the versions where that changes; and the five lines that say so."""

from __future__ import annotations

import re

import pytest

from qdqtool.deploying.layers_left import LayersLeft
from qdqtool.deploying.target import DeployTarget, dla_report, require_opset, target_at, target_lines
from qdqtool.errors import QdqError
from qdqtool.forecasting.boards import find_place
from qdqtool.graph.model import Model
from tests.graphs import SMALL_NET, model_of


def target(place: str, *, dla: bool = False) -> DeployTarget:
    return target_at(find_place(place), dla=dla)


@pytest.mark.parametrize(
    ("place", "dla", "kind", "form", "typed", "caches"),
    [
        ("7.2.3", False, "gpu", "cache", False, True),
        ("8.0.1", False, "gpu", "qdq", False, True),
        ("10.16.1", False, "gpu", "qdq", False, True),
        ("11.1", False, "gpu", "qdq", True, False),
        ("rtx4090:rtx", False, "rtx", "qdq", True, False),
        ("xavier-nx:jp4.6.1", True, "dla", "cache", False, True),
        ("orin:10.7", True, "dla", "cache", False, True),
    ],
)
def test_the_form_is_that_of_the_version(
    place: str, dla: bool, kind: str, form: str, typed: bool, caches: bool
) -> None:
    found = target(place, dla=dla)
    assert (found.kind, found.form, found.typed, found.has_caches) == (kind, form, typed, caches)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("rtx4090:rtx", "--dla: TensorRT for RTX has no DLA; leave it out"),
        ("rtx4090:8.6.1", "--dla: GeForce RTX 40 (Ada) has no DLA; leave it out"),
        ("orin-nano:8.6", "--dla: Jetson Orin Nano has no DLA; leave it out"),
    ],
)
def test_a_dla_that_is_not_there_is_refused(place: str, said: str) -> None:
    with pytest.raises(QdqError) as refused:
        target(place, dla=True)
    assert refused.value.line() == said and refused.value.exit_code == 2


def test_the_highest_opset_is_read_and_the_next_one_is_not() -> None:
    here = target("8.5.2")
    highest = here.version.max_opset if here.version is not None else None
    assert highest == 17
    model = model_of(SMALL_NET)
    model.opset_import[0].version = 17
    require_opset(here, model, "m.onnx")
    model.opset_import[0].version = 18
    with pytest.raises(QdqError, match=r"opset 18.* TensorRT 8\.5\.2 .* 17"):
        require_opset(here, model, "m.onnx")
    require_opset(target("rtx4090:rtx"), model, "m.onnx")


def lines(place: str, *, dla: bool = False) -> list[str]:
    model = model_of(SMALL_NET)
    to = target(place, dla=dla)
    return target_lines(to, model, dla_report(to, Model(model)) if dla else None)


def test_five_lines_for_a_gpu() -> None:
    found = lines("rtx4090:8.6.1")
    assert found[:4] == [
        "for rtx4090, GeForce RTX 40 (Ada): TensorRT 8.6.1",
        "types: INT8 yes; FP16 yes, chosen by the builder; FP8 no",
        "INT8 by Q/DQ in the model; it reads caches, too",
        "DLA: none",
    ]
    assert found[4].startswith("parser: reads ONNX up to opset 17, the model has ")
    assert "opset 20 at least" in lines("rtx4090:10.3")[4]


@pytest.mark.parametrize(
    ("place", "dla", "number", "says"),
    [
        ("rtx4090:11.1", False, 1, "types: INT8 yes; FP16 yes, by Casts in the file; FP8 yes"),
        ("8.6.1", False, 1, "types: INT8 yes; FP16 yes, chosen by the builder; FP8 depends on the GPU"),
        ("jetson-nano", False, 1, "types: INT8 no: its GPU has no kernels for it; FP16 yes"),
        ("jetson-nano", False, 2, "INT8: none, so the model stays in float"),
        ("7.2.3", False, 2, "INT8 by calibration cache: its header is TRT-7203-EntropyCalibration2"),
        ("11.1", False, 2, "INT8 by Q/DQ in the model; it reads no caches"),
        ("orin:8.6", False, 3, "DLA: not used (add --dla)"),
        ("8.6.1", False, 3, "DLA: none"),
    ],
)  # fmt: skip
def test_a_line_says_what_differs(place: str, dla: bool, number: int, says: str) -> None:
    assert lines(place, dla=dla)[number].startswith(says)


def test_a_dla_says_how_much_it_runs() -> None:
    found = lines("xavier-nx:jp4.6.1", dla=True)[3]
    assert re.search(r"runs 5 nodes in 2 subgraphs \(.* 4\), 2 fall back ", found)


def test_what_of_a_dla_is_a_guess_is_told() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] z) <float[1] u> { a = Relu(x) z = LeakyRelu(a) }"
    model = Model(model_of(text))
    xavier = target("xavier-nx:jp4.6.1", dla=True)
    report = dla_report(xavier, model)
    said = LayersLeft(dla=report).guesses
    assert said.startswith("by a guess") and "1 LeakyRelu (rule dla-leaky-relu-8-0) on the DLA" in said
    assert target_lines(xavier, model_of(text), report)[3].endswith(said)
    assert LayersLeft(dla=dla_report(target("orin:8.6", dla=True), model)).guesses == "" == LayersLeft().guesses
