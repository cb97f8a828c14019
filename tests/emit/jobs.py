# SPDX-License-Identifier: Apache-2.0
"""A job to write files from, and the little detectors they are about. No tests here."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from qdqtool.emit.job import EmitJob, Tensor
from qdqtool.emit.layers import FloatLayer
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of

FLOAT = onnx.TensorProto.FLOAT
VERSIONS = ("7.1.3", "8.0.1", "8.2.1", "8.5.2", "8.6.2", "10.3.0", "10.7.0", "10.12.0", "10.16.1")

# A backbone, a score head (Sigmoid) and a box head whose values are decoded with a stride.
DETECTOR = """d (float[1,3,8,8] x) => (float[1,2,8,8] scores, float[1,4,8,8] boxes)
 <float[8,3,3,3] w1, float[8] b1, float[2,8,1,1] ws, float[4,8,1,1] wb, float[1] stride>
{
 a = Conv<pads=[1,1,1,1]>(x, w1, b1)
 r = Relu(a)
 s = Conv(r, ws)
 scores = Sigmoid(s)
 b = Conv(r, wb)
 e = Exp(b)
 boxes = Mul(e, stride)
}"""


def detector(names: bool = True, opset: int = 13) -> onnx.ModelProto:
    """The detector, its nodes named c1, r1, cs, sg, cb, ex, mu or not at all."""
    model = model_of(DETECTOR, opset)
    if names:
        for node, name in zip(model.graph.node, ("c1", "r1", "cs", "sg", "cb", "ex", "mu"), strict=True):
            node.name = name
    return model


def layer(name: str, **changes: Any) -> FloatLayer:
    """A float convolution of that name."""
    facts: dict[str, Any] = {"node": f"{name}_out", "name": name, "op": "Conv", "precision": "fp16"}
    facts |= {"outputs": (f"{name}_out",), "typed": False, "why": "float under Q/DQ"}
    return FloatLayer(**{**facts, **changes})


def job_of(version: str = "8.5.2", target: str = "gpu", **changes: Any) -> EmitJob:
    """One image in, one map out; the layer `head` must stay in FP32, and its output's type must be said."""
    major, minor, patch = map(int, version.split("."))
    facts: dict[str, Any] = {
        "model": "m.onnx",
        "cache": "m.cache",
        "stem": "m",
        "target": target,
        "version": TrtVersion(major, minor, patch),
        "layers": (layer("head", precision="fp32", typed=True), layer("stem")),
        "scales": {"x": np.float32(0.5), "head_out": np.float32(0.1)},
        "inputs": (Tensor("x", FLOAT, (1, 3, 240, 320)),),
        "outputs": (Tensor("y", FLOAT, (1, 10)),),
    }
    return EmitJob(**{**facts, **changes})
