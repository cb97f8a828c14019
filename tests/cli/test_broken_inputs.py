# SPDX-License-Identifier: Apache-2.0
"""Broken inputs in every verb that reads a model: one line, exit code 2, nothing written, nothing changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.scales import Scale, ScaleTable
from tests.cli.command import contents, refused, run, write_net

Capsys = pytest.CaptureFixture[str]
VERBS = {
    "insert": ["insert", "{model}", "-o", "{folder}/out.onnx"],
    "insert with data": ["insert", "{model}", "--data", "{folder}/d.npz", "-o", "{folder}/out.onnx"],
    "dry run": ["insert", "{model}", "--dry-run"],
    "calibrate": ["calibrate", "{model}", "--data", "{folder}/d.npz", "-o", "{folder}/out.json"],
    "peel": ["peel", "{model}", "--target", "gpu", "--trt-version", "8502", "-o", "{folder}/out.onnx"],
}


def good(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "m.onnx")


def write(folder: Path, model: onnx.ModelProto) -> None:
    (folder / "m.onnx").write_bytes(model.SerializeToString())


def weight(model: onnx.ModelProto, name: str = "w1") -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def external(folder: Path, location: str, length: int | None = None) -> None:
    model = good(folder)
    tensor = weight(model)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    if length is not None:
        tensor.external_data.add(key="length", value=str(length))
    write(folder, model)


def empty(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(b"")


def missing(folder: Path) -> None:
    (folder / "m.onnx").unlink()


def a_folder(folder: Path) -> None:
    (folder / "m.onnx").unlink()
    (folder / "m.onnx").mkdir()


def lfs_pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
    (folder / "m.onnx").write_text(text)


def web_page(folder: Path) -> None:
    (folder / "m.onnx").write_text("\n<!DOCTYPE html><html><body>404</body></html>")


def checkpoint(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(b"PK\x03\x04" + bytes(64))


def random_bytes(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(np.random.default_rng(0).bytes(4096))


def truncated(folder: Path) -> None:
    data = (folder / "m.onnx").read_bytes()
    (folder / "m.onnx").write_bytes(data[: len(data) // 2])


def text(folder: Path) -> None:
    (folder / "m.onnx").write_text("TRT-8502-EntropyCalibration2\nx: 3c010a14\n")


def cycle(folder: Path) -> None:
    model = good(folder)
    model.graph.node[0].input[0] = "r2"
    write(folder, model)


def missing_data(folder: Path) -> None:
    external(folder, "weights.bin")


def data_outside(folder: Path) -> None:
    external(folder, "../../../../../etc/passwd")


def data_at_a_root(folder: Path) -> None:
    external(folder, "/etc/passwd")


def data_behind_a_link(folder: Path) -> None:
    (folder / "w.bin").symlink_to("/etc/passwd")
    external(folder, "w.bin")


def short_data(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(16))
    external(folder, "w.bin", 16)


def nan_weight(folder: Path) -> None:
    model = good(folder)
    value = numpy_helper.to_array(weight(model)).copy()
    value[1, 2, 0, 1] = np.nan
    weight(model).raw_data = value.tobytes()
    write(folder, model)


def inf_weight(folder: Path) -> None:
    model = good(folder)
    value = numpy_helper.to_array(weight(model)).copy()
    value[0, 0, 0, 0] = -np.inf
    weight(model).raw_data = value.tobytes()
    write(folder, model)


def duplicate_outputs(folder: Path) -> None:
    model = good(folder)
    model.graph.node[3].output[0] = "r1"
    write(folder, model)


def unknown_input(folder: Path) -> None:
    model = good(folder)
    model.graph.node[2].input[0] = "nobody"
    write(folder, model)


def no_such_output(folder: Path) -> None:
    model = good(folder)
    model.graph.output[0].name = "nobody"
    write(folder, model)


def short_weight(folder: Path) -> None:
    model = good(folder)
    weight(model).raw_data = weight(model).raw_data[:-4]
    write(folder, model)


def negative_size(folder: Path) -> None:
    model = good(folder)
    weight(model).dims[0] = -4
    write(folder, model)


def no_graph(folder: Path) -> None:
    model = onnx.ModelProto(ir_version=8)
    model.opset_import.append(helper.make_opsetid("", 13))
    write(folder, model)


def opset_of_the_future(folder: Path) -> None:
    model = good(folder)
    model.opset_import[0].version = 9999
    write(folder, model)


BROKEN: dict[Callable[[Path], None], str] = {
    empty: "is empty",
    missing: "does not exist",
    a_folder: "is a folder",
    lfs_pointer: "Git LFS pointer",
    web_page: "web page",
    checkpoint: "zip archive",
    random_bytes: "m.onnx",
    truncated: "cut short",
    text: "calibration cache",
    cycle: "cycle",
    missing_data: "weights.bin",
    data_outside: "passwd",
    data_at_a_root: "passwd",
    data_behind_a_link: "w.bin",
    short_data: "w",
    duplicate_outputs: "r1",
    unknown_input: "nobody",
    no_such_output: "nobody",
    short_weight: "w1",
    negative_size: "w1",
    no_graph: "m.onnx",
    opset_of_the_future: "9999",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_broken_model(capsys: Capsys, tmp_path: Path, damage: Callable[[Path], None], verb: str) -> None:
    write_net(tmp_path)
    damage(tmp_path)
    before = contents(tmp_path)
    words = [word.format(model=tmp_path / "m.onnx", folder=tmp_path) for word in VERBS[verb]]
    refused(run(capsys, *words), BROKEN[damage])
    assert contents(tmp_path) == before


@pytest.mark.parametrize("damage", [nan_weight, inf_weight])
@pytest.mark.parametrize("more", [["--scales", "s.json"], [], ["--data", "d.npz"]], ids=["scales", "alone", "data"])
def test_a_weight_that_is_no_number(
    capsys: Capsys, tmp_path: Path, damage: Callable[[Path], None], more: list[str]
) -> None:
    model = write_net(tmp_path)
    (tmp_path / "s.json").write_text(ScaleTable({n: Scale.of(0.1) for n in ("x", "r1", "r2", "g")}).to_json())
    damage(tmp_path)
    before = contents(tmp_path)
    said = run(capsys, "insert", model, *(str(tmp_path / w) if "." in w else w for w in more))
    refused(said, "w1")
    assert contents(tmp_path) == before


# ---------------------------------------------------------------------- data


def wrong_shape(folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.zeros((4, 4, 8, 9), np.float32))


def wrong_rank(folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.zeros((4, 8), np.float32))


def wrong_name(folder: Path) -> None:
    """Of two arrays none is the input; one alone would do under any name."""
    value = np.ones((4, 4, 8, 8), np.float32)
    np.savez(folder / "d.npz", picture=value, mask=value)


def wrong_type(folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.full((4, 4, 8, 8), "a"))


def pickled(folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.array([{"a": 1}], dtype=object))


def no_samples(folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.zeros((0, 4, 8, 8), np.float32))


def no_arrays(folder: Path) -> None:
    np.savez(folder / "d.npz")


def empty_data(folder: Path) -> None:
    (folder / "d.npz").write_bytes(b"")


def cut_data(folder: Path) -> None:
    data = (folder / "d.npz").read_bytes()
    (folder / "d.npz").write_bytes(data[: len(data) // 2])


def nan_data(folder: Path) -> None:
    value = np.ones((4, 4, 8, 8), np.float32)
    value[2, 1, 0, 0] = np.nan
    np.savez(folder / "d.npz", x=value)


def inf_data(folder: Path) -> None:
    value = np.ones((4, 4, 8, 8), np.float32)
    value[2, 1, 0, 0] = np.inf
    np.savez(folder / "d.npz", x=value)


def zero_data(folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.zeros((4, 4, 8, 8), np.float32))


def empty_folder(folder: Path) -> None:
    (folder / "d.npz").unlink()
    (folder / "d.npz").mkdir()


def pointer_data(folder: Path) -> None:
    lines = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "d.npz").write_bytes(lines)


def lying_header(folder: Path) -> None:
    """An .npy that claims 2^40 values."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 4, 8, 8), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    (folder / "d.npz").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64))


DATA: dict[Callable[[Path], None], str] = {
    wrong_shape: "x",
    wrong_rank: "x",
    wrong_name: "x",
    wrong_type: "x",
    pickled: "d.npz",
    no_samples: "d.npz",
    no_arrays: "d.npz",
    empty_data: "d.npz",
    cut_data: "d.npz",
    nan_data: "NaN",
    inf_data: "Inf",
    zero_data: "zero",
    empty_folder: "d.npz",
    pointer_data: "d.npz",
    lying_header: "d.npz",
}


@pytest.mark.parametrize("verb", ["insert with data", "calibrate"])
@pytest.mark.parametrize("damage", DATA, ids=lambda damage: damage.__name__)
def test_broken_data(capsys: Capsys, tmp_path: Path, damage: Callable[[Path], None], verb: str) -> None:
    pytest.importorskip("onnxruntime")
    write_net(tmp_path)
    damage(tmp_path)
    before = contents(tmp_path)
    words = [word.format(model=tmp_path / "m.onnx", folder=tmp_path) for word in VERBS[verb]]
    if damage is zero_data and verb == "calibrate":  # a fault at a point only: the table says so
        assert run(capsys, *words).code == 0
        assert "is all zero" in (tmp_path / "out.json").read_text()
        return
    refused(run(capsys, *words), DATA[damage])
    assert contents(tmp_path) == before


# ---------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    "table",
    [
        "",
        "not json",
        "[]",
        "{}",
        '{"schema": 2, "tensors": {}}',
        '{"schema": 1, "tensors": []}',
        '{"schema": 1, "tensors": {"x": {}}}',
        '{"schema": 1, "tensors": {"x": {"scale": "zz"}}}',
        '{"schema": 1, "tensors": {"x": {"scale": "00000000"}}}',
        '{"schema": 1, "tensors": {"x": {"scale": "7f800000"}}}',
        '{"schema": 1, "tensors": {"x": {"scale": "7fc00000"}}}',
        '{"schema": 1, "tensors": {"x": {"scale": "bc010a14"}}}',
        '{"schema": 1, "tensors": {"x": {"scale": 0.5}}}',
        '{"schema": 1, "tensors": {"x": {"scale": ["3c010a14", "3c010a14"], "axis": 0}}}',
        '{"schema": 1, "tensors": {"x": {"scale": "3c010a14", "origin": "nowhere"}}}',
    ],
)
def test_broken_tables(capsys: Capsys, tmp_path: Path, table: str) -> None:
    model = write_net(tmp_path)
    (tmp_path / "s.json").write_text(table)
    before = contents(tmp_path)
    refused(run(capsys, "insert", model, "--scales", tmp_path / "s.json"))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "size", "axis"), [("w1", 1, 0), ("w1", 3, 0), ("w1", 5, 0), ("w1", 4, 9), ("x", 4, 1), ("r1", 4, 0)]
)
def test_scales_that_do_not_fit_their_tensor(capsys: Capsys, tmp_path: Path, name: str, size: int, axis: int) -> None:
    model = write_net(tmp_path)
    scales = {n: Scale.of(0.1) for n in ("x", "r1", "r2", "g")} | {name: Scale.of([0.1] * size, axis=axis)}
    (tmp_path / "s.json").write_text(ScaleTable(scales).to_json())
    before = contents(tmp_path)
    refused(run(capsys, "insert", model, "--scales", tmp_path / "s.json"), name)
    assert contents(tmp_path) == before
