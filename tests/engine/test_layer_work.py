# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""What kernels compute and move: sizes of products, attentions that are one kernel, layers between products."""

from __future__ import annotations

import onnx
import pytest

from qdqtool import InsertOptions, PlanOptions, insert
from qdqtool.engine.layer_info import EngineLayer, LayerTensor
from qdqtool.engine.layer_work import LayerWork, Product, built_work
from qdqtool.forecasting.model_layers import layers_in
from qdqtool.graph.model import Model
from qdqtool.match.options import AttentionType
from qdqtool.trtversion import TrtVersion
from tests.graphs import model_of

WEIGHTS = "float[32,32] wq, float[32,32] wk, float[32,32] wv, float[32,32] wo, float[32,8] wy, int64[4] to = {0,0,2,16}, int64[3] back = {0,0,32}, float s = {0.25}"
LINEARS = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) qr = Reshape(q, to) kr = Reshape(k, to) vr = Reshape(v, to) qt = Transpose<perm=[0,2,1,3]>(qr) kt = Transpose<perm=[0,2,3,1]>(kr) vt = Transpose<perm=[0,2,1,3]>(vr)"
CORE = "c = MatMul(qt, kt) d = Mul(c, s) e = Softmax(d) f = MatMul(e, vt)"
TURNED = "c = MatMul(qt, kt) d = Mul(c, s) e = Softmax(d) et = Transpose<perm=[0,1,3,2]>(e) vu = Transpose<perm=[0,1,3,2]>(vt) fu = MatMul(vu, et) f = Transpose<perm=[0,1,3,2]>(fu)"
BEHIND = "ft = Transpose<perm=[0,2,1,3]>(f) fr = Reshape(ft, back) o = MatMul(fr, wo) y = MatMul(o, wy)"


def attention(core: str = CORE) -> onnx.ModelProto:
    return model_of(f"g (float[1,12,32] x) => (float[1,12,8] y) <{WEIGHTS}> {{ {LINEARS} {core} {BEHIND} }}")


def work_of(model: onnx.ModelProto, version: str = "10.3.0") -> list[LayerWork]:
    found = layers_in(Model(model), TrtVersion(*map(int, version.split("."))), "gpu", rest="fp16")
    assert found is not None
    return found


def with_pairs(model: onnx.ModelProto, how: AttentionType) -> onnx.ModelProto:
    return insert(model, options=InsertOptions(PlanOptions(float_heads="none", attention=how))).model


def kinds(work: list[LayerWork]) -> list[str]:
    return [layer.kind for layer in work]


@pytest.mark.parametrize(
    ("text", "product"),
    [
        ("g (float[2,4,8,8] x) => (float[2,6,4,4] y) <float[6,4,3,3] w> { y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w) }",
         Product(1, 32, 6, 36, 9)),
        ("g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,1,3,3] w> { y = Conv<group=4, pads=[1,1,1,1]>(x, w) }",
         Product(4, 64, 1, 9, 9)),
        ("g (float[1,4,8,8] x) => (float[1,6,16,16] y) <float[4,6,2,2] w> { y = ConvTranspose<strides=[2,2]>(x, w) }",
         Product(1, 64, 24, 4)),
        ("g (float[3,7] x) => (float[3,5] y) <float[5,7] w> { y = Gemm<transB=1>(x, w) }", Product(1, 3, 5, 7)),
        ("g (float[2,3,7] x) => (float[2,3,5] y) <float[7,5] w> { y = MatMul(x, w) }", Product(1, 6, 5, 7)),
        ("g (float[2,4,3,7] x, float[2,4,7,5] z) => (float[2,4,3,5] y) { y = MatMul(x, z) }",
         Product(8, 3, 5, 7, weighted=False)),
    ],
)  # fmt: skip
def test_the_sizes_of_a_product(text: str, product: Product) -> None:
    (found,) = [one for layer in work_of(model_of(text)) for one in layer.products]
    assert found == product


def test_a_float_attention_is_one_kernel_that_never_writes_its_scores() -> None:
    work = work_of(attention())
    (one,) = [layer for layer in work if layer.kind == "attention"]
    assert [product.macs for product in one.products] == [2 * 12 * 12 * 16] * 2 and one.unit == "half"
    tokens = 2 * 12 * 32
    assert sorted(one.activations) == [tokens] * 4 and "transpose" not in kinds(work)


def test_before_8_6_and_in_a_form_that_does_not_fuse_it_is_several_layers() -> None:
    scores = 2 * 2 * 12 * 12
    for work in (work_of(attention(), "8.5.2"), work_of(attention(TURNED))):
        assert "attention" not in kinds(work)
        assert any(scores in layer.activations for layer in work)


def test_an_int8_attention_is_one_kernel_and_one_that_lacks_a_pair_is_none() -> None:
    whole = with_pairs(attention(), "int8")
    (one,) = [layer for layer in work_of(whole) if layer.kind == "attention"]
    assert one.unit == "int8" and sorted(one.activations)[-1] == 12 * 32
    kept = with_pairs(attention(), "float")
    assert [layer.unit for layer in work_of(kept) if layer.kind == "attention"] == ["half"]
    broken = onnx.ModelProto.FromString(whole.SerializeToString())
    last = next(node for node in broken.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "e")
    reads = next(node for node in broken.graph.node if node.input[:1] == last.output[:1])
    for node in broken.graph.node:
        node.input[:] = ["e" if name == reads.output[0] else name for name in node.input]
    for node in (last, reads):
        broken.graph.node.remove(node)
    assert "attention" not in kinds(work_of(broken))


def test_layers_between_two_products_are_one_kernel_from_8_6_on() -> None:
    text = """g (float[1,8,16] x) => (float[1,8,16] y) <float[16,16] v, float[16,16] w, float[16] s, float[16] b>
    { a = MatMul(x, v) n = LayerNormalization<axis=-1>(a, s, b) t = Transpose<perm=[0,2,1]>(n) r = ReduceMean<axes=[1]>(t)
      m = Sub(t, r) u = Transpose<perm=[0,2,1]>(m) y = MatMul(u, w) }"""
    apart, together = work_of(model_of(text, 17), "8.5.2"), work_of(model_of(text, 17))
    assert kinds(together) == ["product", "joined", "product"] and len(apart) > 4
    (kernel,) = [layer for layer in together if layer.kind == "joined"]
    assert kernel.activations == (2 * 8 * 16, 2 * 8 * 16), "what passes inside is not moved"
    assert sum(layer.macs for layer in apart) == sum(layer.macs for layer in together)


def test_an_attention_in_fp32_is_several_layers_as_wide_as_its_type() -> None:
    found = layers_in(Model(attention()), TrtVersion(10, 3, 0), "gpu", rest="file")
    assert found is not None and "attention" not in kinds(found)
    assert any(4 * 2 * 12 * 12 in layer.activations for layer in found)
    assert {layer.unit for layer in found if layer.products} == {"single"}


def test_the_work_of_built_layers_is_of_their_types_and_sizes() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,6,8,8] y) <float[6,4,1,1] w> { r = Conv(x, w) y = Relu(r) }"
    model, conv, relu = Model(model_of(text)), "node_of_r", "node_of_y"
    layers = [
        EngineLayer("q", "kgen", inputs=(LayerTensor("Half", "x", (1, 4, 8, 8)),), outputs=(LayerTensor("Int8", "i", (1, 4, 8, 8)),)),
        EngineLayer(
            "c", "correlation", (conv,), (LayerTensor("Int8", "i", (1, 4, 8, 8)),), (LayerTensor("Float", "o", (1, 6, 8, 8)),),
            constants=(LayerTensor("Int8", "w", (6, 4, 1, 1)),),
        ),
        EngineLayer("__myl_Relu", "kgen", (relu, conv), (LayerTensor("Float", "o", (1, 6, 8, 8)),), (LayerTensor("Half", "y", (1, 6, 8, 8)),)),
    ]  # fmt: skip
    work = built_work(model, layers)
    assert [(one.kind, one.unit, one.macs, one.moved) for one in work] == [
        ("kgen", "half", 0, 2 * 256 + 256),
        ("convolution", "int8", 6 * 4 * 64, 256 + 4 * 384 + 24),
        ("kgen", "half", 0, 4 * 384 + 2 * 384),
    ]


PACKED = "t = MatMul(x, wp) r = Reshape(t, five) p = Transpose<perm=[2,0,3,1,4]>(r) qt = Gather<axis=0>(p, i0) kn = Gather<axis=0>(p, i1) vt = Gather<axis=0>(p, i2) kt = Transpose<perm=[0,1,3,2]>(kn)"
CUT = "float[32,96] wp, int64[5] five = {1,32,3,2,16}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}"


def packed(*, fp8: bool = False) -> list[LayerWork]:
    """The kernels of an attention after one packed product, on TensorRT for RTX."""
    model = model_of(f"g (float[1,32,32] x) => (float[1,32,8] y) <{WEIGHTS}, {CUT}> {{ {PACKED} {CORE} {BEHIND} }}")
    if fp8:
        plan = PlanOptions("rtx", format="fp8", attention="int8", float_heads="none")
        model = insert(model, options=InsertOptions(plan)).model
    found = layers_in(Model(model), None, "rtx", rest="fp16")
    assert found is not None
    return list(found)


def test_rtx_cuts_a_packed_float_product_by_a_kernel_for_each_operand_and_codes_by_one() -> None:
    half, fp8 = packed(), packed(fp8=True)
    assert kinds(half) == ["product", "kernel", "kernel", "kernel", "attention", "product", "product"]
    assert [layer.moved for layer in half[1:4]] == [2 * 2 * 32 * 32] * 3
    assert [layer.layers for layer in half[1:4]] == [1, 0, 0]
    assert kinds(fp8)[:4] == ["kernel", "product", "kernel", "attention"]


def test_rtx_rounds_and_moves_in_the_kernel_of_an_attention() -> None:
    for work in (packed(), packed(fp8=True)):
        (one,) = [layer for layer in work if layer.kind == "attention"]
        (reader,) = [layer for layer in work if layer.read.keys() & one.written.keys()]
        assert reader.kind == "product"


def test_rtx_takes_no_bias_into_a_product_with_an_int4_weight() -> None:
    model = model_of(
        "g (float[8,64] x) => (float[8,32] y) <float[64,32] w, float[32] b> { m = MatMul(x, w) y = Add(m, b) }"
    )
    options = InsertOptions(PlanOptions("rtx", format="int4", float_heads="none"))
    found = [layers_in(Model(one), None, "rtx", rest="fp16") for one in (model, insert(model, options=options).model)]
    assert [[layer.kind for layer in work or ()] for work in found] == [["product"], ["product", "kernel"]]
