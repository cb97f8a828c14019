# SPDX-License-Identifier: Apache-2.0
"""Weights as arrays: every storage form, external data mapped, maxima per channel in blocks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph import tensors
from qdqtool.graph.tensors import (
    array_of,
    bytes_needed,
    channel_amax,
    constant_value,
    external_range,
    read_as,
    stored_array,
    stored_type,
)


def external(folder: Path, values: np.ndarray, at: int = 0, **entries: object) -> TensorProto:
    """A tensor whose values lie in w.bin, `at` bytes into it."""
    (folder / "w.bin").write_bytes(b"\xee" * at + values.tobytes() + b"\xee" * 8)
    tensor = TensorProto(name="w", dims=values.shape, data_location=TensorProto.EXTERNAL)
    tensor.data_type = helper.np_dtype_to_tensor_dtype(values.dtype)
    for key, value in {"location": "w.bin", "offset": at, "length": values.nbytes, **entries}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("raw", [True, False])
def test_inline_values_come_back(dtype: type, raw: bool) -> None:
    values = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    data = values.tobytes() if raw else values.ravel().tolist()
    tensor = helper.make_tensor("w", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [2, 3], data, raw=raw)
    found = array_of(tensor, None)
    np.testing.assert_array_equal(found, values)
    assert found.dtype == dtype and not found.flags.writeable


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4"])
def test_types_that_numpy_lacks_come_back_inline_and_external(kind: str, tmp_path: Path) -> None:
    inline = helper.make_tensor("w", TensorProto.DataType.Value(kind), [3], [1.0, 2.0, 4.0])
    assert array_of(inline, None).astype(np.float32).tolist() == [1, 2, 4]
    values = array_of(inline, None)
    raw = numpy_helper.from_array(values).raw_data
    (tmp_path / "w.bin").write_bytes(b"??" + raw)
    tensor = TensorProto(name="w", data_type=inline.data_type, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "2"), ("length", str(len(raw)))):
        tensor.external_data.add(key=key, value=value)
    assert len(raw) == bytes_needed(tensor)
    assert array_of(tensor, tmp_path).astype(np.float32).tolist() == [1, 2, 4]
    assert channel_amax(tensor, tmp_path, 0).tolist() == [1, 2, 4]


def test_external_values_are_mapped_at_their_offset(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = array_of(external(tmp_path, values, at=12), tmp_path)
    assert isinstance(found, np.memmap) and not found.flags.writeable
    np.testing.assert_array_equal(found, values)


def test_offset_and_length_may_be_left_out(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.int64)
    np.testing.assert_array_equal(array_of(external(tmp_path, values, offset=None, length=None), tmp_path), values)


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    empty = external(tmp_path, np.zeros((0, 3), np.float32))
    assert array_of(empty, tmp_path).shape == (0, 3)
    assert channel_amax(empty, tmp_path, 1).tolist() == [0, 0, 0] and channel_amax(empty, tmp_path, 0).shape == (0,)
    assert channel_amax(numpy_helper.from_array(np.array(-2.5, np.float32)), None, None).tolist() == 2.5


def test_strings_come_back() -> None:
    assert array_of(helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"b"]), None).tolist() == ["a", "b"]


def test_data_beside_a_model_of_unknown_folder_are_refused_by_name() -> None:
    tensor = TensorProto(name="conv.weight", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(QdqError, match=r"conv\.weight .*weights\.bin.*as a path"):
        array_of(tensor, None)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"location": "../w.bin"}, "outside the model's folder"),
        ({"location": "/etc/hosts"}, "outside the model's folder"),
        ({"location": "C:\\w.bin"}, "outside the model's folder"),
        ({"location": "a\\..\\w.bin"}, "outside the model's folder"),
        ({"location": ""}, "names no file"),
        ({"location": None}, "names no file"),
        ({"location": "gone.bin"}, "cannot be read"),
        ({"location": "folder"}, "not a regular file"),
        ({"location": "link.bin"}, "a link out of"),
        ({"location": "hard.bin"}, "hard links"),
        ({"offset": "-4"}, "external offset '-4'"),
        ({"length": "1e3"}, "external length '1e3'"),
        ({"length": 20}, "needs 16 bytes, its external data have length 20"),
        ({"offset": 4000}, "ends at byte 4016 of w.bin, which has 24"),
        ({"offset": "9" * 19}, "ends at byte"),
    ],
)
def test_external_data_that_cannot_be_trusted_are_refused(
    entries: dict[str, object], reason: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.bin"
    outside.write_bytes(bytes(16))
    (tmp_path / "link.bin").symlink_to(outside)
    (tmp_path / "folder").mkdir()
    tensor = external(tmp_path, np.ones(4, np.float32), **entries)
    (tmp_path / "twin.bin").write_bytes(bytes(16))
    os.link(tmp_path / "twin.bin", tmp_path / "hard.bin")
    with pytest.raises(QdqError, match=reason) as caught:
        external_range(tensor, tmp_path, "m.onnx")
    assert "\n" not in caught.value.line() and "tensor w" in caught.value.line()


def test_a_link_that_stays_inside_the_folder_is_followed(tmp_path: Path) -> None:
    tensor = external(tmp_path, np.ones(4, np.float32), location="also.bin")
    (tmp_path / "also.bin").symlink_to("w.bin")
    assert array_of(tensor, tmp_path).tolist() == [1, 1, 1, 1]


def test_a_file_that_is_moved_out_of_the_folder_is_asked_for_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensor, outside = external(tmp_path, np.ones(4, np.float32)), tmp_path_factory.mktemp("outside") / "w.bin"
    assert array_of(tensor, tmp_path).tolist() == [1, 1, 1, 1]
    (tmp_path / "w.bin").rename(outside)
    (tmp_path / "w.bin").symlink_to(outside)
    with pytest.raises(QdqError, match="a link out"):
        array_of(tensor, tmp_path)


@pytest.mark.parametrize("block", [4, 40, 1 << 20])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -4, None])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int8])
def test_the_largest_magnitude_per_channel_whatever_the_blocks(
    axis: int | None, block: int, dtype: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "BLOCK_BYTES", block)
    monkeypatch.setattr(tensors, "_SMALL_BYTES", block)  # float32 is taken at once only where it fits in one block
    values = (np.random.default_rng(0).standard_normal((3, 4, 2, 5)) * 50).astype(dtype)
    values.flat[7] = -128
    others = tuple(i for i in range(4) if axis is None or i != axis % 4)
    expected = np.abs(values.astype(np.float64)).max(axis=others).astype(np.float32)
    for tensor, folder in ((numpy_helper.from_array(values, "w"), None), (external(tmp_path, values, 4), tmp_path)):
        found = channel_amax(tensor, folder, axis)
        assert found.dtype == np.float32 and found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("axis", "named"), [(0, "w.*in channel 1"), (1, "w.*in channel 2"), (None, "w: the weight")])
@pytest.mark.parametrize("small", [0, 1 << 20])
def test_a_weight_that_is_not_finite_is_refused_with_its_channel(
    bad: float, axis: int | None, named: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_SMALL_BYTES", small)
    values = np.ones((2, 3), np.float32)
    values[1, 2] = bad
    with pytest.raises(QdqError, match=named):
        channel_amax(numpy_helper.from_array(values, "w"), None, axis)


def test_a_double_beyond_float32_is_refused() -> None:
    with pytest.raises(QdqError, match="infinity"):
        channel_amax(numpy_helper.from_array(np.array([1e300]), "w"), None, None)


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_is_not_there_is_refused(axis: int) -> None:
    with pytest.raises(QdqError, match=rf"no axis {axis}, its shape is \[2, 3\]"):
        channel_amax(numpy_helper.from_array(np.ones((2, 3), np.float32), "w"), None, axis)


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


GROWTH = """
import sys
from pathlib import Path
import numpy as np
from onnx import TensorProto
from qdqtool.graph.tensors import channel_amax
from tests.graph.test_tensors import anonymous_bytes

folder, axis = Path(sys.argv[1]), None if sys.argv[2] == "None" else int(sys.argv[2])
tensor = TensorProto.FromString((folder / "tensor.pb").read_bytes())
before = anonymous_bytes()
amax = channel_amax(tensor, folder, axis)
print(anonymous_bytes() - before, *np.flatnonzero(amax), amax.max())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux to tell anonymous from mapped memory")
@pytest.mark.parametrize("megabytes", [96, pytest.param(1000, marks=pytest.mark.slow)], ids=["in the suite", "1 GB"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_large_external_weight_is_never_held(megabytes: int, axis: int | None, tmp_path: Path) -> None:
    """A sparse file stands for the weight: the same bytes are read, few are stored."""
    rows = megabytes * 1000
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 1024)
        file.seek((rows // 2 * 256 + 5) * 4)
        file.write(np.float32(-3.5).tobytes())
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 256], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "tensor.pb").write_bytes(tensor.SerializeToString())
    child = [sys.executable, "-c", GROWTH, str(tmp_path), str(axis)]  # what other tests left of the heap does not count
    said = subprocess.run(child, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    grown, *found = said.stdout.split()
    assert int(grown) < 40 << 20
    assert found == [str({0: rows // 2, 1: 5, None: 0}[axis]), "3.5"]


def test_an_external_tensor_is_read_in_another_type_than_its_file_holds(tmp_path: Path) -> None:
    values = np.linspace(-3, 3, 24).astype(np.float16).reshape(2, 3, 4)
    tensor = external(tmp_path, values, at=4)
    read_as(tensor, TensorProto.FLOAT)
    assert (tensor.data_type, stored_type(tensor), bytes_needed(tensor)) == (TensorProto.FLOAT, TensorProto.FLOAT16, 96)
    assert external_range(tensor, tmp_path, "m").length == 48
    found = array_of(tensor, tmp_path)
    assert found.dtype == np.float32 and not found.flags.writeable
    np.testing.assert_array_equal(found, values.astype(np.float32))
    assert isinstance(stored_array(tensor, tmp_path), np.memmap)
    np.testing.assert_array_equal(channel_amax(tensor, tmp_path, 2), np.abs(values).max(axis=(0, 1)))
    read_as(tensor, TensorProto.FLOAT)
    assert stored_type(tensor) == TensorProto.FLOAT16 and len(tensor.external_data) == 4
    read_as(tensor, TensorProto.FLOAT16)  # back: no entry of ours is left
    assert stored_type(tensor) == tensor.data_type and len(tensor.external_data) == 3


@pytest.mark.parametrize("value", ["not a number", "99", "22", "-1", ""])
def test_an_entry_of_another_hand_does_not_change_the_type(value: str, tmp_path: Path) -> None:
    tensor = external(tmp_path, np.ones(3, np.float32))
    tensor.external_data.add(key="qdqtool.stored_type", value=value)
    assert stored_type(tensor) == TensorProto.FLOAT and array_of(tensor, tmp_path).tolist() == [1, 1, 1]


def test_a_constant_node_without_a_tensor_has_no_value() -> None:
    node = helper.make_node("Constant", [], ["c"], value=TensorProto())
    assert constant_value(node, None) is None


def test_a_function_named_constant_may_have_attributes_of_any_type() -> None:
    node = helper.make_node("Constant", [], ["c"], value_float="no number")
    assert constant_value(node, None) is None
