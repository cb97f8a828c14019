# SPDX-License-Identifier: Apache-2.0
"""Stores what operators compute from constants alone. The values are those of onnxruntime; no tensor changes its name.

Compilers fold most of it themselves; what they compute in each run is in the rules (`unfolded`). torch.export writes
the masks of shifted windows so. Bodies of control flow stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qdqtool.display import counted
from qdqtool.graph.edit import Editor, count_uses, release
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import DEQUANTIZE, QUANTIZE, may_have_bodies
from qdqtool.graph.order import topological
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.rule_index import RuleIndex
from qdqtool.rulebook import RuleBook
from qdqtool.runtime.executor import Executor

_OTHERS = frozenset({QUANTIZE, DEQUANTIZE, "Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"})
_MAX_ELEMENTS = 1 << 24  # of one tensor: 64 MiB in float32
_MAX_ALL = 1 << 27  # of all that is computed


@dataclass(frozen=True)
class FoldedConstants:
    """What was folded."""

    operators: int
    tensors: tuple[str, ...]

    def note(self) -> str:
        """A sentence for the user."""
        if not self.operators:
            return "no operator computes from constants alone: nothing was folded"
        example = f", such as {self.tensors[0]}" if self.tensors else ""
        gone, kept = counted(self.operators, "operator"), counted(len(self.tensors), "constant")
        return f"folded {gone} on constants into {kept}{example}"


def fold_constants(model: Model) -> FoldedConstants:
    """Store what every foldable operator of the main graph gives to others, and take the operators away.

    Operators stay that have a body, draw numbers, quantize, give an output of the graph, come from another domain than
    ONNX's own, or give more than 2^24 elements or a number that is not known; and an Identity of a stored constant,
    which would be stored twice.

    Raises:
        QdqError: onnxruntime cannot compute one.
        MissingPackageError: there is something to fold, and onnxruntime is not installed.
    """
    view = model.view
    nodes = foldable(view)
    gone = {node.index for node in nodes}
    made = {name for node in nodes for name in node.outputs if name}
    read = {name for node in view.every if node.index not in gone for name in node.inputs} | view.captured
    wanted = tuple(name for node in nodes for name in node.outputs if name in read)
    values = Executor(Model(_alone(model, nodes, wanted), model.folder), wanted).run({}) if wanted else {}
    editor, uses = Editor(view), count_uses(view)
    for node in nodes:
        editor.remove_node(node)
    for name in (name for node in nodes for name in node.inputs if name and name not in made):
        release(editor, uses, name)
    editor.drop_value_info(made)
    for name in wanted:
        editor.add_initializer(name, np.asarray(values[name]))
    editor.commit()
    return FoldedConstants(len(nodes), wanted)


def unfolded_note(view: GraphView, rules: RuleBook) -> list[str]:
    """A sentence on the operators on constants that the target computes in each run; nothing where there are none."""
    named = [node for node, _ in RuleIndex(rules.unfolded, rules).nodes(view)] if rules.unfolded else []
    folding = {node.index for node in foldable(view)} if named else set()
    found = [node for node in named if node.index in folding]
    if not found:
        return []
    kinds = ", ".join(sorted({node.op for node in found}))
    what = f"{counted(len(found), 'operator')} on constants ({kinds})"
    effect = "would be computed in each run, and may keep attentions from being fused"
    return [f"{what} {effect}: --fold-constants stores the results"]


def foldable(view: GraphView) -> list[Node]:
    """The operators of a graph that `fold_constants` takes away, in an order in which they can be computed."""
    stored = {*view.initializers, *(name for node in view.every if node.op == "Constant" for name in node.outputs)}
    candidates = [node for node in view.every if _may_fold(view, node)]
    candidates = [node for node in candidates if node.op != "Identity" or node.inputs[0] not in stored]
    constants = set(stored)
    if not any(all(name in constants for name in node.inputs if name) for node in candidates):
        return []
    shapes, found, total = known_shapes(view), [], 0
    for node in topological(candidates):
        if not all(name in constants for name in node.inputs if name):
            continue
        sizes = [_elements(shapes.get(name)) for name in node.outputs if name]
        if all(size <= _MAX_ELEMENTS for size in sizes) and total + sum(sizes) <= _MAX_ALL:
            total += int(sum(sizes))
            constants.update(node.outputs)
            found.append(node)
    return found


def _may_fold(view: GraphView, node: Node) -> bool:
    if node.op in _OTHERS or may_have_bodies(node):
        return False
    return any(node.inputs) and not any(view.is_output(name) for name in node.outputs)


def _elements(shape: tuple[int | None, ...] | None) -> float:
    """How many elements a tensor has; infinitely many where that is not known."""
    if shape is None:
        return math.inf
    known = [side for side in shape if side is not None]
    return math.prod(known) if len(known) == len(shape) else math.inf


def _alone(model: Model, nodes: Sequence[Node], wanted: Iterable[str]) -> onnx.ModelProto:
    """A model of these operators, and of the constants that they read."""
    view = model.view
    alone = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    alone.graph.name = "constants"
    read = {name for node in nodes for name in node.inputs}
    stored = [node for node in view.every if node.op == "Constant" and not read.isdisjoint(node.outputs)]
    alone.graph.node.extend(node.proto for node in (*stored, *nodes))
    alone.graph.initializer.extend(view.initializers[name] for name in sorted(read & view.initializers.keys()))
    alone.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    return alone
