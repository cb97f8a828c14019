# SPDX-License-Identifier: Apache-2.0
"""Large weights stay in the model's file, are read as they stand there, and never come from any other file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor
from qdqtool.graph.io import open_model, save_model, serialize, sha256_of_model
from qdqtool.graph.model_bytes import ModelBytes, size_of, whole_model
from qdqtool.graph.model_file import is_unread, parse_file, whole
from qdqtool.graph.tensors import array_of, is_external
from qdqtool.graph.view import GraphView
from tests.graphs import SMALL_NET, model_of

LARGE = 8192  # float32 values, twice the least that stays in the file


def weight(name: str, count: int = LARGE) -> TensorProto:
    """Values that nobody guesses."""
    return numpy_helper.from_array(np.random.default_rng(count).normal(size=count).astype(np.float32), name)


def model(*tensors: TensorProto) -> onnx.ModelProto:
    """A small network that also holds these weights."""
    made = model_of(SMALL_NET)
    made.graph.initializer.extend(tensors)
    return made


def saved(path: Path, made: onnx.ModelProto, behind: bytes = b"") -> Path:
    """The file of a model, with bytes after it."""
    path.write_bytes(made.SerializeToString(deterministic=True) + behind)
    return path


def unread(proto: onnx.ModelProto) -> list[str]:
    """The weights that were left in the file."""
    return [tensor.name for tensor in proto.graph.initializer if is_unread(tensor)]


def test_large_weights_stay_in_the_file_and_small_ones_do_not(tmp_path: Path) -> None:
    given = model(weight("a"), weight("small", 100), weight("b", LARGE + 1))
    opened = open_model(saved(tmp_path / "m.onnx", given))
    assert unread(opened.proto) == ["a", "b"]
    assert opened.proto.ByteSize() < given.ByteSize() / 4
    assert abs(size_of(opened.proto) - given.ByteSize()) < 1000
    assert opened.files == (tmp_path / "m.onnx",)
    for read, tensor in zip(opened.proto.graph.initializer, given.graph.initializer, strict=True):
        assert not is_external(read)
        np.testing.assert_array_equal(array_of(read, None), numpy_helper.to_array(tensor), strict=True)
    assert whole_model(opened.proto) == given


def test_it_is_written_as_it_stands_in_the_file(tmp_path: Path) -> None:
    documented = weight("b")
    documented.doc_string = "which field comes after the bytes"
    documented.metadata_props.add(key="a", value="b")
    opened = open_model(saved(tmp_path / "m.onnx", model(weight("a"), documented, weight("c", 3))))
    made = ModelBytes.of(opened.proto)
    assert made is not None and made.size == (tmp_path / "m.onnx").stat().st_size
    assert b"".join(made.pieces()) == serialize(opened.proto) == (tmp_path / "m.onnx").read_bytes()
    save_model(opened.proto, tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()


def test_the_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    opened = open_model(saved(tmp_path / "m.onnx", model(weight("a"), weight("b"))))
    assert sha256_of_model(opened.proto) == opened.sha256 == hashlib.sha256(serialize(opened.proto)).hexdigest()


def test_fields_that_nobody_knows_stay(tmp_path: Path) -> None:
    odd = weight("a")
    odd.MergeFromString(b"\xfa\x3f\x01x")
    path = saved(tmp_path / "m.onnx", model(odd, weight("b")), b"\xf2\x3f\x03abc")
    opened = open_model(path)
    assert unread(opened.proto) == ["a", "b"]
    assert serialize(opened.proto) == path.read_bytes()


def test_an_edit_takes_the_place_of_the_bytes(tmp_path: Path) -> None:
    opened = open_model(saved(tmp_path / "m.onnx", model(weight("a"), weight("b"))))
    view = GraphView(opened.proto.graph)
    editor = Editor(view)
    editor.set_constant("a", np.ones(LARGE, np.float32))
    editor.commit()
    written = onnx.load(save_model(opened.proto, tmp_path / "o.onnx"))
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    assert (values["a"] == 1).all()
    np.testing.assert_array_equal(values["b"], numpy_helper.to_array(weight("b")))


@pytest.mark.parametrize(
    ("kind", "bits"),
    [(TensorProto.BFLOAT16, 16), (TensorProto.INT4, 4), (TensorProto.FLOAT8E4M3FN, 8), (TensorProto.BOOL, 8)],
)
def test_types_that_numpy_lacks(tmp_path: Path, kind: int, bits: int) -> None:
    data = bytes(place % 2 for place in range(4 * LARGE * bits // 8))
    tensor = onnx.helper.make_tensor("raw", kind, [4 * LARGE], data, raw=True)
    opened = open_model(saved(tmp_path / "m.onnx", model(tensor)))
    assert unread(opened.proto) == ["raw"]
    got, asked = array_of(opened.proto.graph.initializer[-1], None), numpy_helper.to_array(tensor)
    assert got.dtype == asked.dtype and got.shape == asked.shape and got.tobytes() == asked.tobytes()


def test_what_is_stored_in_another_way_is_parsed(tmp_path: Path) -> None:
    floats = onnx.helper.make_tensor("floats", TensorProto.FLOAT, [LARGE], np.arange(LARGE, dtype=np.float32))
    opened = open_model(saved(tmp_path / "m.onnx", model(floats)))
    assert unread(opened.proto) == []


def test_a_graph_that_comes_twice_is_left_to_protobuf(tmp_path: Path) -> None:
    given = model(weight("a"))
    more = onnx.ModelProto(graph=onnx.GraphProto(doc_string="more"))
    merged = open_model(saved(tmp_path / "m.onnx", given, more.SerializeToString())).proto
    given.graph.doc_string = "more"
    assert unread(merged) == [] and merged == given


def test_a_weight_that_does_not_fill_its_shape_is_refused(tmp_path: Path) -> None:
    short = weight("a")
    short.dims[:] = [LARGE + 1]
    path = saved(tmp_path / "m.onnx", model(short))
    with pytest.raises(QdqError, match=rf"tensor a .* {4 * LARGE + 4} bytes .* {4 * LARGE};"):
        open_model(path)


def test_a_file_that_is_changed_or_gone_is_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", model(weight("a")))
    opened = open_model(path)
    saved(tmp_path / "other.onnx", model(weight("a"))).replace(path)
    with pytest.raises(QdqError, match=r"m.onnx: was changed"):
        save_model(opened.proto, tmp_path / "o.onnx")
    path.unlink()
    with pytest.raises(QdqError, match=r"m.onnx: .*any more"):
        serialize(opened.proto)
    assert list(tmp_path.iterdir()) == []


def test_no_model_says_itself_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(4 * LARGE))
    hostile = weight("a")
    hostile.ClearField("raw_data")
    hostile.data_location = TensorProto.EXTERNAL
    for key, value in (("qdqtool.model_file", str(tmp_path / "secret")), ("offset", "0"), ("length", str(4 * LARGE))):
        hostile.external_data.add(key=key, value=value)
    assert not is_unread(hostile) and whole(hostile) is hostile
    for source in (model(hostile), saved(tmp_path / "m.onnx", model(hostile, weight("b")))):
        with pytest.raises(QdqError, match="names no file"):
            open_model(source)


def test_a_weight_that_left_the_main_graph_is_not_written_as_a_reference(tmp_path: Path) -> None:
    opened = open_model(saved(tmp_path / "m.onnx", model(weight("a"))))
    node = onnx.helper.make_node("Constant", [], ["k"], value=opened.proto.graph.initializer[-1])
    opened.proto.graph.node.append(node)
    with pytest.raises(RuntimeError, match="main graph's"):
        save_model(opened.proto, tmp_path / "o.onnx")


@given(cut=st.integers(0, 70_000), byte=st.integers(0, 255), at=st.integers(0, 70_000))
def test_damaged_files_are_parsed_as_protobuf_parses_them(
    tmp_path_factory: pytest.TempPathFactory, cut: int, byte: int, at: int
) -> None:
    data = bytearray(model(weight("a"), weight("b", 5000)).SerializeToString())
    data[at % len(data)] = byte
    del data[max(1, cut) :]
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    path.write_bytes(data)
    asked = onnx.ModelProto()
    try:
        asked.ParseFromString(bytes(data))
    except Exception as error:  # DecodeError
        with path.open("rb") as file, pytest.raises(type(error)):
            parse_file(file, path)
        return
    with path.open("rb") as file:
        got = parse_file(file, path)
    assert whole_model(got).SerializeToString(deterministic=True) == asked.SerializeToString(deterministic=True)
