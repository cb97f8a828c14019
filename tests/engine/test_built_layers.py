# SPDX-License-Identifier: Apache-2.0
"""Layers of a built engine from the compiler's log lines: types, sizes, ONNX nodes, and names that hold anything."""

from __future__ import annotations

import pytest

from qdqtool.engine.built_layers import parse_layers
from qdqtool.engine.layer_info import EngineLayer, LayerTensor

NHWC = "(NHWC) Channel major format"


def tensor(name: str, dims: str, kind: str) -> str:
    return f"{{ Name: {name}, Dimensions: [{dims}], Strides: [9], StrideOrder: [0], Datatype: {kind}, Format: {NHWC} }}"


def line(
    name: str = "c_myl0_1",
    kind: str = "correlation",
    inputs: str = tensor("a", "1,4,8,8", "Int8"),
    constants: str = "",
    outputs: str = tensor("o", "1,16,8,8", "Float"),
    tactic: str = "__myelin_CASK_STUB",
    nodes: str = "[ONNX Layer: conv]",
    behind: str = "StreamId: 0",
) -> str:
    """One record as TensorRT for RTX 1.7.1 writes it."""
    return (
        f"Name: {name}, LayerType: {kind}, Inputs: [ {inputs}], Constants: [ {constants}], Outputs: [ {outputs}], "
        f"TacticName: {tactic}, {behind}, Metadata: {nodes}"
    )


# One record, every field


def test_a_layer_has_kind_tensors_kernel_and_nodes() -> None:
    weight = f"{tensor('w', '16,4,3,3', 'Int8')}, {tensor('s', '1,16,1,1', 'Float')}"
    (layer,) = parse_layers("Layers:\n" + line(constants=weight, nodes="[ONNX Layer: conv]\x1f[ONNX Layer: x_DQ]"))
    assert layer == EngineLayer(
        "c_myl0_1",
        "correlation",
        ("conv", "x_DQ"),
        (LayerTensor("Int8", "a", (1, 4, 8, 8), NHWC),),
        (LayerTensor("Float", "o", (1, 16, 8, 8), NHWC),),
        "__myelin_CASK_STUB",
        constants=(LayerTensor("Int8", "w", (16, 4, 3, 3), NHWC), LayerTensor("Float", "s", (1, 16, 1, 1), NHWC)),
    )
    assert layer.bytes_moved == 256 + (576 + 64) + 4096


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("", ()),
        ("[ONNX Layer: a]", ("a",)),
        ("[ONNX Layer: a]\x1f[ONNX Layer: b]\x1f[ONNX Layer: a]", ("a", "b")),
        ("[ONNX Layer: a][b]]\x1f[ONNX Layer: [c]", ("a][b]", "[c")),
        ("[ONNX Layer: node_of_y]", ("node_of_y",)),
        ("[ONNX Layer: two\nlines]", ("two\nlines",)),
        ("[ONNX Layer: cut", ()),
    ],
)
def test_nodes_are_cut_at_the_separator_and_never_at_brackets(nodes: str, expected: tuple[str, ...]) -> None:
    (layer,) = parse_layers(line(nodes=nodes))
    assert layer.metadata == expected


def test_an_event_stands_between_stream_and_nodes() -> None:
    (layer,) = parse_layers(line(behind="StreamId: 1, EventId: 3"))
    assert layer.metadata == ("conv",)


@pytest.mark.parametrize("kind", ["signal", "wait"])
def test_a_layer_that_does_no_work_is_none(kind: str) -> None:
    assert parse_layers(f"{line(kind=kind)}\n{line('next')}") == parse_layers(line("next"))


def test_records_of_several_messages_and_other_lines() -> None:
    text = f"Compiler backend\nLayers:\n{line('one')}\nLayers:\n{line('two')}\n"
    assert [layer.name for layer in parse_layers(text)] == ["one", "two"]


@pytest.mark.parametrize(
    "text", ["", "Layers:\n", "Name: a", "Name: a, LayerType: kgen", "LayerType: kgen, Inputs: []"]
)
def test_what_is_no_record_is_no_layer(text: str) -> None:
    assert parse_layers(text) == ()


def test_a_layer_may_read_nothing_but_constants() -> None:
    (layer,) = parse_layers(line(kind="kgen", inputs="", constants=tensor("k", "4", "Float")))
    assert (layer.inputs, layer.bytes_moved) == ((), 16 + 4096)


# Sizes


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Float", 48),
        ("Half", 24),
        ("BFloat16", 24),
        ("Int8", 12),
        ("Int64", 96),
        ("Bool", 12),
        ("FP8", 12),
        ("Int4", 6),
    ],
)
def test_bytes_of_a_tensor(kind: str, expected: int) -> None:
    assert LayerTensor(kind, "t", (3, 4)).bytes == expected


def test_half_a_byte_is_rounded_up_and_a_scalar_is_one_value() -> None:
    assert (LayerTensor("FP4E2M1", shape=(3,)).bytes, LayerTensor("Float", shape=()).bytes) == (2, 4)


# Products


@pytest.mark.parametrize(
    ("kind", "tactic", "expected"),
    [
        ("correlation", "", "INT8"),
        ("deconv", "", "INT8"),
        ("gemm", "", "INT8"),
        ("runtime_fusion", "", "INT8"),
        ("kgen", "__myl_fc_mha_v2_0x1", "INT8"),
        ("kgen", "__myl_MulAddRelu_0x1", ""),
        ("maxpool", "", ""),
    ],
)
def test_the_type_of_a_product_is_what_it_reads(kind: str, tactic: str, expected: str) -> None:
    (layer,) = parse_layers(line(kind=kind, tactic=tactic))
    assert (layer.product_type, layer.is_product) == (expected, bool(expected))


ACT, WEIGHT, BIAS = "1,8,4,4", "8,8,3,3", "1,8,1,1"


@pytest.mark.parametrize(
    ("inputs", "constants", "expected"),
    [
        ([(ACT, "Int8")], [(WEIGHT, "Int8"), (BIAS, "Float")], "INT8"),
        ([(ACT, "Int8"), (ACT, "Half")], [(WEIGHT, "Int8"), (BIAS, "Half")], "INT8"),
        ([(ACT, "Int8"), (WEIGHT, "Int8")], [(BIAS, "Float")], "INT8"),
        ([(ACT, "Int8")], [(BIAS, "Float")], "INT8"),
        ([(ACT, "Float"), (WEIGHT, "Float")], [], "FP32"),
        ([("4,16", "Int8")], [("16,32", "Float")], "FP32"),
        ([("4,16", "Half")], [("16,32", "Int8"), ("1,32", "Half")], "FP16"),
        ([], [(WEIGHT, "Int8")], "INT8"),
    ],
)
def test_integers_that_are_multiplied_with_floats_are_multiplied_in_float(
    inputs: list[tuple[str, str]], constants: list[tuple[str, str]], expected: str
) -> None:
    reported = [", ".join(tensor("t", *one) for one in each) for each in (inputs, constants)]
    (layer,) = parse_layers(line(kind="runtime_fusion", inputs=reported[0], constants=reported[1]))
    assert layer.product_type == expected
