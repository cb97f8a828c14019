# SPDX-License-Identifier: Apache-2.0
"""Where a training copy ends: at its outputs, or before what cannot be differentiated after its last weights.

Plugins, non-maximum suppression, choices of indices: they stay in the file and are no part of what is trained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import onnx
from onnx import helper

from qdqtool.autodiff.activity import STOPS
from qdqtool.autodiff.backend import PAIR_DOMAIN
from qdqtool.errors import QdqError
from qdqtool.graph.order import reads_of, remove_dead
from qdqtool.graph.validate import label, subgraphs_of

_DEFAULT = ("", "ai.onnx")
_FLOATS = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
)
# What they read has no gradient. All but those of `_BREAKS` make what has a shape that is known.
_STOPS = STOPS | {"Hardmax", "QuantizeLinear"}
# Nothing after them can be trained on: shapes that depend on values, sequences, control flow, text.
_BREAKS = frozenset(
    {"NonMaxSuppression", "NonZero", "Unique", "Compress", "If", "Loop", "Scan", "SequenceMap", "SplitToSequence"}
    | {"SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt", "ConcatFromSequence", "Optional"}
    | {"OptionalGetElement", "Multinomial", "Bernoulli", "StringNormalizer", "TfIdfVectorizer"}
)


@dataclass(frozen=True)
class Ends:
    """What a training copy gives out.

    Attributes:
        cut: tensors in place of outputs of the file -> what lies after each.
        lost: outputs of the file that no weight has a part in.
    """

    cut: dict[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


def operator_of(node: onnx.NodeProto) -> str:
    """An operator as back ends list it: `domain::Type` outside the default domain."""
    return node.op_type if node.domain in _DEFAULT else f"{node.domain}::{node.op_type}"


def carries(node: onnx.NodeProto) -> bool:
    """Whether a gradient can pass a node at all."""
    if node.domain in _DEFAULT and node.op_type == "Cast":
        return any(item.name == "to" and item.i in _FLOATS for item in node.attribute)
    return not (node.domain in _DEFAULT and node.op_type in _STOPS)


def reached(proto: onnx.ModelProto, targets: Iterable[str]) -> set[str]:
    """Every tensor that a gradient of one of the targets comes by, those themselves included."""
    seen = set(targets)
    for node in reversed(proto.graph.node):
        if carries(node) and any(name in seen for name in node.output):
            seen.update(name for name in reads_of(node))
    return seen


def cut_behind(proto: onnx.ModelProto, weights: Collection[str], operators: Collection[str] | None = None) -> Ends:
    """End a training copy at the last tensors that can be trained on; the proto is edited, its nodes are in order.

    Raises:
        QdqError: no weight comes before what cannot be differentiated.
    """
    remove_dead(proto.graph)
    live, behind = _walk(proto, weights, operators)
    if not live:
        why = f": {next(iter(behind.values()))} comes before all of them" if behind else ""
        raise QdqError(
            proto.graph.name or "the model", f"has no weight that can be trained{why}", "train another model"
        )
    names = [value.name for value in proto.graph.output]
    ends: dict[str, str] = {}
    lost = []
    for name in names:
        if name in live and name not in behind:
            continue
        found = _last_live(proto, name, live, behind)
        ends.update((tensor, words) for tensor, words in found.items() if tensor not in names or tensor in behind)
        if not found:
            lost.append(name)
    _set_outputs(proto, live, behind, ends)
    remove_dead(proto.graph)
    return Ends(ends, tuple(lost))


def _walk(
    proto: onnx.ModelProto, weights: Collection[str], operators: Collection[str] | None
) -> tuple[set[str], dict[str, str]]:
    """Tensors that a weight has a part in, computed from an input; tensors after a break, with what it is."""
    fed, trained = {value.name for value in proto.graph.input}, set(weights)
    computed, live, behind = set(fed), set[str](), dict[str, str]()
    feeding = _feeding(proto, fed, trained)
    for index, node in enumerate(proto.graph.node):
        reads = reads_of(node)
        own = any(name in live or name in trained for name in reads)
        lost = next((behind[name] for name in reads if name in behind), "")
        lost = lost or (label(node) if _breaks(node, operators, own=own, feeding=feeding[index]) else "")
        if lost:
            behind.update(dict.fromkeys(filter(None, node.output), lost))
            continue
        if any(name in computed for name in reads):
            computed.update(node.output)
            if carries(node) and own:
                live.update(name for name in node.output if name)
        elif own:
            trained.update(node.output)
    return live, behind


def _breaks(node: onnx.NodeProto, operators: Collection[str] | None, *, own: bool, feeding: bool) -> bool:
    if node.domain == PAIR_DOMAIN:
        return False
    if node.domain not in _DEFAULT and not node.domain.startswith("com.microsoft"):
        return True
    if not own:
        return False
    if node.op_type in _BREAKS or subgraphs_of(node) or (node.domain in _DEFAULT and not onnx.defs.has(node.op_type)):
        return True
    return operators is not None and carries(node) and not feeding and operator_of(node) not in operators


def _feeding(proto: onnx.ModelProto, fed: set[str], weights: set[str]) -> list[bool]:
    """For each node whether an operator with a trained weight lies after it."""
    trained, computed = set(weights), set(fed)
    meets: list[bool] = []
    for node in proto.graph.node:
        reads = reads_of(node)
        moves, own = any(name in computed for name in reads), any(name in trained for name in reads)
        meets.append(moves and own)
        if moves:
            computed.update(node.output)
        elif own:
            trained.update(node.output)
    wanted: set[str] = set()
    feeding = [False] * len(meets)
    for index in range(len(meets) - 1, -1, -1):
        node = proto.graph.node[index]
        feeding[index] = any(name in wanted for name in node.output)
        if feeding[index] or meets[index]:
            wanted.update(reads_of(node))
    return feeding


def _last_live(proto: onnx.ModelProto, output: str, live: set[str], behind: dict[str, str]) -> dict[str, str]:
    """The nearest tensors before an output that can be trained on, in graph order -> what lies between."""
    producer = {name: node for node in proto.graph.node for name in node.output if name}
    found: dict[str, str] = {}
    stack, seen = [output], set[str]()
    while stack:
        name = stack.pop()
        node = producer.get(name)
        if name in seen or node is None:
            continue
        seen.add(name)
        for source in reads_of(node):
            if source in live and source not in behind:
                found.setdefault(source, f"{behind.get(name) or label(node)}, before the output {output}")
            else:
                stack.append(source)
    place = {name: index for index, node in enumerate(proto.graph.node) for name in node.output}
    return {name: found[name] for name in sorted(found, key=lambda tensor: (place.get(tensor, -1), tensor))}


def _set_outputs(proto: onnx.ModelProto, live: set[str], behind: dict[str, str], ends: Iterable[str]) -> None:
    kept = [value for value in proto.graph.output if value.name in live and value.name not in behind]
    names = {value.name for value in kept}
    fresh = onnx.GraphProto(output=kept)
    for name in ends:
        if name not in names:
            fresh.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    proto.graph.ClearField("output")
    proto.graph.output.extend(fresh.output)
