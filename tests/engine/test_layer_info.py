# SPDX-License-Identifier: Apache-2.0
"""Layer information of engines: every form of export and log, what its kernels tell, and files that are none."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qdqtool.engine.layer_info import EngineLayer, LayerTensor
from qdqtool.engine.read_info import read_layer_info
from qdqtool.errors import QdqError

INT8, HALF = "Thirty-two wide channel vectorized row major Int8 format", "Row major linear FP16 format"


def port(kind: str) -> dict[str, Any]:
    return {"Name": "t", "Dimensions": [1, 4], "Format/Datatype": kind}


def entry(name: str, read: str = INT8, written: str = INT8, **more: Any) -> dict[str, Any]:
    return {"Name": name, "LayerType": "CaskConvolution", "Inputs": [port(read)], "Outputs": [port(written)], **more}


def export(tmp_path: Path, *layers: object, **more: object) -> Path:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"Layers": layers, **more}), encoding="utf-8")
    return path


def test_an_export_of_8_tells_types_kernels_and_nodes_by_name(tmp_path: Path) -> None:
    info = read_layer_info(export(tmp_path, entry("w + Q_1 + Conv_2", written=HALF, TacticName="k"), Bindings=["x"]))
    (layer,) = info.layers
    assert (info.source, layer.kind, layer.output, layer.reads_int8) == ("json", "CaskConvolution", "float", True)
    assert layer.nodes({"Conv_2": "", "Q_1": "", "Add_3": ""}) == {"Conv_2", "Q_1"}
    assert not info.has_metadata


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("A + PWN(PWN(B), C)", {"A", "B", "C"}),
        ("A + B || C + D", {"A", "B", "C", "D"}),
        ("PWN(k + (Unnamed Layer* 30) [Shuffle], B)", {"B"}),
        ("A_myl2_16", {"A"}),
        ("__myl_CastMulA_myl2_16", set()),
        ("weird (1) + B", {"weird (1)", "B"}),
    ],
)
def test_nodes_in_a_name(name: str, nodes: set[str]) -> None:
    assert EngineLayer(name).nodes(dict.fromkeys(["A", "B", "C", "D", "weird (1)"], "")) == nodes


def test_metadata_of_10_names_nodes_with_both_separators(tmp_path: Path) -> None:
    text = "[ONNX Layer: /a/Conv]\x1f[ONNX Layer: a[0]_Q]\x1e[ONNX Layer: /a/Relu]"
    layer = read_layer_info(export(tmp_path, entry("__myl_X_myl2_3", "Int8", "Half", Metadata=text))).layers[0]
    assert layer.metadata == ("/a/Conv", "a[0]_Q", "/a/Relu")
    assert layer.nodes({}) == {"/a/Conv", "a[0]_Q", "/a/Relu"} and layer.output == "float"


def test_an_export_with_names_only_and_one_without_the_outer_table(tmp_path: Path) -> None:
    assert [layer.name for layer in read_layer_info(export(tmp_path, "Conv_0 + Relu_1", "MaxPool_2")).layers] == [
        "Conv_0 + Relu_1",
        "MaxPool_2",
    ]
    bare = tmp_path / "bare.json"
    bare.write_text("\ufeff" + json.dumps([entry("Conv_0")]), encoding="utf-8")
    assert read_layer_info(bare).layers[0].output == "int8"
    wide = tmp_path / "wide.json"
    wide.write_text(json.dumps({"Layers": ["Conv_0"]}), encoding="utf-16")
    layer = read_layer_info(wide).layers[0]
    assert layer.output is None and layer.tensor_cores is None


@pytest.mark.parametrize(
    ("tactic", "read", "cores"),
    [
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_tensor16x8x32_t1r3s3", INT8, True),
        ("turing_fp16_i8816cudnn_int8_128x128_ldg16_relu_small_nt_v1", INT8, True),
        ("sm72_imma_fprop", INT8, True),
        ("cutlass3x_sm100_tensorop_i256x128x32implicit_gemm_fprop_s8_s8", INT8, True),
        ("volta_int8x4_icudnn_int8x4_128x64_relu_interior_nn_v1", INT8, False),
        ("sm70_xmma_fprop_conv1x1_i8f32_f32_f32_nchw_simt_small_batch_bias_relu", INT8, False),
        ("sm100_conv_act_pool_v5_s8", INT8, None),
        ("", INT8, None),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_tensor16x8x16", HALF, None),
    ],
)
def test_what_a_kernels_name_tells_of_tensor_cores(tactic: str, read: str, cores: bool | None) -> None:
    assert EngineLayer("a", inputs=(LayerTensor(read),), tactic=tactic).tensor_cores is cores


@pytest.mark.parametrize(
    ("layer", "reformat"),
    [
        (EngineLayer("Reformatting CopyNode for Input Tensor 0 to Conv_1", "Reformat", origin="REFORMAT"), True),
        (EngineLayer("Reformatting CopyNode for Network Input x", "NoOp"), True),
        (EngineLayer("entry^bb^signal^2_myl2_0", "signal"), True),
        (EngineLayer("647 copy", "Reformat"), True),
        (EngineLayer("QuantizeLinear_2", "Reformat", origin="QDQ"), False),
        (EngineLayer("QuantizeLinear_2", "Scale"), False),
    ],
)
def test_what_is_a_reformat(layer: EngineLayer, reformat: bool) -> None:
    assert layer.is_reformat is reformat


@pytest.mark.parametrize(
    ("text", "kind"),
    [("Int8", "int8"), ("UInt8", "other"), ("Row major linear Int32", "other"), ("BFloat16", "float"), ("N/A", None)],
)
def test_types_as_files_write_them(text: str, kind: str | None) -> None:
    assert EngineLayer("a", outputs=(LayerTensor(text),)).output == kind


LISTING = """[I] TensorRT version: 8.2.3
[V] [TRT] Engine Layer Information:
Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to c, Tactic: 0, x[Float(1,3)] -> t[Int8(1,3)]
Layer(CaskConvolution): c + PWN(k, r), Tactic: 697, t[Int8(1,3)], s[Int8(1,3)] -> y[Half(1,3)]
[I] and so on
Layer(Other): late, Tactic: 0, y[Half(1,3)] -> z[Half(1,3)]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "build.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_log_that_lists_the_engine(tmp_path: Path) -> None:
    info = read_layer_info(write(tmp_path, LISTING))
    assert (info.source, info.version, len(info.layers)) == ("listing", "8.2.3", 2)
    layer = info.layers[1]
    assert layer.name == "c + PWN(k, r)"
    assert layer.inputs == (LayerTensor("Int8", shape=(1, 3)),) * 2 and layer.outputs == (
        LayerTensor("Half", shape=(1, 3)),
    )
    assert layer.output == "float" and info.layers[0].is_reformat


DETAILED = (
    "{0}Name: c_myl0_0, LayerType: correlation, Inputs: [ {{ Name: x, Dimensions: [1,4,8,8], Strides: [1], "
    "StrideOrder: [0], Datatype: Int8, Format: (NHWC) Channel major format }}], Constants: [], Outputs: [ {{ Name: y, "
    "Dimensions: [1,4,8,8], Strides: [1], StrideOrder: [0], Datatype: Half, Format: (NHWC) Channel major format }}], "
    "TacticName: t, StreamId: 0, Metadata: [ONNX Layer: c]\x1f[ONNX Layer: r]"
)


@pytest.mark.parametrize("prefix", ["", "[V] ", "[03/24/2026-12:56:13] [V] [TRT] "])
def test_a_log_with_the_layers_of_myelin_in_detail(tmp_path: Path, prefix: str) -> None:
    text = f"[I] TensorRT version: 10.13.3\n{DETAILED.format(prefix)}\n[V] Name: of no layer\n"
    info = read_layer_info(write(tmp_path, text))
    (layer,) = info.layers
    assert (info.source, info.version, layer.kind) == ("listing", "10.13.3", "correlation")
    assert layer.nodes({"c": "Conv"}) == {"c", "r"} and layer.product_type == "INT8" and layer.bytes_moved == 256 + 512


FUSIONS = """&&&& RUNNING TensorRT.trtexec [TensorRT v8001] # trtexec
[V] [TRT] Parsing node: Shape_0 [Shape]
[V] [TRT] Registering layer: Shape_0 for ONNX node: Shape_0
[V] [TRT] Shape_0 [Shape] outputs: [63 -> (4)[INT32]],
[V] [TRT] Parsing node: Conv_1 [Conv]
[V] [TRT] Registering layer: Conv_1 for ONNX node: Conv_1
[V] [TRT] Conv_1 [Conv] outputs: [64 -> (1, 4)[FLOAT]],
[V] [TRT] Registering layer: k for ONNX node: k
[V] [TRT] Parsing node: PRelu_2 [PRelu]
[V] [TRT] Registering layer: PRelu_2 for ONNX node: PRelu_2
[V] [TRT] PRelu_2 [PRelu] outputs: [65 -> (1, 4)[FLOAT]],
[V] [TRT] Parsing node: Conv_3 [Conv]
[V] [TRT] Registering layer: Conv_3 for ONNX node: Conv_3
[V] [TRT] Parsing node: Conv_4 [Conv]
[V] [TRT] Registering layer: Conv_4 for ONNX node: Conv_4
[V] [TRT] Parsing node: Concat_5 [Concat]
[V] [TRT] Registering layer: Concat_5 for ONNX node: Concat_5
[V] [TRT] After dead-layer removal: 6 layers
[V] [TRT] ConvReluFusion: Fusing Conv_3 with Conv_4
[V] [TRT] After dead-layer removal: 6 layers
[V] [TRT] ConstShuffleFusion: Fusing k with (Unnamed Layer* 3) [Shuffle]
[V] [TRT] PointWiseFusion: Fusing k + (Unnamed Layer* 3) [Shuffle] with PRelu_2
[V] [TRT] GenericConvActFusionBase: Fusing Conv_1 with PWN(k + (Unnamed Layer* 3) [Shuffle], PRelu_2)
[V] [TRT] Merging layers: Conv_3 || Conv_4
[V] [TRT] Eliminating concatenation Concat_5
"""


def test_a_log_that_ends_before_the_engine_is_replayed_from_its_last_pass(tmp_path: Path) -> None:
    info = read_layer_info(write(tmp_path, FUSIONS))
    assert (info.source, info.version) == ("fusions", "8001")
    assert [layer.parts for layer in info.layers] == [("Conv_1", "PRelu_2"), ("Conv_3", "Conv_4")]
    assert info.layers[0].name == "Conv_1 + PWN(k + (Unnamed Layer* 3) [Shuffle], PRelu_2)"
    assert info.layers[0].output is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", r"is not layer information \(not JSON"),
        ('{"Bindings": []}', "has no list of Layers"),
        ('{"Layers": []}', "has no list of Layers"),
        ('{"Layers": [{"LayerType": "X"}]}', "has a layer without a Name"),
        ('{"Layers": [3]}', "has a layer without a Name"),
        ("hello", "is neither layer information nor a log of TensorRT"),
        ("", "is neither layer information nor a log of TensorRT"),
        ("\x00\x01\x02", "is neither layer information nor a log of TensorRT"),
        ("[V] [TRT] Parsing node: Conv_1 [Conv]\n", "lists no layer of an engine and no fusion"),
    ],
)
def test_what_is_no_layer_information_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(QdqError, match=reason) as caught:
        read_layer_info(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_absent(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="cannot be read"):
        read_layer_info(tmp_path / "none.json")
    with pytest.raises(QdqError, match="cannot be read"):
        read_layer_info(tmp_path)


@pytest.mark.shared
def test_every_export_and_log_at_hand_is_read(shared: Path) -> None:
    files = sorted([*shared.glob("trt/engines/*/*.json"), *shared.glob("trt/engines/*/*.log")])
    found = {f"{path.parent.name}/{path.name}": len(read_layer_info(path).layers) for path in files}
    assert found == {
        "bev_resnet34_trt10/layers.json": 1309,
        "centerpoint_rpn_trt8/rpn_centerhead_sim.8503.log": 94,
        "mnist_trt10/layers.json": 9,
        "mobilenet_v2/qat.graph.json": 73,
        "mobilenet_v2/qat.older.graph.json": 85,
        "resnet18/fp16.graph.json": 36,
        "resnet18/qat-residual-qgap.graph.json": 24,
        "resnet18/qat-residual.graph.json": 26,
        "resnet18/qat.graph.json": 37,
        "tf_resnet50/fp16.graph.json": 86,
        "tf_resnet50/qat.graph.json": 63,
    }


@pytest.mark.shared
def test_a_log_that_ends_in_the_parser_says_so(shared: Path) -> None:
    with pytest.raises(QdqError, match=r"trtexe.log: .*the log ends"):
        read_layer_info(shared / "trt" / "pairs" / "lannyyip_share" / "trtexe.log")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "on", "off"),
    [
        ("resnet18/qat", 20, 0),
        ("mobilenet_v2/qat", 34, 2),
        ("mobilenet_v2/qat.older", 27, 3),
        ("tf_resnet50/qat", 53, 1),
    ],
)
def test_tensor_core_kernels_of_real_engines(shared: Path, file: str, on: int, off: int) -> None:
    layers = read_layer_info(shared / "trt" / "engines" / f"{file}.graph.json").layers
    cores = [layer.tensor_cores for layer in layers]
    assert (cores.count(True), cores.count(False)) == (on, off)


@pytest.fixture
def in_time() -> Iterator[None]:
    """Ends a test that takes a minute, where linear time is milliseconds and quadratic time an hour."""

    def stop(*_: object) -> None:
        raise TimeoutError("the time is not linear in the length of the line")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


LONG_LINES = {
    "parsing": "Parsing node: " + "Parsing node: [a [b " * 20_000,
    "made": "] " + "] a [b] outputs" * 30_000 + "x",
    "registering": "Registering layer: " + "Registering layer: a for ONNX node: " * 10_000,
    "fusing": "Fusion" * 70_000,
    "fusing what": "AFusion: Fusing " * 10_000 + "a with " * 30_000,
    "merging": "Merging layers: a" + " " * 400_000 + "b" + " " * 400_000,
    "eliminating": "Eliminating concatenation " * 1_000 + " " * 400_000 + "b",
    "listed": "Layer(a): " + ", Tactic: a" * 40_000,
    "ports": "Layer(a): b, Tactic: 1, " + "[a" * 200_000,
    "version": "TensorRT version: [TensorRT v1" * 20_000,
    "detailed": "[a] " * 100_000 + " " * 200_000 + ", LayerType: ",
    "detailed ports": "Name: a, LayerType: b, Inputs: [" + "{ Name: a, Dimensions: [" * 20_000,
}


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("line", LONG_LINES)
def test_a_long_line_of_a_log_takes_linear_time(tmp_path: Path, line: str) -> None:
    """14 kB of `Parsing node: [` took 76 s."""
    info = read_layer_info(write(tmp_path, f"{FUSIONS}[V] [TRT] {LONG_LINES[line]}\n"))
    assert info.layers


@pytest.mark.slow
@pytest.mark.usefixtures("in_time")
def test_many_fusions_take_linear_time(tmp_path: Path) -> None:
    nodes = range(20_000)
    lines = [
        f"[V] [TRT] Parsing node: c{n} [Conv]\n[V] [TRT] Registering layer: c{n} for ONNX node: c{n}" for n in nodes
    ]
    lines += [f"[V] [TRT] ConvFusion: Fusing c{n} with c{n + 1}" for n in nodes[::2]]
    text = "\n".join([*lines[: len(nodes)], "[V] [TRT] After dead-layer removal: 9 layers", *lines[len(nodes) :]])
    layers = read_layer_info(write(tmp_path, text)).layers
    assert len(layers) == len(nodes) // 2
    assert layers[1].parts == ("c2", "c3")


@pytest.mark.usefixtures("in_time")
def test_long_names_of_an_export_take_linear_time(tmp_path: Path) -> None:
    metadata = "[ONNX Layer: a" * 60_000
    text = json.dumps({"Layers": [{"Name": "PWN(" * 200_000, "Metadata": metadata}, {"Name": "b"}]})
    layers = read_layer_info(write(tmp_path, text)).layers
    assert layers[0].metadata == ()
    assert layers[0].nodes({"PWN(": 1}) == frozenset()


@pytest.mark.parametrize(
    "line", ["Parsing node: a b]", "Parsing node:  [Conv]", "Fusion: Fusing a", "XFusing a with b"]
)
def test_a_line_that_is_cut_short_tells_nothing(tmp_path: Path, line: str) -> None:
    whole = read_layer_info(write(tmp_path, FUSIONS)).layers
    assert read_layer_info(write(tmp_path, f"{FUSIONS}{line}\n")).layers == whole


@pytest.mark.parametrize(
    ("kind", "types", "product"),
    [
        ("CaskConvolution", ("Int8", "Half"), "INT8"),  # the second is the skip of a fused Add
        ("CaskConvolution", ("Half", "Int8"), "FP16"),
        ("correlation", ("Int8", "Half"), "FP16"),  # a weight that is dequantized at every inference
        ("correlation", ("Int8", "Int8"), "INT8"),
        ("correlation", ("Half", "Int8"), "FP16"),
        ("CaskConvolution", (), ""),
        ("PointWise", ("Int8",), ""),
    ],
)
def test_the_type_of_a_product_is_that_of_its_factors_where_they_are_told(
    kind: str, types: tuple[str, ...], product: str
) -> None:
    read = tuple(LayerTensor(one, shape=(8, 8, 3, 3)) for one in types)
    assert EngineLayer("c", kind, inputs=read).product_type == product


def test_an_attention_that_reads_its_masks_first_multiplies_its_codes() -> None:
    read = tuple(map(LayerTensor, ("Half", "Half", "FP8", "FP8", "FP8")))
    assert EngineLayer("_gemm_mha_v2_myl0_28", "kgen", inputs=read).product_type == "FP8"
    assert EngineLayer("_gemm_mha_v2_myl0_28", "kgen", inputs=read[:2]).product_type == "FP16"
