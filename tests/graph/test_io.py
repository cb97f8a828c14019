# SPDX-License-Identifier: Apache-2.0
"""Models in and out: every kind of source, the same kind back, whole files only, external data left where they are."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.files import FileSet
from qdqtool.graph import io
from qdqtool.graph.io import give_back, open_model, save_model, serialize
from qdqtool.graph.model_file import is_unread
from qdqtool.graph.tensors import array_of, is_external, read_as


def model(opset: int = 13) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f"""<ir_version: 7, opset_import: ["" : {opset}]>
        g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {{1,2,3,4}}> {{a = MatMul(x, w)  y = Relu(a)}}"""
    )
    made.metadata_props.add(key="k", value="v")
    return made


def written(path: Path, proto: onnx.ModelProto | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((proto or model()).SerializeToString(deterministic=True))
    return path


def with_data(folder: Path, location: str = "data/w.bin") -> Path:
    """A model file whose weight lies in a file below its folder."""
    proto = model()
    weight = proto.graph.initializer[0]
    weight.ClearField("float_data")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "4"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    path = written(folder / "m.onnx", proto)
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    (folder / location).write_bytes(b"head" + np.arange(4, dtype=np.float32).tobytes())
    return path


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_path_is_opened_with_its_folder_and_digest(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx")
    for source in (path, str(path)):
        opened = open_model(source)
        assert (opened.kind, opened.path, opened.folder, opened.name) == ("path", path, tmp_path, str(path))
        assert opened.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert serialize(opened.proto) == serialize(model())


def test_a_proto_is_copied_so_that_edits_stay_ours() -> None:
    source = model()
    opened = open_model(source)
    opened.proto.graph.node[0].name = "edited"
    assert (opened.kind, opened.path, opened.folder, opened.sha256, opened.name) == ("proto", None, None, None, "g")
    assert serialize(source) == serialize(model())


def test_a_gs_graph_goes_in_and_comes_back_with_its_order_and_versions() -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    graph = gs.import_onnx(model(opset=11))
    opened = open_model(graph)
    assert opened.kind == "gs" and [node.op_type for node in opened.proto.graph.node] == ["MatMul", "Relu"]
    assert (opened.proto.ir_version, opened.proto.opset_import[0].version) == (7, 11)
    back = give_back(opened.proto, opened, None)
    assert isinstance(back, gs.Graph) and [node.op for node in back.nodes] == ["MatMul", "Relu"]
    assert [node.op for node in graph.nodes] == ["MatMul", "Relu"]


def test_a_callable_may_return_any_kind_even_another_callable(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx")
    assert open_model(lambda: path).kind == "path"
    assert open_model(lambda: model).kind == "proto"


def test_callables_without_end_are_refused() -> None:
    def again() -> object:
        return again

    with pytest.raises(QdqError, match="callable"):
        open_model(again)  # type: ignore[arg-type]


def test_something_else_is_our_callers_bug() -> None:
    with pytest.raises(TypeError, match=r"not int"):
        open_model(3)  # type: ignore[arg-type]


def test_a_path_does_not_import_graphsurgeon(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx")
    code = f"import sys; from qdqtool.graph.io import open_model; open_model({str(path)!r})"
    code += "; print('onnx_graphsurgeon' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "False\n"


NOT_MODELS = {
    "empty": (b"", "is empty"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS.*git lfs pull"),
    "web page": (b"\n <!DOCTYPE html><html></html>", "is a web page"),
    "web page without doctype": (b"<HTML><body>404</body></html>", "is a web page"),
    "zip": (b"PK\x03\x04rest", "zip archive"),
    "pickle": (b"\x80\x02}q\x00.", "pickle"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "HDF5"),
    "gzip": (b"\x1f\x8b\x08\x00", "gzip"),
    "numpy": (b"\x93NUMPY\x01\x00", "numpy array"),
    "tflite": (b"\x1c\x00\x00\x00TFL3", "TensorFlow Lite"),
    "ort": (b"\x1c\x00\x00\x00ORTM", "onnxruntime's own format"),
    "engine": (b"ftrt\x00\x00", "TensorRT engine"),
    "cache": (b"TRT-8502-EntropyCalibration2\nx: 3c010a14\n", "calibration cache"),
    "text": (b"hello, this is text", "is not ONNX, or is damaged"),
    "noise": (bytes(range(255, 0, -1)), "is not ONNX, or is damaged"),
    "truncated": (model().SerializeToString()[:-20], "is not ONNX, or is damaged"),
    "another protobuf": (b"\x08\x07", "holds no graph"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_MODELS)
def test_what_is_no_model_gets_one_line_that_says_what_it_is(case: str, tmp_path: Path) -> None:
    data, reason = NOT_MODELS[case]
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(QdqError, match=reason) as caught:
        open_model(path)
    line = caught.value.line()
    assert line.startswith(f"{path}: ") and "; " in line and "\n" not in line
    assert caught.value.exit_code == 2 and path.read_bytes() == data


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_a_file_cut_short_anywhere_is_refused_in_one_line(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    data = model().SerializeToString()
    path.write_bytes(data[: len(data) - cut])
    try:
        open_model(path)
    except QdqError as error:
        assert "\n" not in error.line()
    else:  # a cut between the last fields leaves a sound, smaller model: only the opset's or metadata's field is gone
        assert onnx.load_from_string(path.read_bytes()).graph == model().graph


def test_missing_folder_device_and_unreadable_paths(tmp_path: Path) -> None:
    for source, reason in (
        (tmp_path / "gone.onnx", "does not exist"),
        (tmp_path, "is a folder"),
        (Path(os.devnull), "is not a regular file"),
        (written(tmp_path / "m.onnx") / "below", "cannot be read|does not exist"),
        ("nul\0byte.onnx", "cannot be read"),
    ):
        with pytest.raises(QdqError, match=reason):
            open_model(source)


def test_more_than_two_gib_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(QdqError, match=r"larger than 2 GiB.*external data"):
        open_model(path)


def test_saving_more_than_protobuf_holds_is_refused_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "MAX_BYTES", 50)
    with pytest.raises(QdqError, match="larger than 2 GiB"):
        save_model(model(), tmp_path / "out.onnx")
    assert files_below(tmp_path) == {}


@pytest.mark.parametrize("from_file", [False, True])
def test_the_weights_of_a_model_that_one_file_cannot_hold_get_a_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    """`condition` of a model with external data moved what it had edited into the model, and could not write it."""
    values = [np.arange(count, dtype=np.float32) for count in (6000, 10, 5000)]
    made = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["a", "c"], ["s"]), helper.make_node("Add", ["b", "b"], ["t"])],
            "large",
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "st"],
            [onnx.numpy_helper.from_array(value, name) for name, value in zip("abc", values, strict=True)],
        )
    )
    made.doc_string, made.graph.initializer[0].doc_string = "a text", "of a weight"
    onnx.save(made, tmp_path / "m.onnx")
    proto = open_model(tmp_path / "m.onnx").proto if from_file else made
    whole = serialize(proto)
    monkeypatch.setattr(io, "MAX_BYTES", 8000)
    save_model(proto, tmp_path / "out.onnx", folder=tmp_path)
    again = onnx.load(tmp_path / "out.onnx")
    for tensor in again.graph.initializer:
        tensor.ClearField("data_location")  # which onnx says where it read a data file
    assert again.SerializeToString(deterministic=True) == whole, "onnx reads the same model from the two files"
    assert (tmp_path / "out.onnx").stat().st_size < 8000 < (tmp_path / "out.onnx.data").stat().st_size
    found = open_model(tmp_path / "out.onnx")
    for tensor, value in zip(found.proto.graph.initializer, values, strict=True):
        np.testing.assert_array_equal(array_of(tensor, found.folder), value)
    assert [is_external(tensor) for tensor in found.proto.graph.initializer] == [True, False, True]
    assert found.proto.doc_string == "a text" and found.proto.graph.initializer[0].doc_string == "of a weight"
    save_model(found.proto, tmp_path / "below" / "out.onnx", folder=found.folder)
    assert (tmp_path / "below/out.onnx.data").read_bytes() == (tmp_path / "out.onnx.data").read_bytes()


def test_a_data_file_is_no_input_and_takes_no_name_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4000, np.float32), "more"))
    monkeypatch.setattr(io, "MAX_BYTES", 8000)
    (tmp_path / "out.onnx.data").write_bytes(b"mine")
    before = files_below(tmp_path)
    with pytest.raises(QdqError, match=r"out\.onnx\.data"):
        save_model(proto, tmp_path / "out.onnx", inputs=[tmp_path / "out.onnx.data"])
    assert files_below(tmp_path) == before
    first = save_model(proto, tmp_path / "out.onnx")
    again = open_model(first)
    again.proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4000, np.float32), "again"))
    save_model(again.proto, tmp_path / "other" / "out.onnx", folder=again.folder)
    assert {path.name for path in (tmp_path / "other").iterdir()} == {"out.onnx", "out.onnx.data", "out.onnx.data_1"}


def test_load_and_save_gives_the_files_own_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx")
    opened = open_model(path)
    assert save_model(opened.proto, tmp_path / "o.onnx", folder=opened.folder) == tmp_path / "o.onnx"
    assert (tmp_path / "o.onnx").read_bytes() == path.read_bytes()


def test_fields_that_this_onnx_does_not_know_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(serialize(model()) + b"\xf2\x3f\x03abc")  # field 1022, as a later ONNX might define
    assert serialize(open_model(path).proto) == path.read_bytes()


def test_the_input_is_never_overwritten_by_whatever_name(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx")
    (tmp_path / "link.onnx").symlink_to(path)
    (tmp_path / "twin.onnx").hardlink_to(path)
    opened = open_model(path)
    for name in ("m.onnx", "link.onnx", "twin.onnx", "../" + tmp_path.name + "/m.onnx"):
        with pytest.raises(QdqError, match="is the input"):
            give_back(opened.proto, opened, tmp_path / name)
    assert path.read_bytes() == serialize(model())


def test_a_result_comes_back_as_the_kind_that_went_in(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx")
    opened = open_model(path)
    assert give_back(opened.proto, opened, tmp_path / "o.onnx") == tmp_path / "o.onnx"
    with pytest.raises(QdqError, match="no output file"):
        give_back(opened.proto, opened, None)
    opened = open_model(model())
    assert give_back(opened.proto, opened, None) is opened.proto
    assert give_back(opened.proto, opened, tmp_path / "p.onnx") is opened.proto
    assert (tmp_path / "p.onnx").read_bytes() == serialize(model())


def test_what_lives_in_memory_holds_the_weights_of_a_file_that_it_was_made_from(tmp_path: Path) -> None:
    """As `peel --source FILE` of a ModelProto: what other programs read must not lie in a file known here alone."""
    proto = model()
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(8192, dtype=np.float32), "large"))
    onnx.save(proto, tmp_path / "source.onnx")
    source, opened = open_model(tmp_path / "source.onnx"), open_model(model())
    assert is_unread(source.proto.graph.initializer[-1])
    back = give_back(source.proto, replace(source, kind=opened.kind, path=opened.path), None)
    assert back.SerializeToString(deterministic=True) == serialize(proto)


def test_into_its_own_folder_nothing_is_copied(tmp_path: Path) -> None:
    path = with_data(tmp_path)
    before = files_below(tmp_path)
    opened = open_model(path)
    save_model(opened.proto, tmp_path / "o.onnx", folder=opened.folder, inputs=[path])
    assert files_below(tmp_path) == {**before, "o.onnx": before["m.onnx"]}


def test_into_another_folder_the_data_go_along(tmp_path: Path) -> None:
    path = with_data(tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    opened = open_model(path)
    for _ in range(2):  # the second time the identical file is there
        save_model(opened.proto, out / "m.onnx", folder=opened.folder, inputs=[path])
        assert files_below(out) == files_below(tmp_path / "in")
    assert serialize(open_model(out / "m.onnx").proto) == serialize(opened.proto)


@pytest.mark.parametrize("other", [b"other", b"head" + bytes(16)], ids=["shorter", "as long"])
def test_a_different_data_file_in_the_way_is_refused_and_nothing_written(other: bytes, tmp_path: Path) -> None:
    path = with_data(tmp_path / "in")
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "data" / "w.bin").write_bytes(other)
    opened = open_model(path)
    with pytest.raises(QdqError, match=r"w\.bin, .*different one"):
        save_model(opened.proto, tmp_path / "out" / "m.onnx", folder=opened.folder)
    assert files_below(tmp_path / "out") == {"data/w.bin": other}


def test_the_output_may_not_be_a_data_file(tmp_path: Path) -> None:
    opened = open_model(with_data(tmp_path, "w.bin"))
    before = files_below(tmp_path)
    with pytest.raises(QdqError, match="is the input"):
        save_model(opened.proto, tmp_path / "w.bin", folder=opened.folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(QdqError, match=r"is the input|never overwritten"):
        save_model(opened.proto, tmp_path / "out" / "w.bin", folder=opened.folder)
    assert files_below(tmp_path) == before


def test_external_data_of_an_unknown_folder_cannot_be_saved_and_the_tensor_is_named(tmp_path: Path) -> None:
    opened = open_model(onnx.load(with_data(tmp_path / "in"), load_external_data=False))
    with pytest.raises(QdqError, match=r"tensor w .*data/w\.bin.*not known"):
        give_back(opened.proto, opened, tmp_path / "o.onnx")
    assert not (tmp_path / "o.onnx").exists()


def test_a_tensor_that_is_read_in_another_type_than_its_file_has_is_never_saved(tmp_path: Path) -> None:
    opened = open_model(with_data(tmp_path / "in"))
    read_as(opened.proto.graph.initializer[0], TensorProto.DOUBLE)
    with pytest.raises(RuntimeError, match=r"^w .*another type"):
        save_model(opened.proto, tmp_path / "o.onnx", folder=opened.folder)
    assert not (tmp_path / "o.onnx").exists()


def test_a_data_file_that_vanished_since_is_named(tmp_path: Path) -> None:
    opened = open_model(with_data(tmp_path / "in"))
    (tmp_path / "in" / "data" / "w.bin").unlink()
    with pytest.raises(QdqError, match=r"tensor w .*w\.bin"):
        save_model(opened.proto, tmp_path / "o.onnx", folder=opened.folder)
    assert not (tmp_path / "o.onnx").exists()


def test_a_data_file_that_the_caller_writes_is_neither_looked_for_nor_copied(tmp_path: Path) -> None:
    made = model()
    tensor = made.graph.initializer.add(name="new", data_type=onnx.TensorProto.FLOAT16, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "n.data"), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    with FileSet() as files:
        with files.open(tmp_path / "n.data") as file:
            file.write(bytes(8))
        save_model(made, tmp_path / "n.onnx", folder=tmp_path, files=files, written={"n.data"})
    assert {path.name for path in tmp_path.iterdir()} == {"n.data", "n.onnx"}
    with pytest.raises(QdqError, match=r"n\.data"):
        save_model(made, tmp_path / "m.onnx", folder=tmp_path / "elsewhere")
