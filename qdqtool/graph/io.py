# SPDX-License-Identifier: Apache-2.0
"""The only way in and out for models: a path, a ModelProto, a gs.Graph or a callable in, the same kind out.

Large weights are read from the file when they are asked for (`model_file.py`). External data stay where they are: they
are never loaded, and copied only where the model moves to another folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import onnx
from google.protobuf.message import DecodeError, EncodeError

from qdqtool.display import ModelT as ModelT
from qdqtool.errors import QdqError
from qdqtool.files import FileSet, joined, refuse_overwrite
from qdqtool.graph.data_file import WithDataFile
from qdqtool.graph.model import Kind, Model
from qdqtool.graph.model_bytes import ModelBytes, whole_model
from qdqtool.graph.model_file import FileVersion, parse_file
from qdqtool.graph.tensors import external_range, is_external, location_of, stored_type
from qdqtool.graph.validate import check_structure, tensors_of

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

ModelSource: TypeAlias = Union[str, "os.PathLike[str]", onnx.ModelProto, "gs.Graph", Callable[[], "ModelSource"]]
MAX_BYTES = (1 << 31) - 1  # protobuf's limit for one message
_MAX_CALLS = 8
_CHUNK = 1 << 20
_EXPORT = "give an .onnx file"
# What people hand in by mistake: the bytes at an offset, and what they are a sign of.
_OTHER_FORMATS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "is a Git LFS pointer, not the model", "run git lfs pull"),
    (0, b"PK\x03\x04", "is a zip archive (perhaps a PyTorch checkpoint), not ONNX", "export it to ONNX first"),
    (0, b"\x80\x02", "is a Python pickle, not ONNX", "export it to ONNX first"),
    (0, b"\x89HDF", "is an HDF5 file (perhaps Keras), not ONNX", "export it to ONNX first"),
    (0, b"\x1f\x8b", "is gzip-compressed", "unpack it first"),
    (0, b"\x93NUMPY", "is a numpy array, not a model", _EXPORT),
    (
        0,
        b"ftrt",
        "is a TensorRT engine, which cannot be turned back into a model",
        "give the .onnx file it was built from",
    ),
    (0, b"TRT-", "is a calibration cache, not a model", "give the .onnx file it belongs to"),
    (4, b"TFL3", "is a TensorFlow Lite model, not ONNX", "convert it to ONNX first"),
    (4, b"ORTM", "is in onnxruntime's own format, not ONNX", "give the .onnx file it was made from"),
)


def open_model(source: ModelSource) -> Model:
    """Open a model of any kind; the caller's object and the file are never changed.

    Raises:
        QdqError: the file is missing, unreadable, too large, not ONNX or damaged, or the model does not hang together
            (see `guard.check_structure`).
        TypeError: `source` is none of these kinds.
    """
    calls = 0
    while callable(source) and not isinstance(source, onnx.ModelProto) and not _is_gs_graph(source):
        if calls == _MAX_CALLS:
            raise QdqError("model", f"is a callable that returned callables {_MAX_CALLS} times", "return a model")
        source, calls = source(), calls + 1
    if isinstance(source, (str, os.PathLike)):
        return _open_path(Path(source))
    if isinstance(source, onnx.ModelProto):
        return _checked(copy_of(source), "proto")
    if _is_gs_graph(source):
        return _checked(_from_gs(source), "gs")
    raise TypeError(f"a model is a path, an onnx.ModelProto, a gs.Graph or a callable, not {type(source).__name__}")


def copy_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that may be edited."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _checked(proto: onnx.ModelProto, kind: Kind) -> Model:
    opened = Model(proto, None, kind)
    check_structure(proto, opened.name, None)
    return opened


def _is_gs_graph(source: object) -> bool:
    """Whether this is a gs.Graph, found out without importing onnx-graphsurgeon for those who have none."""
    return any(
        cls.__module__.startswith("onnx_graphsurgeon") and cls.__name__ == "Graph" for cls in type(source).__mro__
    )


def _from_gs(graph: Any) -> onnx.ModelProto:
    import onnx_graphsurgeon as gs

    proto: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    return proto


def _open_path(path: Path) -> Model:
    try:
        proto, version = _read(path)
    except DecodeError:
        raise QdqError(path, "is not ONNX, or is damaged or cut short", "export or copy it again") from None
    check_structure(proto, path, path.parent)
    return Model(proto, path.parent, "path", path, version)


def _read(path: Path) -> tuple[onnx.ModelProto, FileVersion]:
    """The model of a file, its large weights left there, and which file that is."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise QdqError(path, "is a folder, not a model", _EXPORT)
        if not stat.S_ISREG(status.st_mode):
            raise QdqError(path, "is not a regular file", _EXPORT)
        if status.st_size > MAX_BYTES:
            raise QdqError(path, "is larger than 2 GiB, which ONNX cannot be", "export it with external data")
        with path.open("rb") as file:
            _refuse_other_formats(file.read(_CHUNK), path)
            file.seek(0)
            return parse_file(file, path), FileVersion.of(path, os.fstat(file.fileno()))
    except FileNotFoundError:
        raise QdqError(path, "does not exist", "check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise QdqError(path, f"cannot be read ({reason})", "check the path and its permissions") from None


def _refuse_other_formats(data: bytes, path: Path) -> None:
    if not data:
        raise QdqError(path, "is empty", "export or copy it again")
    for offset, magic, what, todo in _OTHER_FORMATS:
        if data.startswith(magic, offset):
            raise QdqError(path, what, todo)
    if data[:256].lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise QdqError(path, "is a web page, not a model", "download the file itself")


def serialize(proto: onnx.ModelProto) -> bytes:
    """The model's bytes, the same for the same model each time.

    Raises:
        QdqError: they would be more than the 2 GiB that protobuf can hold.
    """
    try:
        data: bytes = whole_model(proto).SerializeToString(deterministic=True)
    except (EncodeError, ValueError):
        raise _too_large(proto) from None
    if len(data) > MAX_BYTES:
        raise _too_large(proto)
    return data


def sha256_of_model(proto: onnx.ModelProto) -> str:
    """The digest of what `serialize` gives, as 64 hexadecimal digits; one weight is in memory at a time.

    Raises:
        QdqError: see `serialize`.
    """
    digest = hashlib.sha256()
    for piece in _pieces(proto):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(proto: onnx.ModelProto) -> Iterable[bytes]:
    """What `serialize` gives, in pieces that are made as they are taken."""
    try:
        made = ModelBytes.of(proto)
    except (EncodeError, ValueError):
        raise _too_large(proto) from None
    if made is None:
        return [serialize(proto)]
    if made.size > MAX_BYTES:
        raise _too_large(proto)
    return made.pieces()


def _is_too_large(proto: onnx.ModelProto) -> bool:
    """Whether a model and the weights in it are more than one file can hold."""
    try:
        made = ModelBytes.of(proto)
    except (EncodeError, ValueError):
        raise _too_large(proto) from None
    return made is not None and made.size > MAX_BYTES


def _too_large(proto: onnx.ModelProto) -> QdqError:
    return QdqError(proto.graph.name or "the model", "is larger than 2 GiB", "keep its weights as external data")


def save_model(
    proto: onnx.ModelProto,
    path: str | os.PathLike[str],
    *,
    folder: Path | None = None,
    inputs: Iterable[Path] = (),
    files: FileSet | None = None,
    written: Collection[str] = (),
) -> Path:
    """Write a model, whole or not at all.

    A model of more than 2 GiB gets a data file `<name>.data` with its large weights. Where the model goes to another
    folder than its external data, the data files go with it, to the same places below that folder; a file that is there
    already must be identical.

    Raises:
        QdqError: `path` is an input or a data file, a different data file is in the way, the external data cannot be
            found, or the model without its weights is larger than 2 GiB. Nothing is written then, no data file either.
        RuntimeError: a tensor that `graph.tensors.read_as` changed: no other program knows what it means.
    """
    target = Path(path)
    refuse_overwrite(target, inputs)
    places = list(_data_files(proto, folder, target, written))
    refuse_overwrite(target, (source for source, _ in places))
    refuse_overwrite(target, (copy for _, copy in places))
    outside = WithDataFile.of(proto, target.name) if _is_too_large(proto) else None
    if outside is not None:
        refuse_overwrite(target.with_name(outside.location), [*inputs, *(path for place in places for path in place)])
    pieces = _pieces(proto if outside is None else outside.proto)
    moves = [(source, copy) for source, copy in places if not _in_place(source, copy)]
    with joined(files) as both:
        for source, copy in moves:
            _copy(source, copy, both)
        if outside is not None:
            with both.open(target.with_name(outside.location)) as file:
                outside.write(file)
        with both.open(target) as file:
            file.writelines(pieces)
    return target


def _data_files(
    proto: onnx.ModelProto, folder: Path | None, target: Path, written: Collection[str]
) -> Iterator[tuple[Path, Path]]:
    """Each data file that the model refers to: where it lies, and where it should lie beside `target`."""
    seen = set(written)
    for tensor in tensors_of(proto):
        if is_external(tensor):
            if stored_type(tensor) != tensor.data_type:
                raise RuntimeError(f"{tensor.name} is read in another type than its data file has, and cannot be saved")
            location = location_of(tensor, target)
            if location not in seen:
                seen.add(location)
                yield external_range(tensor, folder, target).path, target.parent / location


def _in_place(source: Path, copy: Path) -> bool:
    """Whether the copy is there already; refuses one that differs."""
    if not copy.exists():
        return False
    if not copy.samefile(source) and not _identical(source, copy):
        reason = f"would need the data file {copy}, and a different one is there"
        raise QdqError(copy.parent, reason, "write to another folder, or move that file away")
    return True


def _identical(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as a, other.open("rb") as b:
        while chunk := a.read(_CHUNK):
            if chunk != b.read(_CHUNK):
                return False
    return True


def _copy(source: Path, copy: Path, files: FileSet) -> None:
    files.make_folder(copy.parent)
    with source.open("rb") as file, files.open(copy) as out:
        shutil.copyfileobj(file, out, _CHUNK)


def give_back(
    proto: onnx.ModelProto,
    opened: Model,
    output: Path | None,
    files: FileSet | None = None,
    written: Collection[str] = (),
) -> Any:
    """Return a result as the kind its input was: the path of the file written, a ModelProto, or a gs.Graph.

    What lives in memory has its weights in memory: those that came from a model's file are read.

    Raises:
        QdqError: the input was a path and no output is named, the file cannot be written, or a file whose weights the
            result has was changed since.
    """
    if output is not None:
        inputs = [opened.path] if opened.path else []
        place = save_model(proto, output, folder=opened.folder, inputs=inputs, files=files, written=written)
        if opened.kind == "path":
            return place
    if opened.kind == "path":
        raise QdqError(opened.name, "was given as a file, and no output file is named", "name one")
    proto = whole_model(proto)
    if opened.kind == "gs":
        import onnx_graphsurgeon as gs

        return gs.import_onnx(proto)
    return proto
