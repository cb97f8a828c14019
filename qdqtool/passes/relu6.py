# SPDX-License-Identifier: Apache-2.0
"""Turns Relu into Clip(0, 6) where it stands, as TAO does before it trains for INT8. Whether a model gains, others ask.

This changes the float function. LeakyRelu, PRelu and Elu are never touched, which TAO replaces, too. Enters the main
graph only: a Relu in a subgraph (If, Loop, Scan) stays and is reported, one inside a local function stays.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.edit import CONDITIONED, Editor, edits_of, get_metadata, recorded_edits, set_metadata
from qdqtool.graph.model import Model
from qdqtool.graph.types import known_types, opset_of
from qdqtool.graph.view import GraphView, Node
from qdqtool.match.flow import Flow
from qdqtool.passes.condition.constants import list_as_inputs
from qdqtool.rule_files import operator_set

SIX = 6.0
STEP = "relu6"
_CLIP_INPUTS = 11  # from this opset on the bounds of Clip are inputs
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE})


@dataclass(frozen=True)
class Relus:
    """The Relu of a model by their outputs."""

    inside: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)


def find_relus(model: Model) -> Relus:
    """Which Relu of a model may be cut at six: those whose values no output of the graph hands out."""
    view = model.view
    kinds, carries = known_types(model), operator_set("moving") | {"Cast"}
    flow = Flow(view, lambda node: node.op in carries)
    inside, left = [], {}
    for node in view.nodes:
        if node.op != "Relu":
            continue
        if kinds.get(node.key, onnx.TensorProto.FLOAT) not in _FLOATS:
            left[node.key] = "is a Relu of no float16, float32 or double: not limited to 6"
        elif any(map(view.is_output, flow.tensors(node.key))):
            left[node.key] = "is a Relu whose values are an output of the graph: not limited to 6"
        else:
            inside.append(node.key)
    for body in view.bodies():
        where = {f"{body.scope}/{node.key}" for node in body.nodes if node.op == "Relu"}
        left |= dict.fromkeys(sorted(where), "is a Relu in a subgraph (If, Loop, Scan): not limited to 6")
    return Relus(tuple(inside), left)


def cut_at_six(model: Model, relus: Collection[str]) -> None:
    """Turn Relu into Clip(0, 6); the model is edited. Their names, outputs and places stay.

    Raises:
        QdqError: one of them is made by no Relu.
    """
    view = model.view
    nodes = [_relu(view, name) for name in relus]
    kinds, editor = known_types(model), Editor(view)
    bounds: dict[int, tuple[str, str]] = {}
    for node in nodes:
        trace = (("rule", STEP), ("origin", "condition"))
        if (opset_of(model.proto) or 1) < _CLIP_INPUTS:
            editor.set_operator(node, "Clip", {"min": 0.0, "max": SIX}, trace)
            continue
        kind = kinds.get(node.key, onnx.TensorProto.FLOAT)
        if kind not in bounds:
            bounds[kind] = _add_bounds(editor, kind)
        editor.set_operator(node, "Clip", {}, trace)
        for index, name in enumerate(bounds[kind], 1):
            editor.set_input(node, index, name)
    editor.commit()
    list_as_inputs(model.proto)


def replay_cuts(source: Model, edited: onnx.ModelProto) -> list[str]:
    """Cut at six in a source model what `condition` cut in the model that was made from it; and note it there, too.

    Raises:
        QdqError: what was cut is made by neither Relu nor Clip in the source.
    """
    edits = [edit for edit in edits_of(edited) if edit["step"] == STEP]
    done = {edit["site"] for edit in edits if (node := source.view.producers.get(edit["site"])) and node.op == "Clip"}
    wanted = [edit for edit in edits if edit["site"] not in done]
    if not wanted:
        return []
    cut_at_six(source, [edit["site"] for edit in wanted])
    earlier = get_metadata(source.proto, CONDITIONED)
    document: dict[str, Any] = {"schema": 1, "method": ""}
    with contextlib.suppress(ValueError, TypeError, RecursionError):  # of another hand
        document = {**document, **json.loads(earlier or "{}")}
    document["edits"] = [*recorded_edits(earlier), *wanted]
    set_metadata(source.proto, CONDITIONED, json.dumps(document, separators=(",", ":"), ensure_ascii=False))
    return [edit["site"] for edit in wanted]


def _relu(view: GraphView, name: str) -> Node:
    node = view.producers.get(name)
    if node is None or node.op != "Relu":
        producer = "nothing" if node is None else node.op
        reason = f"is made by {producer}, not by the Relu that condition limited to 6"
        raise QdqError(name, reason, "give the model that condition read or wrote, or peel without --source")
    return node


def _add_bounds(editor: Editor, kind: int) -> tuple[str, str]:
    made = onnx.helper.tensor_dtype_to_np_dtype(kind)
    names = (editor.unique_name("relu6_min"), editor.unique_name("relu6_max"))
    for name, value in zip(names, (0.0, SIX), strict=True):
        editor.add_initializer(name, np.array(value, made))
    return names
