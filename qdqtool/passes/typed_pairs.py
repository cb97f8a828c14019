# SPDX-License-Identifier: Apache-2.0
"""Q/DQ pairs in a graph with FP16 or BF16 tensors: a Cast to FP32 before Q, one back after DQ, scales in FP32.

Where pairs stand is decided on the widened model, and carried out there by `insert.py`; here that is brought into the
typed graph, which loses nothing, and taken out again. A weight keeps its bytes: its pair stands after a Cast, too.
Enters the main graph only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto

from qdqtool.errors import QdqError
from qdqtool.graph.edit import TRACE, Editor
from qdqtool.graph.model import Model
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Use, attribute
from qdqtool.match.plan import Plan
from qdqtool.passes.insert import Inserted, insert_pairs
from qdqtool.passes.peel import Peeled, peel_pairs
from qdqtool.passes.rewrites import undo_rewrites
from qdqtool.precision.assignment import rest_name
from qdqtool.precision.scopes import CAST_TYPES, HALF_TYPES, typed_scope
from qdqtool.precision.widen import Widened, is_typed, widen, widen_named
from qdqtool.scales import Scale

_FLOAT = TensorProto.FLOAT
_STANDS_FOR = "stands_for"  # on a DQ, or a Cast after it: the tensor that its readers read before


@dataclass(frozen=True)
class PlannedModel:
    """A model that gets pairs, beside the form of it that plans, counts and scales are made from.

    Attributes:
        model: is written; edited by `insert`.
        base: the same in FP32 where the model is typed, else `model` itself.
    """

    model: Model
    base: Model
    _wide: Widened | None = None

    @classmethod
    def of(cls, model: Model) -> PlannedModel:
        """Look at a model, in which Q/DQ can stand."""
        wide = widen_named(model) if is_typed(model) else None
        return cls(model, model if wide is None else wide.model, wide)

    @property
    def typed(self) -> bool:
        """Whether the model has FP16 or BF16 tensors."""
        return self._wide is not None

    def insert(self, plan: Plan, scales: Mapping[str, Scale], *, given: bool) -> Inserted:
        """Put Q/DQ into `model` and into `base`; see `insert_pairs`."""
        view = self.base.view
        before = {node.key: tuple(node.inputs) for node in view.every}
        done = insert_pairs(view, plan, scales, given=given)
        if self._wide is not None:
            _TypedWriter(self.model, self._wide).transfer(self.base.graph, before)
        return done


def peel_model(model: Model, **options: Any) -> Peeled:
    """Take every pair out of a model, typed or not; the model is edited.

    Raises:
        QdqError: as `peel_pairs`. The model is untouched then.
    """
    if not is_typed(model):
        return peel_pairs(model, **options)
    peeled = peel_pairs(widen(model), **options)
    undo_rewrites(model, changing_pairs=True)
    _take_casts_off(model)
    peel_pairs(model, **options)
    return peeled


# ---------------------------------------------------------------------- out


def _take_casts_off(model: Model) -> None:
    """Let each Q read the tensor that was cast for it, and readers of what a DQ makes read it without a Cast.

    The types do not agree in between: the pairs are taken out next. A Cast stays where the tensor has another type than
    its readers want and no tensor of theirs is left in the graph.
    """
    view, types = model.view, typed_scope(model).types
    editor, reads, names = Editor(view), _reads(view), dict[str, str]()
    originals = _Originals.of(view, types)
    pairs = [pair for pairs in view.pairs.values() for pair in pairs]
    direct = {id(pair.quantize) for pair in pairs if not _is_cast_back(view, pair.dequantize, reads)}
    for pair in pairs:
        source = None if pair.quantize is None else str(pair.quantize.inputs[0])
        if pair.quantize is not None and id(pair.quantize) not in direct:
            source = _uncast(view, editor, pair.quantize, types, reads)
        made = pair.dequantize.outputs[0]
        for use in reads.get(made, ()):
            wanted = _cast_type(use.node)
            if wanted is None:
                if stood := originals.named(pair.dequantize, types.get(made, _FLOAT)):
                    editor.reroute(use, stood)
                continue
            other = originals.named(use.node, wanted) or originals.behind(source, wanted)
            if other and not view.is_output(use.node.key):
                names[use.node.key] = made if other == source else other
                for reader in reads.get(use.node.key, ()):
                    editor.reroute(reader, names[use.node.key])
                editor.remove_node(use.node)
    for node in view.every:
        editor.reroute_bodies(node, names)
    editor.commit()


@dataclass(frozen=True)
class _Originals:
    """Which tensor the readers of a pair read before there was a pair: by our trace, else by the types."""

    there: frozenset[str]
    types: Mapping[str, int]
    casts: Mapping[tuple[str, int], str]
    sources: Mapping[str, str]

    @classmethod
    def of(cls, view: GraphView, types: Mapping[str, int]) -> _Originals:
        casts = [(node, kind) for node in reversed(view.every) if (kind := _cast_type(node)) is not None]
        made = {(node.inputs[0], kind): node.key for node, kind in casts}  # the first of each kind
        there = frozenset({*view.producers, *view.initializers, *view.inputs})
        return cls(there, types, made, {node.key: node.inputs[0] for node, _ in casts})

    def named(self, node: Node, kind: int) -> str:
        """What a node says that its output stands for; "" where it is empty that fits."""
        name = _trace(node, _STANDS_FOR)
        return name if name in self.there and self.types.get(name) == kind else ""

    def behind(self, source: str | None, kind: int) -> str:
        """The tensor itself, a Cast of it, or what it was cast from, whichever has the type; "" where none has."""
        names = (source, self.casts.get((source or "", kind)), self.sources.get(source or ""))
        return next((name for name in names if name and self.types.get(name) == kind), "")


def _is_cast_back(view: GraphView, dequantize: Node, reads: Mapping[str, list[Use]]) -> bool:
    """Whether nothing reads what a DQ makes in place of the tensor that Q reads: Casts alone, or by another name."""
    made = dequantize.outputs[0]
    casts = all(_cast_type(use.node) is not None for use in reads.get(made, ()))
    return (casts or bool(_trace(dequantize, _STANDS_FOR))) and not view.is_output(made) and made not in view.captured


def _uncast(
    view: GraphView, editor: Editor, quantize: Node, types: Mapping[str, int], reads: Mapping[str, list[Use]]
) -> str:
    """What a Q reads once the Cast to FP32 in front of it is taken out, where Q alone read that."""
    name: str = quantize.inputs[0]
    cast = view.producers.get(name)
    if cast is None or _cast_type(cast) != _FLOAT or types.get(cast.inputs[0]) not in HALF_TYPES:
        return name
    if view.is_output(name) or name in view.captured or any(use.node.op != QUANTIZE for use in reads[name]):
        return name
    source: str = cast.inputs[0]
    for use in reads[name]:
        editor.reroute(use, source)
    editor.remove_node(cast)
    return source


def _reads(view: GraphView) -> dict[str, list[Use]]:
    """Every place that reads a tensor by its name, those of pairs too; bodies are not among them."""
    found: dict[str, list[Use]] = {}
    for node in view.every:
        for index, name in enumerate(node.inputs):
            found.setdefault(name, []).append(Use(node, index))
    return found


def _cast_type(node: Node) -> int | None:
    return int(str(attribute(node, "to", 0))) if node.op == "Cast" else None


def _trace(node: Node, key: str) -> str:
    return next((entry.value for entry in node.proto.metadata_props if entry.key == TRACE + key), "")


# ---------------------------------------------------------------------- in


@dataclass
class _TypedWriter:
    """Brings pairs that stand in a widened graph into the typed one."""

    model: Model
    wide: Widened
    casts: dict[tuple[str, str], str] = field(default_factory=dict)  # (DQ's output, tensor) -> what stands for it
    sources: dict[str, str] = field(default_factory=dict)  # half tensor -> its Cast for Q

    def __post_init__(self) -> None:
        self.view = self.model.view
        self.types = typed_scope(self.model).types
        self.editor = Editor(self.view)
        self.nodes = {
            self.wide.names.get(node.key, node.key): node for node in self.view.every if node.key not in self.wide.casts
        }

    def transfer(self, graph: onnx.GraphProto, before: Mapping[str, tuple[str, ...]]) -> None:
        """Do to the typed graph what was done to the widened one."""
        moved = self._moved_reads(graph, before)
        renamed = self._constants(graph)
        made: dict[str, str] = {}
        new = [proto for proto in graph.node if proto.output[0] not in before]
        quantizing, dequantizing = ([proto for proto in new if proto.op_type == op] for op in (QUANTIZE, DEQUANTIZE))
        if len(quantizing) != len(dequantizing):
            name = dequantizing[0].output[0]
            raise QdqError(name, "is a weight of a model with FP16 or BF16 tensors", "give the FP32 model, and --rest")
        clips = {proto.input[0]: proto for proto in new if proto.op_type == "Clip"}  # of formats with fewer codes
        for quantize, dequantize in zip(quantizing, dequantizing, strict=True):
            uses, clip = moved.get(dequantize.output[0], []), clips.get(quantize.output[0])
            made[dequantize.output[0]] = self._pair(quantize, clip, dequantize, uses, renamed)
        for name, uses in moved.items():
            if name not in made:  # a pair that was there gets more readers
                node = self.nodes[name]
                self._reroute(node.outputs[0], self._read_by(node), uses, node, after=True)
        self.editor.commit()

    def _moved_reads(self, graph: onnx.GraphProto, before: Mapping[str, tuple[str, ...]]) -> dict[str, list[Use]]:
        """What a pair makes -> the places of the typed graph that are to read it."""
        moved: dict[str, list[Use]] = {}
        for proto in graph.node:
            for index, (old, new) in enumerate(zip(before.get(proto.output[0], ()), proto.input, strict=False)):
                if old != new:
                    moved.setdefault(new, []).append(Use(self.nodes[proto.output[0]], index))
        return moved

    def _constants(self, graph: onnx.GraphProto) -> dict[str, str]:
        """Copy scales and zero points that are new; their names here."""
        renamed = {}
        for tensor in graph.initializer:
            if tensor.name not in self.view.initializers:
                renamed[tensor.name] = self.editor.unique_name(tensor.name)
                self.view.graph.initializer.add().CopyFrom(tensor)
                self.view.graph.initializer[-1].name = renamed[tensor.name]
        return renamed

    def _pair(
        self,
        quantize: onnx.NodeProto,
        clip: onnx.NodeProto | None,
        dequantize: onnx.NodeProto,
        uses: list[Use],
        renamed: Mapping[str, str],
    ) -> str:
        """One pair with its Casts; the name of what its DQ makes."""
        editor = self.editor
        source = self._root(quantize.input[0])
        beside, after = self._place(source, uses)
        read = self._source(source, uses, beside, after=after)
        producer = self.view.producers.get(read)
        if producer is not None:
            beside, after = producer, True
        constants = [renamed.get(name, name) for name in quantize.input[1:]]
        axis = next((int(item.i) for item in quantize.attribute if item.name == "axis"), None)
        trace = tuple((entry.key.removeprefix(TRACE), entry.value) for entry in quantize.metadata_props)
        wanted = dict.fromkeys(use.node.inputs[use.index] for use in uses)
        floats = [name for name in wanted if self.types.get(name) == _FLOAT]
        stands_for = read if read in floats or not floats else floats[0]
        other = ((_STANDS_FOR, stands_for),) if stands_for != read else ()
        codes, back = editor.unique_name(quantize.output[0]), editor.unique_name(dequantize.output[0])
        editor.add_node(QUANTIZE, [read, *constants], codes, beside=beside, after=after, axis=axis, trace=trace)
        if clip is not None:
            whole, codes = codes, editor.unique_name(clip.output[0])
            bounds = [renamed.get(name, name) for name in clip.input[1:]]
            editor.add_node("Clip", [whole, *bounds], codes, beside=beside, after=after, trace=trace)
        editor.add_node(
            DEQUANTIZE, [codes, *constants], back, beside=beside, after=after, axis=axis, trace=trace + other
        )
        self._reroute(back, stands_for, uses, beside, after=after)
        return back

    def _root(self, name: str) -> str:
        """The tensor of the typed graph that a tensor of the widened one stands for, Casts seen through."""
        while name in self.wide.casts:
            name = self.view.producers[name].inputs[0]
        return name

    def _place(self, source: str, uses: list[Use]) -> tuple[Node | None, bool]:
        """Behind the producer; for an initializer in front of its first reader; for an input at the front."""
        producer = self.view.producers.get(source)
        if producer is None and source in self.view.initializers and uses:
            return min((use.node for use in uses), key=lambda node: node.index), False
        return producer, True

    def _source(self, source: str, uses: list[Use], beside: Node | None, *, after: bool) -> str:
        """The FP32 tensor that Q reads: the tensor itself, a Cast of it that a reader reads, or a new Cast."""
        if self.types.get(source) not in HALF_TYPES:
            return source
        first = min((use.node.index for use in uses), default=0)
        for use in uses:
            cast = self.view.producers.get(use.node.inputs[use.index])
            if cast is not None and _cast_type(cast) == _FLOAT and cast.inputs[0] == source and cast.index < first:
                return cast.key
        if source in self.sources and not self.view.is_constant(source):
            return self.sources[source]
        made = self.sources[source] = self.editor.unique_name(f"{source}_fp32")
        self.editor.add_node("Cast", [source], made, beside=beside, after=after, to=_FLOAT)
        return made

    def _read_by(self, dequantize: Node) -> str:
        """What the Q of a pair that was there reads."""
        pairs = (pair for pairs in self.view.pairs.values() for pair in pairs if pair.dequantize is dequantize)
        quantize = next((pair.quantize for pair in pairs), None)
        return "" if quantize is None else str(quantize.inputs[0])

    def _reroute(self, back: str, read: str, uses: list[Use], beside: Node | None, *, after: bool) -> None:
        """Let readers read what a DQ makes, in the type that they read before."""
        made = self.types.get(back, _FLOAT)
        for use in uses:
            name = use.node.inputs[use.index]
            kind = self.types.get(name, _FLOAT)
            if name != read and kind not in CAST_TYPES:
                raise QdqError(name, "gets Q/DQ, and its type is not known", "export the model with its types")
            if name == read or (kind == made and name == self._root(name)):
                self.editor.reroute(use, back)
                continue
            if (back, name) not in self.casts:
                cast = self.casts[back, name] = self.editor.unique_name(f"{back}_{rest_name(kind)}")
                trace = ((_STANDS_FOR, name),)
                self.editor.add_node("Cast", [back], cast, beside=beside, after=after, to=kind, trace=trace)
            self.editor.reroute(use, self.casts[back, name])
