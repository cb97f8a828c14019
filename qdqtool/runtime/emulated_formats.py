# SPDX-License-Identifier: Apache-2.0
"""The operators and types of low-precision files that onnxruntime lacks, as local functions of ONNX operators.

TensorRT's `trt::` operators have no kernel in onnxruntime, and FP4 has no Q/DQ there. Each `trt::` node becomes a call
of a local function, under its own name. Codes of FP4 (E2M1) are held in FP8 (E4M3), which has each of their values, so
that a DequantizeLinear reads them as it stands. Rounding is ties to even and saturates, as in `ml_dtypes`. Scales of
blocks follow TensorRT's documents and modelopt's exporters; TensorRT's kernels were not run. FP8 and INT4 Q/DQ run in
onnxruntime as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.formats import FP8, NVFP4
from qdqtool.graph.model import Model
from qdqtool.graph.nodes import QUANTIZE
from qdqtool.graph.tensors import array_of
from qdqtool.graph.types import opset_of

_DOMAIN = "qdqtool.formats"
_FIRST_OPSET = 19  # that casts to FP8
_FIRST_IR = 8  # that has local functions
_BIAS = 127  # of an E8M0 scale: code 127 is 1; 255 is no number

_Attributes = Mapping[str, Any]
# Of the attributes that are read here, those that are no integer. A file may say another type, which is left alone.
_TYPES = {"block_shape": onnx.AttributeProto.INTS, "scale": onnx.AttributeProto.FLOAT}

# The values of E2M1 lie 0.5 apart up to 2, 1 up to 4, 2 up to 6.
_FP4_CODES = f"""
    two = Constant <value_float = 2.0> ()
    half = Constant <value_float = 0.5> ()
    one = Constant <value_float = 1.0> ()
    four = Constant <value_float = 4.0> ()
    magnitude = Abs (steps)
    small = Less (magnitude, two)
    middle = Less (magnitude, four)
    upper = Where (middle, one, two)
    unit = Where (small, half, upper)
    in_units = Div (steps, unit)
    rounded = Round (in_units)
    unbounded = Mul (rounded, unit)
    largest = Constant <value_float = {NVFP4.largest}.0> ()
    lowest = Constant <value_float = {NVFP4.lowest}.0> ()
    bounded = Clip (unbounded, lowest, largest)
    whole = Reshape (bounded, shape)
    q = Cast <to = {FP8.element_type}> (whole)
"""


def emulated(model: Model) -> Model:
    """The model with local functions where onnxruntime lacks an operator or a type; itself where it lacks none.

    Bodies of control flow are not entered. What no function is known for stays, and onnxruntime refuses it.
    """
    return model.derived(_emulated)


def _emulated(model: Model) -> Model:
    opset, graph = opset_of(model.proto) or 1, model.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    constants = (node for node in graph.node if node.op_type == "Constant")
    held.update((node.output[0], one.t) for node in constants for one in node.attribute if one.name == "value")
    fp4 = any(tensor.data_type == NVFP4.element_type for tensor in held.values())
    if opset < _FIRST_OPSET or not (fp4 or any(node.domain == "trt" for node in graph.node)):
        return model
    made, bodies = model.copy(), dict[str, str]()
    for node in made.graph.node:
        given = (one for one in node.attribute if one.type == _TYPES.get(one.name, onnx.AttributeProto.INT))
        has = {one.name: helper.get_attribute_value(one) for one in given}
        quantizes = node.domain == "" and node.op_type == QUANTIZE and _is_fp4(node, has, held)
        if (node.op_type == "Cast" and has.get("to") == NVFP4.element_type) or (
            quantizes and not _in_one_scale(node, held)
        ):
            return model  # a rounding to FP4 that is not known here
        write = _quantize_fp4 if quantizes else _FUNCTIONS.get(node.op_type) if node.domain == "trt" else None
        body = write(has, list(node.input)) if write is not None else ""
        if body:
            node.op_type, node.domain = bodies.setdefault(body, f"{node.op_type}_{len(bodies)}"), _DOMAIN
            del node.attribute[:]
            if quantizes:
                del node.input[2:]
    for body, name in bodies.items():
        text = f'<domain: "{_DOMAIN}", opset_import: ["" : {opset}]> {name} {body}'
        made.proto.functions.append(onnx.parser.parse_function(text))
    if bodies:
        made.proto.ir_version = max(made.proto.ir_version, _FIRST_IR)
        made.proto.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    if fp4:
        _hold_fp4_in_fp8(made)
    return made


def _is_fp4(node: onnx.NodeProto, has: _Attributes, held: Mapping[str, onnx.TensorProto]) -> bool:
    zero = held.get(node.input[2]) if len(node.input) > 2 else None
    kind = has.get("output_dtype", 0) or (0 if zero is None else zero.data_type)
    return bool(kind == NVFP4.element_type)


def _in_one_scale(node: onnx.NodeProto, held: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether a QuantizeLinear has one scale for the tensor, or for each block."""
    scale = held.get(node.input[1])
    return any(one.name == "block_size" and one.i for one in node.attribute) or (
        scale is not None and int(np.prod(scale.dims)) == 1
    )


def _hold_fp4_in_fp8(model: Model) -> None:
    """Store codes of FP4, all of which FP8 has, as FP8."""
    tensors = list(model.graph.initializer)
    tensors += [one.t for node in model.graph.node if node.op_type == "Constant" for one in node.attribute]
    for tensor in tensors:
        if tensor.data_type == NVFP4.element_type:
            codes = array_of(tensor, model.folder).astype(np.float32).astype(FP8.dtype)
            tensor.CopyFrom(numpy_helper.from_array(codes, tensor.name))
    for value in (*model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == NVFP4.element_type:
            value.type.tensor_type.elem_type = FP8.element_type


def _blocks(values: str, axis: int, block: int) -> str:
    """Text that makes `blocked` of a tensor, its axis cut into blocks, `shape`, its own, and `along`, those of a block.

    An axis from the back stays one with a tensor of any rank.
    """
    rest = "" if axis == -1 else ", after"
    after = "" if axis == -1 else f"after = Shape <start = {axis + 1}> ({values})"
    return f"""
    shape = Shape ({values})
    before = Shape <start = 0, end = {axis}> ({values})
    {after}
    cut = Constant <value_ints = [-1, {block}]> ()
    cut_shape = Concat <axis = 0> (before, cut{rest})
    blocked = Reshape ({values}, cut_shape)
    along = Constant <value_ints = [{axis if axis < 0 else axis + 1}]> ()
"""


def _quantize_fp4(has: _Attributes, reads: list[str]) -> str:
    axis, block = has.get("axis", 1), has.get("block_size", 0)
    cut = _blocks("values", axis, block) + "by = Unsqueeze (scale, along)"
    whole = "shape = Shape (values)\n blocked = Identity (values)\n by = Identity (scale)"
    return f"""(x, s) => (q) {{
    values = Cast <to = 1> (x)
    scale = Cast <to = 1> (s)
    {cut if block else whole}
    steps = Div (blocked, by)
    {_FP4_CODES}
}}"""


def _dynamic_fp4(has: _Attributes, reads: list[str]) -> str:
    """`scale = e4m3(amax / 6 / s)`, codes of `x / (scale * s)`; 0 in a block whose scale is 0."""
    return f"""(x, s) => (q, scale) {{
    values = Cast <to = 1> (x)
    second = Cast <to = 1> (s)
    {_blocks("values", has.get("axis", 1), has.get("block_size", 16))}
    magnitudes = Abs (blocked)
    amax = ReduceMax (magnitudes, along)
    six = Constant <value_float = {NVFP4.largest}.0> ()
    zero = Constant <value_float = 0.0> ()
    most = Constant <value_float = {FP8.largest}.0> ()
    first = Div (amax, six)
    ratio = Div (first, second)
    bounded_ratio = Clip (ratio, zero, most)
    scales = Cast <to = {FP8.element_type}> (bounded_ratio)
    scale_values = Cast <to = 1> (scales)
    step = Mul (scale_values, second)
    any = Greater (step, zero)
    divided = Div (blocked, step)
    steps = Where (any, divided, zero)
    {_FP4_CODES}
    squeezed = Squeeze (scale_values, along)
    scale = Cast <to = {FP8.element_type}> (squeezed)
}}"""


def _powers() -> str:
    """Text that makes `powers`, the values of E8M0 by their codes but 255, which is no number."""
    values = ", ".join(repr(float(np.ldexp(1.0, code - _BIAS))) for code in range(255))
    return f"powers = Constant <value_floats = [{values}]> ()"


def _mxfp8_codes() -> str:
    return f"""
    scale_steps = Gather (powers, exponent)
    unbounded = Div (blocked, scale_steps)
    most = Constant <value_float = {FP8.largest}.0> ()
    least = Constant <value_float = {FP8.lowest}.0> ()
    bounded = Clip (unbounded, least, most)
    whole = Reshape (bounded, shape)
    q = Cast <to = {FP8.element_type}> (whole)
"""


def _dynamic_mxfp8(has: _Attributes, reads: list[str]) -> str:
    """`scale = 2 ** ceil(log2(amax / 448))` as E8M0: the logarithm is a first guess, powers of two decide."""
    return f"""(x) => (q, scale) {{
    values = Cast <to = 1> (x)
    {_powers()}
    {_blocks("values", has.get("axis", -1), has.get("block_size", 32))}
    magnitudes = Abs (blocked)
    amax = ReduceMax (magnitudes, along)
    largest = Constant <value_float = {FP8.largest}.0> ()
    least_step = Div (amax, largest)
    logarithm = Log (least_step)
    log_of_two = Constant <value_float = {float(np.log(2))}> ()
    in_twos = Div (logarithm, log_of_two)
    nearest = Round (in_twos)
    bias = Constant <value_float = {_BIAS}.0> ()
    biased = Add (nearest, bias)
    first = Constant <value_float = 1.0> ()
    last = Constant <value_float = 253.0> ()
    in_range = Clip (biased, first, last)
    guess = Cast <to = 7> (in_range)
    one = Constant <value_int = 1> ()
    below = Sub (guess, one)
    power = Gather (powers, guess)
    power_below = Gather (powers, below)
    short = Less (power, least_step)
    long = GreaterOrEqual (power_below, least_step)
    more = Cast <to = 7> (short)
    less = Cast <to = 7> (long)
    raised = Add (guess, more)
    exponent = Sub (raised, less)
    {_mxfp8_codes()}
    squeezed = Squeeze (exponent, along)
    scale = Cast <to = 2> (squeezed)
}}"""


def _blocks_with_exponents(has: _Attributes) -> str:
    """The values of `x` in blocks, and the exponent of each block's `scale`."""
    return f"""values = Cast <to = 1> (x)
    {_powers()}
    {_blocks("values", has.get("axis", -1), has.get("block_size", 32))}
    flat_exponent = Cast <to = 7> (scale)
    exponent = Unsqueeze (flat_exponent, along)"""


def _quantize_mxfp8(has: _Attributes, reads: list[str]) -> str:
    return f"""(x, scale) => (q) {{
    {_blocks_with_exponents(has)}
    {_mxfp8_codes()}
}}"""


def _dequantize_mxfp8(has: _Attributes, reads: list[str]) -> str:
    return f"""(x, scale) => (y) {{
    {_blocks_with_exponents(has)}
    steps = Gather (powers, exponent)
    scaled = Mul (blocked, steps)
    whole = Reshape (scaled, shape)
    y = Cast <to = {has.get("output_dtype", TensorProto.FLOAT)}> (whole)
}}"""


def _dequantize_blocks(has: _Attributes, reads: list[str]) -> str:
    """A matrix whose scales have blocks along both axes."""
    block = has.get("block_shape", ())
    if len(block) != 2 or len(reads) != 2:
        return ""
    kind = has.get("output_dtype", 0)
    return f"""(x, scale) => (y) {{
    values = Cast <to = 1> (x)
    steps = Cast <to = 1> (scale)
    shape = Shape (values)
    rows = Shape <start = 0, end = 1> (scale)
    columns = Shape <start = 1, end = 2> (scale)
    height = Constant <value_ints = [{block[0]}]> ()
    width = Constant <value_ints = [{block[1]}]> ()
    cut_shape = Concat <axis = 0> (rows, height, columns, width)
    blocked = Reshape (values, cut_shape)
    inner = Constant <value_ints = [1, 3]> ()
    by = Unsqueeze (steps, inner)
    scaled = Mul (blocked, by)
    whole = Reshape (scaled, shape)
    y = {f"Cast <to = {kind}> (whole)" if kind else "CastLike (whole, scale)"}
}}"""


def _attention(has: _Attributes, reads: list[str]) -> str:
    """ONNX's Attention of four axes whose Softmax has a pair; none that is causal, or packed, or of groups of heads."""
    known = {"normalization_quantize_to_type", "TRT_decomposable", "scale"}
    if not known.issuperset(has) or len(reads) != 5:
        return ""
    kind = has.get("normalization_quantize_to_type", FP8.element_type)
    mask = ", mask" if reads[3] else ""
    scale = f"scale = Constant <value_float = {float(has['scale'])!r}> ()" if "scale" in has else _ROOT_OF_DEPTH
    return f"""(q, k, v, mask, norm_scale) => (y) {{
    queries = Cast <to = 1> (q)
    keys = Cast <to = 1> (k)
    held = Cast <to = 1> (v)
    {scale}
    scaled = Mul (queries, scale)
    turned = Transpose <perm = [0, 1, 3, 2]> (keys)
    products = MatMul (scaled, turned)
    {"masking = Cast <to = 1> (mask)" if mask else ""}
    scores = {"Add (products, masking)" if mask else "Identity (products)"}
    shares = Softmax <axis = -1> (scores)
    steps = Cast <to = 1> (norm_scale)
    one_scale = Squeeze (steps)
    nothing = Constant <value_float = 0.0> ()
    zero = Cast <to = {kind}> (nothing)
    codes = QuantizeLinear (shares, one_scale, zero)
    rounded = DequantizeLinear (codes, one_scale, zero)
    sums = MatMul (rounded, held)
    y = CastLike (sums, q)
}}"""


_ROOT_OF_DEPTH = """
    depth = Shape <start = 3, end = 4> (queries)
    depth_value = Cast <to = 1> (depth)
    root = Sqrt (depth_value)
    scale = Reciprocal (root)
"""
_FUNCTIONS: dict[str, Callable[[_Attributes, list[str]], str]] = {
    "TRT_FP4DynamicQuantize": _dynamic_fp4,
    "TRT_MXFP8DynamicQuantize": _dynamic_mxfp8,
    "TRT_MXFP8QuantizeLinear": _quantize_mxfp8,
    "TRT_MXFP8DequantizeLinear": _dequantize_mxfp8,
    "TRT_BlockDequantize": _dequantize_blocks,
    "TRT_QuantizedAttention": _attention,
}
