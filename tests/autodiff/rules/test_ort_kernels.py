# SPDX-License-Identifier: Apache-2.0
"""Which nodes the kernels of onnxruntime-training are taken for, and that they give what differences give."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.autodiff.backends import OrtTraining
from qdqtool.autodiff.reverse_mode import differentiate
from qdqtool.autodiff.rules.ort_kernels import KERNELS, with_kernels
from qdqtool.autodiff.rules.table import RULES
from qdqtool.runtime.installed import installed_flavors
from tests.autodiff.numeric import RuleCase, distinct, forward_of, model_of_case
from tests.autodiff.rule_cases import CASES, CONVOLUTION
from tests.autodiff.rules.test_rules import check

_LACKING = not any("training" in flavor for flavor in installed_flavors())
_UNARY = [case for case in CASES if case.nodes in ("y = Sigmoid(x)", "y = Tanh(x)")]
_SHAPES = {"x": (2, 4, 5, 5), "w": (4, 4, 3, 3), "b": (4,), "line": (2, 4, 9), "v": (4, 2, 3)}


def kernels(nodes: str, wanted: str) -> list[str]:
    """The operators of com.microsoft in the gradient graph by the comma-separated parameters."""
    rng = np.random.default_rng(2)
    values = {name: distinct(rng, shape, -1, 1) for name, shape in _SHAPES.items()}
    model = model_of_case(RuleCase(f"{nodes} loss = ReduceSum<keepdims=0>(y)", {}), values)
    proto = differentiate(forward_of(model, wanted.split(",")), with_kernels(RULES)).proto
    made = [f"{node.op_type}/{sum(map(bool, node.output))}" for node in proto.graph.node if node.domain]
    assert {entry.domain for entry in proto.opset_import} == ({"", "com.microsoft"} if made else {""})
    return made


@pytest.mark.parametrize(
    ("nodes", "wanted", "made"),
    [
        ("y = Conv(x, w, b)", "x,w,b", ["ConvGrad/2"]),
        ("y = Conv(x, w, b)", "w", ["ConvGrad/1"]),
        ("y = Conv(x, w, b)", "x,b", []),
        ("y = Conv<group=2>(line, v)", "line,v", []),
        ("y = ConvTranspose<group=2>(line, v)", "line,v", []),
        ("y = ConvTranspose(x, w)", "x,w", ["ConvGrad/1"]),
        ("y = ConvTranspose(x, w)", "x", []),
        ("y = Sigmoid(x)", "x", ["SigmoidGrad/1"]),
        ("y = Tanh(x)", "x", ["TanhGrad/1"]),
        ("s = Sigmoid(x) y = Mul(x, s)", "x", []),
        ("y = Relu(x)", "x", []),
    ],
)
def test_what_a_kernel_is_taken_for(nodes: str, wanted: str, made: list[str]) -> None:
    assert kernels(nodes, wanted) == made


def test_every_kernel_stands_for_a_rule() -> None:
    assert set(KERNELS) <= set(RULES)
    assert list(with_kernels(RULES)) == list(RULES)


@pytest.mark.train
@pytest.mark.skipif(_LACKING, reason="onnxruntime-training is not installed: make train")
@pytest.mark.parametrize("case", [*CONVOLUTION, *_UNARY], ids=lambda case: case.name)
def test_gradients_are_those_of_differences(case: RuleCase) -> None:
    check(case, OrtTraining())
