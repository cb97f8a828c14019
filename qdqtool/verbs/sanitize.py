# SPDX-License-Identifier: Apache-2.0
"""A cache and its model under names that every reader of caches keeps whole: `--sanitize-names` with a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from qdqtool.cache.convert import read_any
from qdqtool.cache.convert_options import ConvertOptions
from qdqtool.cache.sanitize import sanitized
from qdqtool.cache.sidecar import sidecar_path
from qdqtool.cache.store import Stored, convert_file
from qdqtool.errors import QdqError
from qdqtool.files import FileSet, check_outputs
from qdqtool.graph.io import open_model, save_model
from qdqtool.metadata import stored_table
from qdqtool.passes.rename_tensors import rename_tensors, tensor_names

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Sanitized:
    """A cache and its model, both written.

    Attributes:
        stored: the cache, the new names of both together, and what the user should know.
        model: the model's file.
        renamed: old name -> new name of the model's tensors.
    """

    stored: Stored
    model: Path
    renamed: dict[str, str]


def sanitize_files(
    cache: _Path, model: _Path, output: _Path, options: ConvertOptions, model_output: _Path | None = None
) -> Sanitized:
    """Write a cache in another format and its model, both without a `:` in the names of tensors.

    Raises:
        QdqError: as `convert_file`, `open_model`, `rename_tensors` and `save_model`; the model still holds the table
            of scales that insert left; a file to write is one that is read, or is named twice. Nothing is written
            then.
    """
    source = Path(model)
    target = source.with_name(f"{source.stem}.sanitized.onnx") if model_output is None else Path(model_output)
    opened = open_model(source)
    _check_places(cache, opened.files, Path(output), target)
    if stored_table(opened.proto) is not None:
        reason = "holds the scales of qdqtool insert under its present names"
        raise QdqError(source, reason, "peel it first, and give the model and the cache that come out")
    every = tensor_names(opened.proto)
    options = replace(options, sanitize_names=True, model_names=every)
    entries = read_any(cache, options.source)[0].entries
    renamed = rename_tensors(opened.proto, sanitized([*entries, *every]))
    with FileSet() as files:
        stored = convert_file(cache, output, options, files)
        save_model(opened.proto, target, folder=opened.folder, inputs=[source], files=files)
    return Sanitized(replace(stored, notes=(*stored.notes, *_new_face(opened.proto, renamed))), target, renamed)


def _new_face(proto: onnx.ModelProto, renamed: Mapping[str, str]) -> list[str]:
    """What to say where the names that a caller feeds and reads changed."""
    old = {new: name for name, new in renamed.items()}
    face = [value.name for value in (*proto.graph.input, *proto.graph.output) if value.name in old]
    pairs = ", ".join(f"{old[new]} is now {new}" for new in dict.fromkeys(face))
    return [f"inputs and outputs of the model have new names: {pairs}"] if face else []


def _check_places(cache: _Path, model: Sequence[Path], output: Path, target: Path) -> None:
    """Refuse places that would do harm before anything is done."""
    outputs = {"the model": target, "the cache": output, "the cache's details": sidecar_path(output)}
    check_outputs(outputs, [Path(cache), sidecar_path(cache), *model])
