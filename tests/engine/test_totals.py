# SPDX-License-Identifier: Apache-2.0
"""What the layers of an engine come to: bytes by hand, products by type, what only converts, time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qdqtool.engine.layer_info import EngineInfo, EngineLayer, LayerTensor
from qdqtool.engine.profile import LayerTime
from qdqtool.engine.read_info import read_layer_info
from qdqtool.engine.totals import totals_lines, totals_of


def tensor(kind: str, *shape: int) -> LayerTensor:
    return LayerTensor(kind, shape=shape)


X, Y = tensor("Int8", 1, 4, 8, 8), tensor("Half", 1, 8, 8, 8)
CONV = EngineLayer(
    "c", "CaskConvolution", inputs=(X,), outputs=(Y,), constants=(tensor("Int8", 8, 4, 1, 1), tensor("Float", 8))
)
COPY = EngineLayer("q", "Reformat", inputs=(tensor("Float", 1, 4, 8, 8),), outputs=(X,), origin="QDQ")
WAIT = EngineLayer("w", "wait")


def info(*layers: EngineLayer, **more: object) -> EngineInfo:
    return EngineInfo(Path("e.json"), layers, "json", **more)  # type: ignore[arg-type]


def test_bytes_by_hand() -> None:
    assert CONV.bytes_moved == 4 * 64 + 2 * 8 * 64 + 8 * 4 + 4 * 8, "INT8 in, FP16 out, INT8 weights, FP32 bias"
    assert COPY.bytes_moved == 4 * 256 + 256 and WAIT.bytes_moved == 0
    found = totals_of(info(CONV, COPY, WAIT))
    assert found.bytes_moved == (CONV.bytes_moved or 0) + (COPY.bytes_moved or 0) and found.unsized == 0
    assert (found.layers, found.kinds, found.conversions) == (2, {"CaskConvolution": 1, "Reformat": 1}, 1)
    assert found.products == {"INT8": 1} and found.milliseconds is None


@pytest.mark.parametrize(
    ("text", "shape", "size"),
    [
        ("Int4", (3,), 2),
        ("FP4E2M1", (4,), 2),
        ("Half", (), 2),
        ("Half", (0,), 0),
        ("Half", None, None),
        ("N/A", (2,), None),
    ],
)
def test_bytes_of_one_tensor(text: str, shape: tuple[int, ...] | None, size: int | None) -> None:
    assert LayerTensor(text, shape=shape).bytes == size


@pytest.mark.parametrize(
    ("layer", "product"),
    [
        (EngineLayer("a", "CaskConvolution", inputs=(X,)), "INT8"),
        (EngineLayer("a", "CudaDepthwiseConvolution", inputs=(Y, X)), "FP16"),
        (EngineLayer("a", "ConvActPool", inputs=(X,)), "INT8"),
        (EngineLayer("a", "conv_act_pool", inputs=(X,)), "INT8"),
        (EngineLayer("a", "correlation", inputs=(tensor("FP8", 1),)), "FP8"),
        (EngineLayer("a", "gemm", inputs=(tensor("Float", 1),)), "FP32"),
        (EngineLayer("a", "runtime_fusion", inputs=(tensor("BFloat16", 1),)), "BF16"),
        (EngineLayer("a", "deconv"), "?"),
        (EngineLayer("__myl_fc_mha_v2", "kgen", inputs=(X,)), "INT8"),
        (EngineLayer("__myl_AddRelu", "kgen", inputs=(X,)), None),
        (EngineLayer("a", "CaskPooling", inputs=(X,)), None),
        (EngineLayer("a", ""), None),
    ],
)
def test_products_by_the_type_that_they_read(layer: EngineLayer, product: str | None) -> None:
    assert totals_of(info(layer)).products == ({} if product is None else {product: 1})


@pytest.mark.parametrize(
    ("layer", "converts"),
    [
        (EngineLayer("__myl_Cast_myl0_5", "kgen"), True),
        (EngineLayer("__myl_CastMove_myl0_5", "kgen"), True),
        (EngineLayer("__myl_CastMul_myl0_5", "kgen"), False),
        (EngineLayer("Reformatting CopyNode for Input Tensor 0 to c", "Reformat"), True),
        (EngineLayer("Reformatting CopyNode for Input Tensor 0 to c", "NoOp"), False),
        (EngineLayer("x copy", "Reformat"), True),
    ],
)
def test_what_only_converts(layer: EngineLayer, converts: bool) -> None:
    assert layer.is_conversion is converts


def test_layers_without_sizes_are_counted_not_guessed() -> None:
    found = totals_of(info(CONV, EngineLayer("n", "CaskPooling", inputs=(LayerTensor("Half"),))))
    assert found.unsized == 1 and found.bytes_moved == CONV.bytes_moved
    assert re.match("bytes moved: .*included, without 1 layers", totals_lines(found)[2])
    names = totals_of(info(EngineLayer("a"), EngineLayer("b")))
    assert totals_lines(names)[1] == "products: none" and "not known" in totals_lines(names)[2]


def test_time_is_that_of_the_layers_in_the_profile() -> None:
    times = {"c": LayerTime(0.5), "elsewhere": LayerTime(9.0)}
    found = totals_of(info(CONV, CONV, COPY, times=times))
    assert found.milliseconds == 0.5, "a name has one time"
    assert totals_lines(found)[-1].startswith("time: 0.500 ms")


def test_values_for_json() -> None:
    facts = totals_of(info(CONV, COPY)).to_json()
    assert facts["products"] == {"INT8": 1} and list(facts) == [
        "layers", "kinds", "conversions", "products", "bytes_moved", "unsized", "milliseconds",
    ]  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "layers", "conversions", "products"),
    [
        ("resnet18/qat.graph.json", 35, 12, {"INT8": 21}),
        ("resnet18/qat-residual.graph.json", 25, 3, {"INT8": 21}),
        ("resnet18/fp16.graph.json", 25, 2, {"FP16": 21}),
        ("mobilenet_v2/qat.graph.json", 72, 18, {"INT8": 53}),
        ("bev_resnet34_trt10/layers.json", 1280, 20, {"FP16": 664, "INT8": 36}),
    ],
)
def test_totals_of_published_engines(
    shared: Path, file: str, layers: int, conversions: int, products: dict[str, int]
) -> None:
    found = totals_of(read_layer_info(shared / "trt" / "engines" / file))
    assert (found.layers, found.conversions, found.products) == (layers, conversions, products)
    assert found.unsized == 0 and found.bytes_moved > 0
