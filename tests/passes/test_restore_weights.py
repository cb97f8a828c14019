# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Changed weights back into the source model, and nothing but them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.passes.restore_weights import restore_source
from tests.graphs import model_of

TEXT = "g (float[1,2] x) => (float[1,2] z) <float[2,2] w = {1,2,3,4}, float[2] b = {5,6}> { c = MatMul(x, w) z = Add(c, b) }"


def with_weight(name: str, value: np.ndarray) -> onnx.ModelProto:
    model = model_of(TEXT)
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(value, name))
    return model


def test_a_changed_weight_is_written_and_named_and_the_rest_keeps_its_bytes() -> None:
    source, value = model_of(TEXT), np.array([7, 8], np.float32)
    source.graph.node[0].doc_string = "theirs"
    before = onnx.ModelProto.FromString(source.SerializeToString())
    assert restore_source(Model(source), Model(with_weight("b", value))) == ["b"]
    assert onnx.numpy_helper.to_array(source.graph.initializer[1]).tolist() == [7, 8]
    source.graph.initializer[1].CopyFrom(before.graph.initializer[1])
    assert source.SerializeToString() == before.SerializeToString()


def test_a_weight_in_a_constant_node_is_written_too_under_the_name_of_its_tensor() -> None:
    text = "g (float[1,2] x) => (float[1,2] z) {{ b = Constant<value = float[2] inner {{{}}}>() z = Add(x, b) }}"
    source = model_of(text.format("5,6"))
    assert restore_source(Model(source), Model(model_of(text.format("5,6")))) == []
    assert restore_source(Model(source), Model(model_of(text.format("7,8")))) == ["b"]
    assert source.graph.node[0].attribute[0].t.name == "inner"
    assert onnx.numpy_helper.to_array(source.graph.node[0].attribute[0].t).tolist() == [7, 8]


def test_a_scalar_stays_one() -> None:
    source, changed = (
        model_of(f"g (float[2] x) => (float[2] z) <float k = {{{k}}}> {{ z = Mul(x, k) }}") for k in "23"
    )
    assert restore_source(Model(source), Model(changed)) == ["k"]
    assert list(source.graph.initializer[0].dims) == []


def test_the_same_weights_change_nothing_however_they_are_stored() -> None:
    source = model_of(TEXT)  # the text's values are in float_data, ours in raw_data
    before = source.SerializeToString()
    same = with_weight("b", np.array([5, 6], np.float32))
    assert same.graph.initializer[1].HasField("raw_data") and not source.graph.initializer[1].HasField("raw_data")
    assert restore_source(Model(source), Model(same)) == []
    assert source.SerializeToString() == before


def test_a_difference_in_the_sign_of_zero_or_in_nan_bits_is_one_or_none_by_bits() -> None:
    source = with_weight("b", np.array([0.0, np.nan], np.float32))
    assert restore_source(Model(source), Model(with_weight("b", np.array([0.0, np.nan], np.float32)))) == []
    assert restore_source(Model(source), Model(with_weight("b", np.array([-0.0, np.nan], np.float32)))) == ["b"]


def test_initializers_that_only_one_has_stay() -> None:
    source, peeled = model_of(TEXT), model_of(TEXT)
    del source.graph.initializer[1]
    peeled.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "new"))
    before = source.SerializeToString()
    assert restore_source(Model(source), Model(peeled)) == []
    assert source.SerializeToString() == before


@pytest.mark.parametrize("value", [np.zeros(3, np.float32), np.zeros(2, np.float16), np.zeros((1, 2), np.float32)])
def test_another_shape_or_type_means_another_model(value: np.ndarray) -> None:
    with pytest.raises(QdqError, match=r"^b: .*shape or type"):
        restore_source(Model(model_of(TEXT)), Model(with_weight("b", value)))


def test_external_weights_are_compared_by_value(tmp_path: Path) -> None:
    source, peeled = model_of(TEXT), model_of(TEXT)
    for folder, value in (("a", [5, 6]), ("b", [5, 9])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data").write_bytes(np.array(value, "<f4").tobytes())
    for model in (source, peeled):
        tensor = model.graph.initializer[1]
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="data")
    tensor = peeled.graph.initializer[1]
    tensor.external_data.add(key="length", value="8")
    assert restore_source(Model(source, tmp_path / "a"), Model(peeled, tmp_path / "a")) == []
    assert restore_source(Model(source, tmp_path / "a"), Model(peeled, tmp_path / "b")) == ["b"]
    assert onnx.numpy_helper.to_array(source.graph.initializer[1]).tolist() == [5, 9]


def test_external_tensors_whose_entries_are_alike_but_lie_in_two_folders_are_compared(tmp_path: Path) -> None:
    source = model_of(TEXT)
    tensor = source.graph.initializer[1]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="data")
    peeled = onnx.ModelProto.FromString(source.SerializeToString())
    for folder, value in (("a", [5, 6]), ("b", [5, 9])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data").write_bytes(np.array(value, "<f4").tobytes())
    assert restore_source(Model(source, tmp_path / "a"), Model(peeled, tmp_path / "b")) == ["b"]
