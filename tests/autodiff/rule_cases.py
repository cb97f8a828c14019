# SPDX-License-Identifier: Apache-2.0
"""One small graph per operator and way of using it; y is differentiated by the parameters. Data only."""

from __future__ import annotations

import itertools

import numpy as np

from tests.autodiff.numeric import RuleCase

I64 = np.int64
F32 = np.float32


def ints(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, I64)


def unary(op: str, low: float = -2.0, high: float = 2.0, opset: int = 17) -> RuleCase:
    return RuleCase(f"y = {op}(x)", {"x": "2,7"}, opset=opset, low=low, high=high)


UNARY = [
    *(unary(op) for op in ("Abs", "Asinh", "Atan", "Cos", "Cosh", "Erf", "Exp", "Identity", "Mish", "Neg", "Relu")),
    *(unary(op) for op in ("Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Tanh")),
    *(unary(op, 0.3, 3.0) for op in ("Log", "Reciprocal", "Sqrt")),
    *(unary(op, -0.8, 0.8) for op in ("Acos", "Asin", "Atanh", "Tan")),
    unary("Acosh", 1.3, 3.0),
    unary("HardSwish", -4.5, 4.5),
    unary("HardSigmoid", -4.5, 4.5),
    unary("HardSigmoid<alpha=0.3, beta=0.4>"),
    unary("Elu"),
    unary("Elu<alpha=0.7>"),
    unary("Celu"),
    unary("Celu<alpha=0.7>"),
    unary("Selu"),
    unary("Selu<alpha=1.2, gamma=0.9>"),
    unary("LeakyRelu"),
    unary("LeakyRelu<alpha=0.2>"),
    unary("ThresholdedRelu<alpha=0.5>"),
    unary("Gelu", opset=20),
    unary('Gelu<approximate="tanh">', opset=20),
    RuleCase("y = CastLike(x, k)", {"x": "2,3"}, {"k": F32(1)}),
    RuleCase("d = Cast<to=11>(x)\n e = Mul(d, d)\n y = Cast<to=1>(e)", {"x": "2,3"}, label="Cast"),
    RuleCase("y = Dropout(x)", {"x": "2,3"}),
    RuleCase("y = Dropout(x, r, t)", {"x": "2,3"}, {"r": F32(0.5), "t": np.array(False)}),
]
UNARY = [RuleCase(c.nodes, c.params, c.constants, 18, c.low, c.high) if "Mish" in c.nodes else c for c in UNARY]

ARITHMETIC = [
    *(
        RuleCase(f"y = {op}(a, b)", {"a": a, "b": b}, low=0.4, high=2.0)
        for op in ("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max")
        for a, b in (("2,3", "2,3"), ("2,3,1", "4"), ("", "2,2"))
    ),
    RuleCase("y = Add(x, x)", {"x": "2,3"}),
    RuleCase("y = Mul(x, x)", {"x": "2,3"}),
    RuleCase("y = Pow(x, p)", {"x": "2,3"}, {"p": F32(2)}, label="Pow square"),
    RuleCase("y = Pow(x, p)", {"x": "2,3"}, {"p": I64(3)}, label="Pow of an integer"),
    *(RuleCase(f"y = {op}(a, b, c)", {"a": "2,3", "b": "3", "c": "2,1"}) for op in ("Sum", "Mean", "Min", "Max")),
    *(RuleCase(f"y = {op}(x)", {"x": "2,3"}, label=f"{op} of one") for op in ("Sum", "Mean", "Min", "Max")),
    RuleCase("y = Where(c, a, b)", {"a": "2,1", "b": "3"}, {"c": np.array([[True, False, True]])}),
    RuleCase("y = Clip(x, a, b)", {"x": "2,7"}, {"a": F32(-1), "b": F32(0.5)}),
    RuleCase("l = Sub(m, one)\n y = Clip(x, l, m)", {"x": "2,7", "m": ""}, {"one": F32(1)}, label="Clip by its bounds"),
    RuleCase("y = Clip(x, , b)", {"x": "2,7"}, {"b": F32(0.5)}),
    RuleCase("y = Clip(x)", {"x": "2,7"}),
    RuleCase("y = PRelu(x, s)", {"x": "2,3,2,2", "s": "3,1,1"}),
    RuleCase("y = PRelu(x, s)", {"x": "2,3", "s": "1"}),
]

_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSum",
    "ReduceLogSumExp",
)
REDUCTIONS = [
    *(RuleCase(f"y = {op}(x, a)", {"x": "2,3,4"}, {"a": ints(1, -1)}, 18, 0.3, 1.5) for op in _REDUCTIONS),
    *(RuleCase(f"y = {op}<keepdims=0>(x)", {"x": "2,3"}, {}, 17, 0.3, 1.5) for op in _REDUCTIONS),
    *(RuleCase(f"y = {op}<axes=[-2], keepdims=0>(x)", {"x": "2,3,2"}, {}, 13, 0.3, 1.5) for op in _REDUCTIONS[1:]),
    RuleCase("y = ReduceSum<noop_with_empty_axes=1>(x)", {"x": "2,3"}),
    *(
        RuleCase(f"y = CumSum<exclusive={e}, reverse={r}>(x, a)", {"x": "2,4"}, {"a": I64(1)})
        for e, r in itertools.product((0, 1), (0, 1))
    ),
]

LAYOUT = [
    RuleCase("y = Reshape(x, s)", {"x": "2,6"}, {"s": ints(3, -1)}),
    RuleCase("y = Flatten<axis=2>(x)", {"x": "2,3,2"}),
    RuleCase("y = Squeeze(x)", {"x": "2,1,3"}),
    RuleCase("y = Unsqueeze(x, a)", {"x": "2,3"}, {"a": ints(0, -1)}),
    RuleCase("y = Transpose(x)", {"x": "2,3,4"}),
    RuleCase("y = Transpose<perm=[1,2,0]>(x)", {"x": "2,3,4"}),
    RuleCase("y = Expand(x, s)", {"x": "3,1"}, {"s": ints(2, 1, 4)}),
    RuleCase("y = Tile(x, r)", {"x": "2,3"}, {"r": ints(2, 3)}),
    RuleCase("y = Trilu(x)", {"x": "3,4"}),
    RuleCase("y = Trilu<upper=0>(x)", {"x": "2,4,3"}),
    *(
        RuleCase(f"y = Trilu<upper={u}>(x, k)", {"x": "2,3,3"}, {"k": I64(k)}, label=f"Trilu {u} {k}")
        for u in (0, 1)
        for k in (-1, 1)
    ),
    RuleCase("y = Concat<axis=-1>(a, b, a)", {"a": "2,3", "b": "2,1"}),
    RuleCase("y, z = Split<axis=1>(x, s)", {"x": "2,4"}, {"s": ints(1, 3)}, outputs=("y", "z")),
    RuleCase("u, y, v = Split<axis=1>(x, s)", {"x": "2,5"}, {"s": ints(1, 3, 1)}, label="Split, two unused"),
    RuleCase("u, y = Split(x)", {"x": "4,2"}, label="Split into equal parts"),
    RuleCase("u, y = Split<num_outputs=2>(x)", {"x": "5,2"}, opset=18, label="Split into uneven parts"),
    RuleCase("y = Slice(x, b, e)", {"x": "4,5"}, {"b": ints(1, -3), "e": ints(3, 100)}),
    RuleCase("y = Slice(x, b, e, a, s)", {"x": "7,5"}, {"b": ints(1), "e": ints(7), "a": ints(-2), "s": ints(3)}),
    RuleCase(
        "y = Slice(x, b, e, a, s)",
        {"x": "3,6"},
        {"b": ints(-1), "e": ints(-(2**62)), "a": ints(1), "s": ints(-2)},
        label="Slice backwards",
    ),
    RuleCase(
        "z = Slice(x, b, e)\n y = Concat<axis=0>(x, z)",
        {"x": "3"},
        {"b": ints(2), "e": ints(1)},
        label="Slice of nothing",
    ),
    RuleCase("y = Pad(x, p)", {"x": "2,3"}, {"p": ints(1, 0, 0, 2)}),
    RuleCase("y = Pad(x, p, v)", {"x": "2,3", "v": ""}, {"p": ints(1, -1, 0, 2)}),
    RuleCase("y = Pad(x, p, , a)", {"x": "2,3,4"}, {"p": ints(1, 2), "a": ints(-1)}, 18),
    RuleCase('y = Pad<mode="reflect">(x, p)', {"x": "1,2,3,4"}, {"p": ints(0, 0, 2, 1, 0, 0, 1, 3)}),
    RuleCase('y = Pad<mode="edge">(x, p)', {"x": "1,2,3,4"}, {"p": ints(0, 0, 2, 1, 0, 0, 1, 3)}),
    RuleCase('y = Pad<mode="wrap">(x, p)', {"x": "3,4"}, {"p": ints(2, 1, 1, 3)}, 19),
    *(RuleCase(f"y = DepthToSpace<blocksize=2{mode}>(x)", {"x": "2,8,2,3"}) for mode in ("", ', mode="CRD"')),
    RuleCase("y = SpaceToDepth<blocksize=2>(x)", {"x": "2,3,4,2"}),
]

_GRID = np.array([[[0, 1], [2, 0]], [[1, 1], [0, 2]]], I64)
INDEXING = [
    RuleCase("y = Gather(x, i)", {"x": "4,3"}, {"i": ints(0, -1, 0)}),
    RuleCase("y = Gather<axis=1>(x, i)", {"x": "2,4,3"}, {"i": np.array([[1, 1], [3, 0]], np.int32)}),
    RuleCase("y = Gather<axis=-1>(x, i)", {"x": "2,3"}, {"i": I64(-2)}, label="Gather one place"),
    RuleCase("y = GatherElements<axis=1>(x, i)", {"x": "2,4"}, {"i": np.array([[0, 0, 3], [-1, 2, 2]], I64)}),
    RuleCase("y = GatherND(x, i)", {"x": "3,3,2"}, {"i": _GRID}),
    RuleCase("y = GatherND<batch_dims=1>(x, i)", {"x": "2,3,3,2"}, {"i": _GRID}),
    *(
        RuleCase(
            f'y = ScatterElements<axis=1, reduction="{how}">(x, i, u)',
            {"x": "2,4", "u": "2,2"},
            {"i": np.array([[0, 3], [1, 2]], I64)},
        )
        for how in ("none", "add")
    ),
    *(
        RuleCase(
            f'y = ScatterND<reduction="{how}">(x, i, u)', {"x": "4,3", "u": "2,3"}, {"i": np.array([[0], [3]], I64)}
        )
        for how in ("none", "add")
    ),
    RuleCase("y, i = TopK<axis=1>(x, k)", {"x": "2,5,2"}, {"k": ints(3)}),
    RuleCase("y, i = TopK<largest=0>(x, k)", {"x": "2,5"}, {"k": ints(2)}),
]


def conv(how: str, x: str, w: str, b: str = "") -> RuleCase:
    params = {"x": x, "w": w, **({"b": b} if b else {})}
    return RuleCase(f"y = Conv{how}({', '.join(params)})", params, low=-1, high=1)


def deconv(how: str, x: str, w: str, b: str = "") -> RuleCase:
    params = {"x": x, "w": w, **({"b": b} if b else {})}
    return RuleCase(f"y = ConvTranspose{how}({', '.join(params)})", params, low=-1, high=1)


CONVOLUTION = [
    conv("", "2,3,4,4", "4,3,3,3", "4"),
    conv("", "2,3,3,3", "4,3,1,1", "4"),
    conv("", "1,3,3,3", "4,3,1,1"),
    conv("<strides=[2,2]>", "2,3,5,4", "4,3,1,1"),
    conv("<pads=[1,0,2,1]>", "2,2,4,3", "3,2,3,2"),
    conv("<pads=[3,3,3,3]>", "1,2,3,3", "2,2,3,3"),
    conv("<strides=[2,3], pads=[1,1,1,1]>", "2,2,6,7", "3,2,3,3"),
    conv("<strides=[3,3]>", "1,2,7,8", "2,2,2,2"),
    conv("<dilations=[2,1], pads=[1,1,1,1]>", "1,2,6,4", "2,2,3,2"),
    conv("<dilations=[2,2], strides=[2,2], pads=[2,1,1,2]>", "1,2,7,6", "2,2,2,3"),
    conv("<group=2>", "2,4,3,3", "6,2,2,2", "6"),
    conv("<group=2, strides=[2,2]>", "2,4,5,5", "4,2,2,2"),
    conv("<group=3, pads=[1,1,1,1]>", "2,3,4,4", "3,1,3,3", "3"),
    conv("<group=3, pads=[1,1,1,1], strides=[2,2]>", "2,3,5,6", "3,1,3,3"),
    conv("<group=3, dilations=[2,2], strides=[2,2]>", "1,3,8,7", "3,1,2,2"),
    conv("<group=3, strides=[2,1]>", "2,3,4,4", "6,1,2,2"),
    conv("<group=2>", "2,2,3,3", "4,1,1,1"),
    *(
        conv(f'<auto_pad="{auto}", strides=[{s},{s}]{group}>', "1,2,5,6", w)
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for s, group, w in ((1, "", "2,2,2,3"), (2, ", group=2", "2,1,3,3"), (2, "", "2,2,2,2"))
    ),
    conv("<pads=[1,0], strides=[2]>", "2,3,6", "4,3,3", "4"),
    conv("<group=3>", "2,3,5", "3,1,3"),
    conv("<strides=[2,1,1], pads=[1,0,0,0,1,0]>", "1,2,4,3,3", "2,2,2,2,2", "2"),
    deconv("", "2,3,3,3", "3,2,2,2", "2"),
    deconv("<strides=[2,2], pads=[1,1,1,1]>", "2,3,3,3", "3,2,4,4", "2"),
    deconv("<strides=[2,2], output_padding=[1,1], pads=[1,0,0,1]>", "1,2,3,2", "2,2,3,3"),
    deconv("<group=2, strides=[2,2]>", "1,4,2,3", "4,2,2,2"),
    deconv("<group=3, strides=[2,2]>", "2,3,2,3", "3,1,3,3"),
    deconv("<dilations=[2,2]>", "1,2,3,3", "2,2,2,2"),
    deconv("<strides=[2,2], output_shape=[5,6]>", "1,2,3,3", "2,2,3,3"),
    *(deconv(f'<strides=[2,2], auto_pad="{auto}">', "1,2,3,3", "2,2,3,3") for auto in ("SAME_UPPER", "SAME_LOWER")),
    deconv('<auto_pad="VALID", strides=[3,2], output_padding=[1,0]>', "1,2,2,3", "2,2,3,2"),
    deconv('<auto_pad="SAME_UPPER", strides=[2,3]>', "1,2,2,3", "2,2,3,2"),
    deconv("<strides=[2]>", "2,3,4", "3,2,3", "2"),
]

POOLING = [
    *(
        RuleCase(f"y = MaxPool<kernel_shape={how}>(x)", {"x": shape})
        for how, shape in (
            ("[2,2], strides=[2,2]", "2,2,4,5"),
            ("[3,3], strides=[2,2], pads=[1,1,1,1]", "1,2,5,6"),
            ("[3,3], pads=[1,1,1,1]", "1,2,4,4"),
            ("[2,2], strides=[2,2], ceil_mode=1", "1,2,5,5"),
            ("[2,2], dilations=[2,2]", "1,2,5,4"),
            ('[3,2], strides=[2,2], auto_pad="SAME_UPPER"', "1,2,5,5"),
            ('[3,2], strides=[2,2], auto_pad="SAME_LOWER"', "1,2,4,5"),
            ('[3,2], dilations=[2,1], auto_pad="VALID"', "1,2,7,4"),
            ("[3], strides=[2]", "2,2,7"),
            ("[2,2,2]", "1,1,3,3,3"),
        )
    ),
    RuleCase("y, i = MaxPool<kernel_shape=[2,2]>(x)", {"x": "1,2,3,3"}),
    *(
        RuleCase(f"y = AveragePool<kernel_shape={how}, count_include_pad={count}>(x)", {"x": shape}, opset=opset)
        for count in (0, 1)
        for how, shape, opset in (
            ("[2,2], strides=[2,2]", "2,2,4,5", 17),
            ("[3,3], strides=[2,2], pads=[1,1,1,1]", "1,2,5,6", 17),
            ("[3,2], pads=[1,0,1,1]", "1,2,4,4", 17),
            ("[3,3], strides=[2,2], ceil_mode=1, pads=[1,1,1,1]", "1,2,6,6", 19),
            ("[2,2], dilations=[2,2]", "1,2,5,4", 19),
            ('[3,2], strides=[2,2], auto_pad="SAME_UPPER"', "1,2,5,5", 17),
            ('[3,2], strides=[2,2], auto_pad="SAME_LOWER"', "1,2,4,5", 17),
            ('[3,2], strides=[2,3], auto_pad="VALID"', "1,2,7,8", 17),
            ("[3], strides=[2]", "2,2,7", 17),
            ("[2,2,2]", "1,1,3,3,3", 17),
        )
    ),
    RuleCase("y = GlobalAveragePool(x)", {"x": "2,3,3,2"}),
    RuleCase("y = GlobalMaxPool(x)", {"x": "2,3,3,2"}),
]

MATRIX = [
    *(
        RuleCase(f"y = Gemm<transA={a}, transB={b}, alpha=0.5, beta=2.0>(x, w, c)", {"x": x, "w": w, "c": "4"})
        for a, b, x, w in ((0, 0, "2,3", "3,4"), (1, 0, "3,2", "3,4"), (0, 1, "2,3", "4,3"), (1, 1, "3,2", "4,3"))
    ),
    RuleCase("y = Gemm(x, w)", {"x": "2,3", "w": "3,2"}),
    *(
        RuleCase("y = Gemm(x, w, c)", {"x": "2,3", "w": "3,2", "c": c}, label=f"Gemm with C [{c}]")
        for c in ("2,2", "2,1", "1", "")
    ),
    *(
        RuleCase("y = MatMul(a, b)", {"a": a, "b": b}, label=f"MatMul [{a}] [{b}]")
        for a, b in (
            ("2,3", "3,4"),
            ("2,2,3", "3,4"),
            ("2,2,3", "2,3,2"),
            ("3,1,2,3", "2,3,2"),
            ("3", "3,4"),
            ("2,3", "3"),
            ("3", "3"),
            ("2,3", "2,3,2"),
            ("3", "2,3,2"),
            ("2,2,3", "3"),
        )
    ),
    RuleCase('y = Einsum<equation="ij,jk->ki">(a, b)', {"a": "2,3", "b": "3,2"}),
    RuleCase('y = Einsum<equation="bi, bj">(a, b)', {"a": "2,3", "b": "2,2"}),
    RuleCase('y = Einsum<equation="bij->b">(a)', {"a": "2,3,2"}),
]

NORMALIZATION = [
    RuleCase(
        "y = BatchNormalization(x, s, b, m, v)",
        {"x": "2,3,2,2", "s": "3", "b": "3", "m": "3", "v": "3"},
        low=0.4,
        high=2.0,
    ),
    RuleCase(
        "y = BatchNormalization<epsilon=0.1>(x, s, b, m, v)",
        {"x": "4,3", "s": "3", "b": "3"},
        {"m": np.ones(3, F32), "v": np.full(3, 2, F32)},
    ),
    RuleCase("y = InstanceNormalization<epsilon=0.01>(x, s, b)", {"x": "2,3,2,3", "s": "3", "b": "3"}),
    RuleCase("y = LayerNormalization<epsilon=0.01>(x, s, b)", {"x": "2,3,4", "s": "4", "b": "4"}),
    RuleCase("y = LayerNormalization<axis=1>(x, s)", {"x": "2,3,2", "s": "3,2"}),
    RuleCase(
        "y = GroupNormalization<num_groups=2, epsilon=0.01>(x, s, b)", {"x": "2,4,2,2", "s": "4", "b": "4"}, opset=21
    ),
    RuleCase("y = LRN<size=3, alpha=0.3, beta=0.6, bias=1.5>(x)", {"x": "2,5,2,1"}),
    RuleCase("y = MeanVarianceNormalization(x)", {"x": "2,3,2,3"}),
    RuleCase("y = MeanVarianceNormalization<axes=[1]>(x)", {"x": "2,4"}),
    *(RuleCase(f"y = {op}<axis={axis}>(x)", {"x": "2,3,2"}) for op in ("Softmax", "LogSoftmax") for axis in (-1, 1)),
    *(RuleCase(f"y = LpNormalization<axis=1, p={p}>(x)", {"x": "2,3"}) for p in (1, 2)),
]

_LABELS = np.array([[1, 2], [0, 1], [2, 2]], I64)
LOSSES = [
    *(
        RuleCase(
            f'y = {op}<reduction="{how}", ignore_index=1>(x, t{weight})',
            {"x": "3,3,2"},
            {"t": _LABELS, "w": np.array([0.5, 1, 2], F32)},
        )
        for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
        for how in ("mean", "sum", "none")
        for weight in ("", ", w")
    ),
    RuleCase("y = SoftmaxCrossEntropyLoss(x, t)", {"x": "3,4"}, {"t": np.array([1, 3, 0], np.int32)}),
    RuleCase(
        "y, z = SoftmaxCrossEntropyLoss<ignore_index=-100>(x, t)",
        {"x": "3,4"},
        {"t": ints(1, -100, 0)},
        outputs=("y", "z"),
    ),
    RuleCase(
        "u, y = SoftmaxCrossEntropyLoss(x, t)", {"x": "3,4"}, {"t": ints(1, 2, 0)}, label="log probabilities alone"
    ),
]


def resize(
    how: str,
    x: str = "1,2,3,4",
    sizes: tuple[int, ...] = (),
    scales: tuple[float, ...] = (),
    opset: int = 13,
    roi: tuple[float, ...] = (),
) -> RuleCase:
    constants = {"r": np.array(roi, F32), **({"n": ints(*sizes)} if sizes else {"s": np.array(scales, F32)})}
    tail = "x, r, , n" if sizes else "x, r, s"
    return RuleCase(f"y = Resize<{how}>({tail})", {"x": x}, constants, opset, label=f"Resize<{how}> {sizes or scales}")


_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
RESIZING = [
    *(
        resize(f'mode="{mode}", coordinate_transformation_mode="{where}"', sizes=(1, 2, *size))
        for mode in ("nearest", "linear", "cubic")
        for where in _COORDINATES
        for size in ((6, 8), (2, 7))
    ),
    resize('mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"', scales=(1, 1, 2, 2)),
    resize('mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="ceil"', scales=(1, 1, 1.7, 0.6)),
    resize('mode="linear", coordinate_transformation_mode="half_pixel"', scales=(1, 1, 1.7, 0.6)),
    resize('mode="linear", coordinate_transformation_mode="half_pixel_symmetric"', scales=(1, 1, 1.7, 0.6), opset=19),
    resize('mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1', sizes=(1, 2, 5, 9)),
    resize('mode="linear", antialias=1', sizes=(1, 2, 2, 2), opset=18),
    resize(
        'mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=3.0',
        sizes=(1, 2, 4, 5),
        roi=(0, 0, 0.1, -0.3, 1, 1, 0.8, 1.2),
    ),
    resize('mode="linear", axes=[3,2]', sizes=(9, 4), opset=18),
    resize('mode="nearest"', x="2,3", sizes=(4, 6)),
    resize('mode="linear"', x="1,2,4", sizes=(1, 2, 7)),
]


CASES = [
    *(*UNARY, *ARITHMETIC, *REDUCTIONS, *LAYOUT, *INDEXING, *CONVOLUTION),
    *(*POOLING, *MATRIX, *NORMALIZATION, *LOSSES, *RESIZING),
]
