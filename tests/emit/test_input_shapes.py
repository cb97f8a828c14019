# SPDX-License-Identifier: Apache-2.0
"""Sizes that models leave open, as calibration fed them: found, put into trtexec's flag, left out where not known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import DataOptions, open_loader
from qdqtool.data.model_inputs import Input
from qdqtool.emit.deepstream import write_deepstream
from qdqtool.emit.input_shapes import as_fed, blank_shape_words, shape_words, tensors_of
from qdqtool.emit.job import Tensor
from qdqtool.emit.trtexec import trtexec_arguments
from tests.emit.jobs import FLOAT, job_of
from tests.graphs import model_of

IMAGE = Tensor("x", FLOAT, (None, 3, None, None))
SIZE = {"preprocess": "size=320x240,scale=1/255"}


def test_inputs_of_a_model() -> None:
    model = model_of("g (float[N, 3, H, 8] x) => (float[N, 3, H, 8] y) { y = Relu(x) }")
    inputs, outputs = tensors_of(model)
    assert [(one.name, one.shape) for one in (*inputs, *outputs)] == [
        ("x", (None, 3, None, 8)),
        ("y", (None, 3, None, 8)),
    ]


@pytest.mark.parametrize(
    ("shape", "data", "fed"),
    [
        ((None, 3, None, None), SIZE, (None, 3, 240, 320)),
        ((1, None, None, 3), SIZE, (1, 240, 320, 3)),
        ((None, 3, None, None), {"shapes": {"x": [2, 3, 64, 96]}}, (None, 3, 64, 96)),
        ((None, 3, None, None), {"shapes": {"x": [2, 3, 64, 96]}, **SIZE}, (None, 3, 64, 96)),
        ((None, 3, None, None), {"shapes": {"other": [1]}}, (None, 3, None, None)),
        ((None, 3, None, None), {"shapes": {"x": ["a"]}}, (None, 3, None, None)),
        ((None, 3, None, None), None, (None, 3, None, None)),
        ((None, None), SIZE, (None, None)),
        (None, SIZE, None),
    ],
)
def test_open_sides_are_those_of_the_data(shape: Any, data: Any, fed: Any) -> None:
    (one,) = as_fed([Tensor("x", FLOAT, shape)], data)
    assert one.shape == fed


@pytest.mark.parametrize(
    ("inputs", "data", "words"),
    [
        ([IMAGE], SIZE, ["--shapes=x:4x3x240x320"]),
        ([IMAGE], None, []),
        ([Tensor("x", FLOAT, (None, 10))], None, ["--shapes=x:4x10"]),
        ([Tensor("x", FLOAT, (1, 10))], None, []),
        ([IMAGE, Tensor("i", FLOAT, (None, 2))], SIZE, ["--shapes=x:4x3x240x320,i:4x2"]),
        ([Tensor("x:0", FLOAT, (None, 10))], None, []),
        ([Tensor("x", FLOAT, None)], SIZE, []),
    ],
)
def test_the_flag(inputs: list[Tensor], data: Any, words: list[str]) -> None:
    assert shape_words(inputs, data, 4) == words


def test_build_lines_and_infer_dims_have_them() -> None:
    job = job_of(inputs=(IMAGE,), data=SIZE)
    assert "--shapes=x:1x3x240x320" in trtexec_arguments(job)
    assert "infer-dims=3;240;320" in write_deepstream(job).text
    assert "infer-dims" not in write_deepstream(job_of(inputs=(IMAGE,))).text


def test_calibration_remembers_the_shapes_of_models_that_leave_them_open() -> None:
    kind = np.dtype(np.float32)
    data = {"x": np.zeros((4, 3, 6, 8), np.float32)}
    open_sides = open_loader(data, [Input("x", ("N", 3, "H", "W"), kind)], DataOptions(batch=2))
    assert open_sides.facts() == {**open_sides.description, "shapes": {"x": [2, 3, 6, 8]}}
    for shape in ((None, 3, 6, 8), (1, 3, 6, 8)):
        loader = open_loader(data, [Input("x", shape, kind)])
        assert loader.facts() == loader.description
    once = open_loader(({"x": one} for one in [data["x"]]), [Input("x", ("N", 3, "H", "W"), kind)])
    assert once.facts() == once.description


def test_a_largest_batch_is_a_range() -> None:
    words = shape_words([IMAGE, Tensor("i", FLOAT, (1, 2))], SIZE, 1, 8)
    assert words == [f"--{end}Shapes=x:{size}x3x240x320" for end, size in (("min", 1), ("opt", 8), ("max", 8))]
    assert shape_words([Tensor("x", FLOAT, (1, 3, 8, 8))], None, 1, 8) == []
    job = job_of(inputs=(IMAGE,), data=SIZE, batch=8, max_batch=8)
    assert [word for word in trtexec_arguments(job) if "Shapes" in word] == words
    assert "batch-size=8" in write_deepstream(job).text


def test_a_size_that_nobody_knows_is_left_to_fill_in() -> None:
    wide = Tensor("x", FLOAT, (1, 1, 1024, None))
    assert blank_shape_words([wide], None) == ["--shapes=x:1x1x1024xSIZE"]
    assert blank_shape_words([wide, Tensor("i", FLOAT, (None, 2))], None, 4) == ["--shapes=x:1x1x1024xSIZE,i:4x2"]
    assert blank_shape_words([wide], {"shapes": {"x": [1, 1, 1024, 512]}}) == []
    assert blank_shape_words([Tensor("x", FLOAT, (None, 3, 8, 8)), Tensor("y", FLOAT, None)], None) == []
