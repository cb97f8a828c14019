# SPDX-License-Identifier: Apache-2.0
"""Small Q/DQ graphs as ONNX text, and short ways to what lint says of them. No tests here."""

from __future__ import annotations

from typing import Any

import onnx

from qdqtool.graph.model import Model
from qdqtool.linting.checks import check_named
from qdqtool.linting.finding import Finding
from qdqtool.linting.lint_context import LintContext
from tests.graphs import model_of

CONSTANTS = """float s = {0.1}, float t = {0.2}, float[1] vector = {0.1}, int8 z = {0}, int8 five = {5}, uint8 u = {0},
 uint8 middle = {128}, float zero = {0}, float minus = {-0.1}, float tiny = {1e-41}, float nan = {nan},
 float[8,8,3,3] w, float[8,8,3,3] w2, float[8] b, float[8] g, float[8] v = {1,2,3,4,5,6,7,8}, float[8,1,3,3] dw"""
_PADS = "pads=[1,1,1,1]"


def pair(name: str, scale: str = "s", zero: str = "z", to: str = "") -> str:
    """The text of a Q/DQ pair on a tensor; the DQ gives `<name>_dq`, or `to`."""
    made = to or f"{name}_dq"
    return f"{made}_q = QuantizeLinear({name}, {scale}, {zero}) {made} = DequantizeLinear({made}_q, {scale}, {zero})"


def conv(out: str, x: str, weight: str = "w", extra: str = "") -> str:
    """The text of a convolution with its weight after a pair of its own."""
    more = f", {extra}" if extra else ""
    return f"{pair(weight, to=f'{out}_w')} {out} = Conv<{_PADS}>({x}, {out}_w{more})"


def classifier(body: str, last: str = "a", *, opset: int = 17, more: str = "") -> onnx.ModelProto:
    """A graph over x [1, 8, 8, 8]: the body, and what makes one vector of its tensor `last`."""
    tail = f"p = GlobalAveragePool({last}) f = Flatten(p) y = Softmax(f)"
    return graph(f"{body} {tail}", "float[1,8] y", opset=opset, more=more)


def graph(body: str, output: str = "float[1,8,8,8] y", *, opset: int = 17, more: str = "") -> onnx.ModelProto:
    """A graph over x [1, 8, 8, 8] with the constants that the texts name."""
    extra = f", {more}" if more else ""
    model = model_of(f"net (float[1,8,8,8] x) => ({output}) <{CONSTANTS}{extra}> {{ {body} }}", opset)
    used = {name for node in model.graph.node for name in node.input}
    stored = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(stored)
    return model


def findings_of(model: onnx.ModelProto, code: str, **context: Any) -> list[Finding]:
    """What one check finds in a model."""
    return check_named(code).findings(LintContext(Model(model), **context))


def places_of(model: onnx.ModelProto, code: str, **context: Any) -> list[str]:
    """Where one check finds something."""
    return [finding.where for finding in findings_of(model, code, **context)]
