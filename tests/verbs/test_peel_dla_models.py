# SPDX-License-Identifier: Apache-2.0
"""Real models for the DLA: the cache covers them, and what lies after a plugin is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.insert import insert
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")
from tests.verbs.test_peel_dla import FAST, V8_6

# ---------------------------------------------------------------------- real models

SMALL = ["mnist8", "mlperf_resnet8_fp32", "cifar_resnet20", "espcn_x3", "yunet_s_320", "ultraface_rfb320_simplified"]


def input_shape(model: onnx.ModelProto) -> tuple[str, list[int]]:
    stored = {tensor.name for tensor in model.graph.initializer}
    (value,) = [value for value in model.graph.input if value.name not in stored]
    return value.name, [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]


def activations_of(model: onnx.ModelProto) -> set[str]:
    """Float tensors that are computed, as onnx itself infers them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    constant = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if all(name in constant for name in node.input):
            constant |= set(node.output)
    values = [*graph.value_info, *graph.output, *graph.input]
    return {v.name for v in values if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT} - constant


@pytest.mark.slow  # whole detectors
@pytest.mark.shared
@pytest.mark.parametrize("name", SMALL)
def test_real_models_are_covered_from_their_metadata_alone(shared: Path, tmp_path: Path, name: str) -> None:
    path = shared / "corpus" / "models" / f"{name}.onnx"
    key, shape = input_shape(onnx.load(path))
    data = [{key: np.random.default_rng(seed).normal(size=shape).astype(np.float32)} for seed in range(2)]
    done = insert(path, data=data, options=FAST, output=tmp_path / "q.onnx")
    result = peel(done.model, PeelOptions(V8_6, "dla"), output=tmp_path / "p.onnx", cache=tmp_path / "p.cache")
    want = activations_of(onnx.load(tmp_path / "p.onnx"))
    assert set(result.cache.entries) == want and result.table.unscaled == {}
    assert sum(result.origins.values()) == len(want)
    for tensor, scale in done.inserted.scales.items():
        entry = result.cache.entries[tensor]
        assert entry > scale.bits if tensor in result.shared_scales else entry.tobytes() == scale.bits.tobytes()
    forced = PeelOptions(V8_6, "dla", source=path, force_ptq=True, data=data)
    again = peel(done.model, forced, output=tmp_path / "f.onnx", cache=tmp_path / "f.cache")
    assert (tmp_path / "f.onnx").read_bytes() == path.read_bytes()
    assert "qdq" not in again.origins and set(again.cache.entries) == activations_of(onnx.load(path))


@pytest.mark.slow
@pytest.mark.shared
def test_what_lies_behind_a_plugin_is_left_over_and_told(shared: Path, tmp_path: Path) -> None:
    """A tensor that onnxruntime cannot compute has no scale: that is refused with the reason, unless it is allowed."""
    model = shared / "corpus" / "structure" / "gen_ultraface_EfficientNMS_TRT.onnx"
    images = np.random.default_rng(3).normal(size=(2, 3, 240, 320)).astype(np.float32)
    placed = insert(model, data=iter([{"input": image[None]} for image in images]), output=tmp_path / "q.onnx")
    with pytest.raises(QdqError, match=r"detection_boxes \(after EfficientNMS_TRT"):
        peel(placed.model, PeelOptions(TrtVersion(8, 5, 2), target="dla"), output=tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()
    some = peel(placed.model, PeelOptions(TrtVersion(8, 5, 2), target="dla", fill="none"), output=tmp_path / "p.onnx")
    assert {"detection_boxes", "detection_scores"} <= set(some.table.unscaled)
