# SPDX-License-Identifier: Apache-2.0
"""Which layers stay out of INT8, in what precision and why, and by what name TensorRT knows them. Edits no graph.

TensorRT's parser calls a layer after its node, and that of a node without a name `node_of_<first output>` (getNodeName
in onnx-tensorrt, branches 7.2.1 to 10.1-GA; before 7.2 such a layer has no name that is known beforehand).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from qdqtool.graph.edit import Editor
from qdqtool.graph.heads import Head, nodes_behind
from qdqtool.graph.view import GraphView, Node, may_have_bodies
from qdqtool.graph.weighted import weight_index
from qdqtool.rule_kinds import TargetPolicy

Precision = Literal["fp16", "fp32"]

_NAME_PREFIX = "node_of_"
_UNSAYABLE = re.compile(r"[,:;*'\"\\\s\x00-\x1f\x7f]")


@dataclass(frozen=True)
class FloatLayer:
    """One layer that must not run in INT8.

    Attributes:
        node: first output of its ONNX node.
        name: what TensorRT calls it; empty where that cannot be known or written.
        op: the operator.
        precision: what it computes in.
        outputs: the float tensors it makes.
        typed: whether its output's type must be said too: it has a scale, so INT8 would be possible there. Also for
            the network's outputs: the type of a layer's output is not that of the tensor (NvInfer.h, setOutputType).
        why: one sentence.
        unnamed: why it has no name that can be written, else empty.
    """

    node: str
    name: str
    op: str
    precision: Precision
    outputs: tuple[str, ...]
    typed: bool
    why: str
    unnamed: str = ""


@dataclass(frozen=True)
class Sources:
    """What is known of a peeled graph.

    Attributes:
        heads: its detection heads.
        int8_nodes: first outputs of the weighted operators that were INT8 under Q/DQ.
        floats: names of its float tensors.
        scaled: names of the tensors that have a scale in the cache.
        markers: operators after which post-processing begins.
        unequal: first outputs of operators whose inputs have ranges that differ where the target wants one, perhaps.
    """

    heads: Iterable[Head]
    int8_nodes: Collection[str]
    floats: Collection[str]
    scaled: Collection[str]
    markers: Collection[str] = ()
    unequal: Collection[str] = ()


def find_float_layers(view: GraphView, policy: TargetPolicy, known: Sources) -> list[FloatLayer]:
    """Every layer that must stay in FP32 or FP16, in file order, by the names of a graph that is written as it is.

    These are: weighted operators that were float under Q/DQ, and what decodes the values of regression heads. For the
    DLA, where every tensor has a scale, also operators that have no INT8 and products of two ranges. On the GPU
    regression heads and their decode compute in FP32, the rest in FP16; the DLA has FP16 only. The main graph only.
    """
    labels = {head.key: head.label for head in known.heads}
    exact = policy.float_heads
    decode = _decoding(view, labels, known)
    found = []
    for node in view.nodes:
        head = labels.get(node.key)
        regression = head in ("regression", "mixed")
        weighted = weight_index(view, node) is not None
        if weighted and node.key not in known.int8_nodes:
            why = f"a {head} head that was float under Q/DQ" if head else "float under Q/DQ"
            found.append(_layer(node, exact if regression else "fp16", why, known))
        elif node.key in decode:
            why = f"processes the values of the regression head {decode[node.key]}"
            found.append(_layer(node, exact, why, known))
        elif node.op in policy.no_int8 and _float_outputs(node, known):
            found.append(_layer(node, "fp16", f"{node.op} has no INT8", known))
        elif node.key in known.unequal:
            why = f"{node.op} reads tensors of two ranges, and a common range would cost precision"
            found.append(_layer(node, "fp16", why, known))
    return _named(view, found)


def name_unnamed(view: GraphView, layers: Iterable[FloatLayer]) -> list[FloatLayer]:
    """Give nodes of these layers that have no name one that TensorRT takes; the proto is edited.

    The name is what TensorRT's parser would make up, `node_of_<first output>`, with what no flag can carry replaced by
    `_`, unique in the graph. Nodes that have a name keep it, and so does every other node.
    """
    editor = Editor(view)
    made_up = {parsed_name(node) for node in view.every if not node.proto.name}
    named = [_given_name(view.producers[layer.node], layer, editor, made_up) for layer in layers]
    editor.commit()
    return named


def parsed_name(node: Node) -> str:
    """What TensorRT's parser calls the first layer that it makes of a node, from 7.2 on."""
    return node.proto.name or _NAME_PREFIX + (node.outputs[0] if node.outputs else "")


def _layer(node: Node, precision: Precision, why: str, known: Sources) -> FloatLayer:
    outputs = _float_outputs(node, known)
    typed = any(name in known.scaled for name in outputs)
    return FloatLayer(node.key, "", node.op, precision, outputs, typed, why)


def _float_outputs(node: Node, known: Sources) -> tuple[str, ...]:
    return tuple(name for name in node.outputs if name and name in known.floats)


def _decoding(view: GraphView, labels: Mapping[str, str], known: Sources) -> dict[str, str]:
    """First outputs of the nodes between regression heads and the outputs or markers -> the head's name."""

    def onward(node: Node) -> tuple[str, ...]:
        """The floats of a node that is neither a weighted operator nor post-processing."""
        plain = node.op.rpartition("::")[2]
        marker = plain in known.markers or plain != node.op
        return () if marker or weight_index(view, node) is not None else _float_outputs(node, known)

    met: set[int] = set()
    return {
        node.key: view.producers[head].name
        for head, label in labels.items()
        if label in ("regression", "mixed")
        for node in nodes_behind(view, [head], onward, met)
        if onward(node)
    }


def _given_name(node: Node, layer: FloatLayer, editor: Editor, made_up: Collection[str]) -> FloatLayer:
    if node.proto.name:
        return layer
    name = _UNSAYABLE.sub("_", parsed_name(node))
    while name != parsed_name(node) and name in made_up:  # the parser will call another node so
        name += "_"
    name = editor.unique_name(name)
    editor.name_node(node, name)
    fault = _several(node)
    return replace(layer, name="" if fault else name, unnamed=fault)


def _several(node: Node) -> str:
    """Why no one layer stands for a node; empty where one does."""
    return f"{node.op} becomes several layers" if len(node.outputs) > 1 or may_have_bodies(node) else ""


def _named(view: GraphView, layers: Iterable[FloatLayer]) -> list[FloatLayer]:
    taken = Counter(parsed_name(node) for node in view.every)
    return [_with_name(view.producers[layer.node], layer, taken) for layer in layers]


def _with_name(node: Node, layer: FloatLayer, taken: Mapping[str, int]) -> FloatLayer:
    name, fault = parsed_name(node), _several(node)
    if not fault and _UNSAYABLE.search(name):
        fault = "its name has a character that trtexec and DeepStream read as their own (, : ; * ' or a space)"
    elif not fault and taken[name] > 1:
        fault = f"{taken[name]} nodes have that name"
    return replace(layer, name="" if fault else name, unnamed=fault)
