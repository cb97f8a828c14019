# SPDX-License-Identifier: Apache-2.0
"""A node has the form that ONNX's schema gives it, or is refused by name when the model is opened."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from qdqtool.errors import QdqError
from qdqtool.graph.validate import check_structure

SHAPES = {
    "w": (4, 2, 3, 3), "b": (4,), "m": (2, 3), "v": (3,), "s": (), "e": (0, 2, 3, 3), "q": (2, 2), "o": (1,), "z": (0,)
}  # fmt: skip


def model(node: onnx.NodeProto, opset: int = 17, domain: str = "", **kinds: int) -> onnx.ModelProto:
    weights = [
        numpy_helper.from_array(np.ones(shape, helper.tensor_dtype_to_np_dtype(kinds.get(name, 1))), name)
        for name, shape in SHAPES.items()
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", values[:1], values[1:], weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("other", 1), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(op: str, inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["" if name == "-" else name for name in inputs.split()], ["y"], "n", **attributes)


def with_attribute(made: onnx.NodeProto, **fields: Any) -> onnx.NodeProto:
    made.attribute.add(**fields)
    return made


@pytest.mark.parametrize(
    ("made", "opset", "reason"),
    [
        (node("Relu", "x x"), 17, "has 2 inputs, ONNX has 1"),
        (node("Conv", "x"), 17, "has 1 inputs, ONNX has 2 to 3"),
        (node("Conv", "x -"), 17, "lacks its input 1"),
        (node("Conv", "- w"), 17, "lacks its input 0"),
        (node("Concat", ""), 17, "lacks the attribute axis"),
        (node("Concat", "x x"), 17, "lacks the attribute axis"),
        (node("Unsqueeze", "x"), 17, "has 1 inputs, ONNX has 2"),
        (node("Unsqueeze", "x"), 11, "lacks the attribute axes"),
        (node("QuantizeLinear", "x"), 9, "has 1 inputs, ONNX has 2 to 3"),
        (node("QuantizeLinear", "x", domain="com.microsoft"), 17, "has 1 inputs, ONNX has 2 to 3"),
        (node("Flatten", "x", axis=1.5), 17, "has the attribute axis of type FLOAT, ONNX has INT"),
        (
            with_attribute(node("Flatten", "x", axis=1), name="axis", type=AttributeProto.INT, i=2),
            17,
            "has the attribute axis twice",
        ),
        (
            with_attribute(node("Flatten", "x"), name="axis", type=AttributeProto.INT, ref_attr_name="a"),
            17,
            "from the caller of a function",
        ),
        (node("QuantizeLinear", "x s", axis=0.5), 11, "has the attribute axis of type FLOAT, ONNX has INT"),  # of 13 on
        (node("DequantizeLinear", "x s", axis=[1], domain="com.microsoft"), 9, "attribute axis of type INTS, ONNX has"),
        (node("QuantizeLinear", "x z"), 17, r"has an empty scale \(shape \[0\]\)"),
        (node("DequantizeLinear", "x b z"), 17, r"has an empty zero point \(shape \[0\]\)"),
        (node("DequantizeLinear", "x b v"), 17, "has 4 scales and 3 zero points"),
        (node("QuantizeLinear", "x s b", domain="com.microsoft"), 17, "has 1 scales and 4 zero points"),
        (node("Cast", "x", to=99), 17, "names the unknown element type 99"),
        (node("QuantizeLinear", "x s", output_dtype=99), 21, "names the unknown element type 99"),
        (node("Conv", "x m"), 17, r"has a weight of shape \[2, 3\], which has not at least 3 axes"),
        (node("Conv", "x e"), 17, "which is empty"),
        (node("Conv", "x w", group=3), 17, "divides the 4 channels of its weight into 3 groups"),
        (node("Conv", "x w", group=0), 17, "into 0 groups"),
        (node("Conv", "x w v"), 17, r"has a bias of shape \[3\] for 4 channels"),
        (node("ConvTranspose", "x w b"), 17, r"has a bias of shape \[4\] for 2 channels"),
        (node("Conv", "x w", kernel_shape=[3, 5]), 17, r"has kernel_shape \[3, 5\] and a weight of shape"),
        (node("Conv", "x w", strides=[1]), 17, "has 1 strides for 2 axes"),
        (node("Conv", "x w", pads=[1, 1]), 17, "has 2 pads for 2 axes"),
        (node("MaxPool", "x", kernel_shape=[2, 2], strides=[0, 1]), 17, r"has the strides \[0, 1\]"),
        (node("MaxPool", "x", kernel_shape=[2, -2]), 17, r"has kernel_shape \[2, -2\]"),
        (node("Gemm", "x w"), 17, "which has not 2 axes"),
        (node("MatMul", "x s"), 17, "which has not at least 1 axes"),
        (node("BatchNormalization", "x b b b v"), 17, r"has parameters of shapes .*\[3\], where all are \[channels\]"),
        (node("BatchNormalization", "x m m m m"), 17, "where all are"),
        (node("Transpose", "x", perm=[0, 0]), 17, r"has perm \[0, 0\], which is not a permutation"),
    ],
)
def test_a_node_of_another_form_is_refused_by_name(made: onnx.NodeProto, opset: int, reason: str) -> None:
    with pytest.raises(QdqError, match=f"m.onnx: {made.op_type} n .*{reason}"):
        check_structure(model(made, opset), "m.onnx", None)


@pytest.mark.parametrize(
    ("made", "opset"),
    [
        (node("Conv", "x w b", group=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 17),
        (node("Conv", "x w -"), 17),
        (node("Conv", "x w", auto_pad="SAME_UPPER", made_up=1), 17),  # unknown attributes are nobody's harm
        (node("Unsqueeze", "x", axes=[0]), 11),
        (node("QuantizeLinear", "x s o"), 17),
        (node("QuantizeLinear", "x b s"), 17),
        (node("QuantizeLinear", "x b b", axis=1), 11),
        (node("DequantizeLinear", "x x"), 17),  # a computed scale
        (node("Gemm", "x m"), 9),  # C may be left out from opset 11 on
        (node("Unsqueeze", "x o"), 13),
        (node("EfficientNMS_TRT", "", anything=1.5), 17),
        (node("Conv", "x x x x", domain="other"), 17),
        (node("Relu", "x", consumed_inputs=[0]), 1),
        (node("Resize", "x - - o"), 13),
        (node("Reshape", "x o", allowzero=1), 14),
        (node("ReduceMean", "x o"), 18),
        (node("Split", "x", num_outputs=1), 18),
    ],
)
def test_a_node_as_its_opset_has_it_passes(made: onnx.NodeProto, opset: int) -> None:
    check_structure(model(made, opset, o=TensorProto.INT64), "m.onnx", None)


CHANNELS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,{fed},8,8] x) => (float[1,C,H,W] y) {{ {body} }}"""


@pytest.mark.parametrize(
    ("fed", "body", "fault"),
    [
        (3, "y = Conv(x, w)", "Conv y has a weight for 4 channels and an input of 3"),
        ("C", "a = Conv(x, w) b = Relu(a) y = Conv(b, w)", "Conv y has a weight for 4 channels and an input of 6"),
        (4, "a = Conv(x, w) s = Sigmoid(a) b = Mul(a, s) y = Conv(b, w)", "for 4 channels and an input of 6"),
        (4, "a = Conv(x, w) y = Conv<group=2>(a, deep)", "for 4 channels and an input of 6"),
        (4, "y = ConvTranspose(x, w)", "ConvTranspose y has a weight for 6 channels and an input of 4"),
        (4, "a = Conv(x, w) y = Conv<group=3>(a, deep)", ""),
        (4, "a = Conv(x, w) y = ConvTranspose(a, w)", ""),
        (4, "a = Conv(x, w) b = Concat<axis=1>(a, x) y = Conv(b, w)", ""),  # nobody counts these
        (1, "a = Conv(x, w) b = Mul(x, a) y = Conv(b, w)", "for 4 channels and an input of 1"),
    ],
)
def test_channels_are_followed_from_weight_to_weight(fed: object, body: str, fault: str) -> None:
    made = onnx.parser.parse_model(CHANNELS.format(fed=fed, body=body))
    for name, shape in (("w", (6, 4, 1, 1)), ("deep", (6, 2, 1, 1))):
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    with pytest.raises(QdqError, match=fault) if fault else contextlib.nullcontext():
        check_structure(made, "m.onnx", None)


def test_attributes_of_the_oldest_files_have_no_type() -> None:
    made = node("Transpose", "x", perm=[1, 0])
    made.attribute[0].ClearField("type")
    old = model(made, 1)
    with pytest.raises(QdqError, match=r"perm of type UNDEFINED, .* INTS"):
        check_structure(old, "m.onnx", None)
    old.ir_version = 1
    check_structure(old, "m.onnx", None)


def test_attributes_in_a_function_may_come_from_its_caller() -> None:
    inner = with_attribute(helper.make_node("Flatten", ["a"], ["r"]), name="axis", type=2, ref_attr_name="where")
    made = helper.make_node("f", ["x"], ["y"], domain="other", where=1)
    whole = model(made)
    opsets = [helper.make_opsetid("", 17)]
    whole.functions.append(helper.make_function("other", "f", ["a"], ["r"], [inner], opsets, ["where"]))
    check_structure(whole, "m.onnx", None)
    made.input.extend(["x", "x"])
    whole.graph.node[0].CopyFrom(made)
    with pytest.raises(QdqError, match="f y has 3 inputs, ONNX has 0 to 1"):
        check_structure(whole, "m.onnx", None)


def test_the_shape_of_a_weight_is_seen_through_its_pair() -> None:
    whole = model(node("Conv", "x w_DQ"))
    pair = [
        helper.make_node("QuantizeLinear", ["m", "s"], ["w_Q"]),
        helper.make_node("DequantizeLinear", ["w_Q", "s"], ["w_DQ"]),
    ]
    nodes = [*pair, whole.graph.node[0]]
    del whole.graph.node[:]
    whole.graph.node.extend(nodes)
    with pytest.raises(QdqError, match=r"Conv n .*shape \[2, 3\]"):
        check_structure(whole, "m.onnx", None)
