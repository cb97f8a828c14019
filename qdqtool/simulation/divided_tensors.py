# SPDX-License-Identifier: Apache-2.0
"""Which tensors carry channels that `condition` or `finetune` divided or shifted: they differ by design."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from qdqtool.graph.edit import edits_of, equalized_tensors
from qdqtool.graph.view import GraphView
from qdqtool.graph.weighted import weight_index

_TAKES_IN = frozenset({"BatchNormalization", "Mul"})  # whose constants take a division in, beside weighted operators


def divisions_of(proto: onnx.ModelProto) -> frozenset[tuple[str, str]]:
    """The divisions and shifts that a model's metadata tell: (the tensor, what the node after it gives or "")."""
    edits = [edit for edit in edits_of(proto) if edit["step"] in ("smooth", "shift")]
    by_node = {(str(edit["site"]), str(edit.get("added", ""))) for edit in edits if edit.get("added")}
    return frozenset(by_node | {(name, "") for name in equalized_tensors(proto)})


def divided_tensors(view: GraphView, divisions: Iterable[tuple[str, str]]) -> set[str]:
    """The tensors with divided or shifted channels: from what does it up to the weighted operators that make up."""
    found: set[str] = set()
    for tensor, made in divisions:
        found.update([made] if made else _before(view, tensor))
        _behind(view, made or tensor, found)
    return found


def _before(view: GraphView, name: str) -> list[str]:
    """A tensor and those before it, back to the one that weights divide: what lies between passes a factor on."""
    names = [name]
    node = view.producer(name)
    while node is not None and node.op not in _TAKES_IN and weight_index(view, node) is None:
        name = next((view.root(one) for one in node.inputs if one and not view.is_constant(one)), "")
        if not name:
            break
        names.append(name)
        node = view.producer(name)
    return names


def _behind(view: GraphView, start: str, found: set[str]) -> None:
    """What moves the values of a tensor to weighted operators, which multiply them again."""
    stack = [start]
    while stack:
        for use in view.consumers(stack.pop()):
            if weight_index(view, use.node) is None:
                fresh = [name for name in use.node.outputs if name and name not in found]
                found.update(fresh)
                stack += fresh
