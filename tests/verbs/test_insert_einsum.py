# SPDX-License-Identifier: Apache-2.0
"""`insert --target rtx` on Einsums with weights: their pairs, the function, and the file that `peel` gives back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qdqtool
from qdqtool.match.plan import PlanOptions
from tests.graphs import model_of

pytest.importorskip("onnxruntime")

W = "float[8,2,4] wq, float[2,4,8] wo, float[6,8] w1, float[6,3] wy"
NET = f"""g (float[1,5,8] x) => (float[1,5,3] y) <{W}> {{
    q = Einsum<equation="btd,dhk->bthk">(x, wq)
    a = Einsum<equation="bthk,hkd->btd">(q, wo)
    r = Relu(a)
    f = Einsum<equation="oj,bij->bio">(w1, r)
    y = MatMul(f, wy) }}"""
RTX = PlanOptions("rtx", float_heads="none")


def net() -> onnx.ModelProto:
    """The network with seeded weights."""
    model, draw = model_of(NET, 17), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        values = draw.normal(size=tuple(tensor.dims)).astype(np.float32) / 3
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


def data() -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(1)
    return [{"x": draw.normal(size=(1, 5, 8)).astype(np.float32)} for _ in range(8)]


def test_scales_stand_along_the_one_axis_of_channels_and_else_there_is_one() -> None:
    plan = qdqtool.plan(net(), RTX)
    assert {point.tensor: point.axis for point in plan.weights} == {"wq": None, "wo": -1, "w1": 0, "wy": -1}
    assert {point.tensor for point in plan.activations} == {"x", "q", "r", "f"} and plan.refusals == ()


def test_the_gpu_has_no_pairs_on_them_and_says_so() -> None:
    plan = qdqtool.plan(net(), PlanOptions(float_heads="none"))
    assert {point.tensor for point in plan.activations} == {"f"}
    reasons = {one.site: one.reason for one in plan.refusals}
    assert reasons.keys() == set("qaf") and all("constant weights" in why for why in reasons.values())


def test_the_function_stays_and_peel_gives_the_file_back(tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    onnx.save(net(), plain)
    options = qdqtool.InsertOptions(plan=RTX, keep_float=0)
    made = qdqtool.insert(plain, data=data(), options=options, output=tmp_path / "q.onnx")
    assert made.output_loss is not None and made.output_loss.value is not None and made.output_loss.value < 0.01
    weights = {node.input[0]: node.output[0] for node in onnx.load(made.model).graph.node if "w" in node.input[0]}
    assert {"wq", "wo", "w1", "wy"} <= weights.keys()
    peel = qdqtool.PeelOptions("10.7", source=plain)
    peeled = qdqtool.peel(made.model, peel, output=tmp_path / "p.onnx", cache=tmp_path / "p.cache")
    assert peeled.model.read_bytes() == plain.read_bytes()
    assert set(peeled.cache.entries) == {"x", "q", "r", "f"}


def test_auto_measures_what_multiplies_the_last_axis_alone() -> None:
    """The candidate scales of `r` are tried at `f`, those of `q` by the tensor itself: its product joins two axes."""
    made = qdqtool.insert(net(), data=data(), options=qdqtool.InsertOptions(plan=RTX, keep_float=0))
    assert {"y"} <= set(made.table.provenance.operator_losses)
    assert all(scale.method.startswith("auto") for scale in made.inserted.scales.values() if scale.origin == "ptq")
