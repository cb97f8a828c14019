# SPDX-License-Identifier: Apache-2.0
"""A model in hand: its proto, its data files, and what follows from them, kept until the graph is edited.

`model.view` is the index of the graph (producers, consumers, constants, pairs). It, and all that `model.derived` made,
hold until `Editor.commit`. A function that reads a graph takes a `GraphView`; one that edits takes a `Model`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import onnx

from qdqtool.file_digest import sha256_of
from qdqtool.graph.model_file import FileVersion
from qdqtool.graph.tensors import is_external, location_of
from qdqtool.graph.validate import tensors_of
from qdqtool.graph.view import GraphView
from qdqtool.graph.weight_store import WeightStore

Kind = Literal["path", "proto", "gs"]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Model:
    """A model that is ours to edit, and where it came from.

    `view`, and all that `derived` made, hold until an edit is committed (`Editor.commit`). Code that changes the graph
    by other means calls `changed`, or makes a new `Model`.
    """

    proto: onnx.ModelProto
    folder: Path | None = None
    """Where relative external data lie; None if unknown."""
    kind: Kind = "proto"
    path: Path | None = None
    """The file, for kind "path"."""
    version: FileVersion | None = None
    """The file as it was opened, for kind "path"."""
    store: WeightStore | None = None
    """Where edits hold large weights until the model is written; None for the proto (`with_store`)."""
    _derived: dict[Callable[[Model], Any], Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def graph(self) -> onnx.GraphProto:
        """The main graph."""
        return self.proto.graph

    @property
    def view(self) -> GraphView:
        """The index of the main graph as it is now."""
        return self.derived(_index)

    @property
    def name(self) -> str:
        """What a message calls the model: its path as it was given, else its graph's name."""
        return str(self.path) if self.path is not None else (self.proto.graph.name or "the model")

    @cached_property
    def sha256(self) -> str | None:
        """Hex digest of the file's bytes (external data not included), read for it; None for what is no file.

        Raises:
            QdqError: the file is gone, or is another than the one that was opened.
        """
        if self.version is None:
            return None
        with self.version.reading() as file:
            return sha256_of(file)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file and the data files beside it, which nothing may be written over; empty where there is no file."""
        if self.path is None:
            return ()
        external = (tensor for tensor in tensors_of(self.proto) if is_external(tensor))
        locations = dict.fromkeys(location_of(tensor, self.name) for tensor in external)
        return (self.path, *(self.path.parent / location for location in locations))

    def derived(self, make: Callable[[Model], T]) -> T:
        """What a function makes of the model; it is called once, and again after an edit."""
        if make not in self._derived:
            self._derived[make] = make(self)
        found: T = self._derived[make]
        return found

    def changed(self) -> None:
        """Forget everything derived: the graph is another."""
        self._derived.clear()

    def copy(self, store: WeightStore | None = None) -> Model:
        """A copy whose proto may be edited; it has no file. Edits write to `store`, or where those of this one go."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        return Model(proto, self.folder, store=store or self.store)

    def with_store(self) -> Model:
        """The same model; where it has a file, its edits hold large weights in a temporary one."""
        return replace(self, store=WeightStore()) if self.kind == "path" else self


def _index(model: Model) -> GraphView:
    # Held weakly: with a circle, a large model would stay in memory until garbage is collected.
    known = weakref.ref(model)

    def changed() -> None:
        if (there := known()) is not None:
            there.changed()

    return GraphView(model.proto.graph, model.folder, changed=changed, store=model.store)
