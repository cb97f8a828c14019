# SPDX-License-Identifier: Apache-2.0
"""What `insert --rest` promises of any network: types that agree, the way back to the byte, the same INT8 codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import qdqtool as verbs
from qdqtool.errors import QdqError
from qdqtool.graph.edit import drop_metadata
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.precision.assignment import PRECISION, stored_precision
from qdqtool.precision.between_pairs import between_pairs
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.float_graph import float_graph
from qdqtool.precision.int8_paths import int8_layers
from qdqtool.precision.rounded import as_run
from qdqtool.runtime.executor import Executor
from qdqtool.verbs.amp import amp
from tests.laws import law_checks as laws
from tests.laws.random_graphs import networks

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

from tests.laws.int8_codes import CodeCount, compare_codes

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
few = settings(
    laws.examples(2),
    phases=(Phase.explicit, Phase.generate),  # each run calibrates twice: a failing network is not made smaller
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# Codes that differ because a sum was rounded to FP16 before it was quantized, of all codes: a value that lies within
# half a unit of FP16 (2**-11 of it) of a border between two codes, 254 of which fill the range.
MOST_DIFFERENT = 0.05
Feeds = list[dict[str, np.ndarray[Any, Any]]]


def feeds_of(model: onnx.ModelProto) -> Feeds:
    """Two samples; networks here take one tensor of floats."""
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes = {
        value.name: [side.dim_value or 1 for side in value.type.tensor_type.shape.dim]
        for value in model.graph.input
        if value.name not in weights
    }
    rng = np.random.default_rng(0)
    return [{name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()} for _ in range(2)]


def both(model: Any, feeds: Feeds, rest: str = "fp16") -> tuple[onnx.ModelProto, onnx.ModelProto] | None:
    """The Q/DQ model with its rest in FP32, and with the other type; None where data do not calibrate it."""
    made = []
    for kind in ("fp32", rest):
        options = verbs.InsertOptions(calibration="max", keep_float=0, rest=kind, allow_empty=True)  # type: ignore[arg-type]
        try:
            made.append(verbs.insert(model, data=feeds, options=options).model)
        except QdqError:  # a network whose values are not finite, or that onnxruntime does not run
            return None
    return made[0], made[1]


@few
@given(networks())
def test_laws_of_fp16(tmp_path: Path, model: onnx.ModelProto) -> None:
    feeds = feeds_of(model)
    made = both(model, feeds)
    if made is not None:
        check_types_and_values(model, made, feeds)
        check_amp_gives_the_same_file(made, feeds)
        check_the_way_back(tmp_path, model, made)
        check_codes(made, feeds)
        check_casts(made[0])


@few
@given(networks(tidy=True))
def test_laws_of_bf16(tmp_path: Path, model: onnx.ModelProto) -> None:
    feeds = feeds_of(model)
    made = both(model, feeds, "bf16")
    if made is not None:
        check_types_and_values(model, made, feeds)
        check_the_way_back(tmp_path, model, made)


def check_types_and_values(model: onnx.ModelProto, made: tuple[onnx.ModelProto, onnx.ModelProto], feeds: Feeds) -> None:
    """Types agree as TensorRT reads them; what is finite in FP32 is finite with the roundings, in the same type.

    BF16 came to ONNX's Conv with opset 22; TensorRT's parser takes it in any.
    """
    found_types = infer_types(made[1])
    assert found_types.conflicts == infer_types(made[0]).conflicts
    if onnx.TensorProto.BFLOAT16 not in found_types.types.values():
        assert bool(laws.checker_complaint(made[1])) == bool(laws.checker_complaint(made[0]))
    found, wanted = (Executor(Model(one)).run(feeds[0]) for one in (as_run(Model(made[1])).proto, made[0]))
    for name, values in wanted.items():
        assert found[name].dtype == values.dtype
        assert np.isfinite(found[name]).all() or not np.isfinite(values).all()


def check_amp_gives_the_same_file(made: tuple[onnx.ModelProto, onnx.ModelProto], feeds: Feeds) -> None:
    """`amp` of the FP32 file is the file that `insert --rest fp16` writes, and `amp` of that leaves it.

    `insert` knows the values without pairs, `amp` those with them: figures in the reasons may differ.
    """
    again = amp(made[0], data=feeds).model
    assert without_figures(again) == without_figures(made[1])
    assert amp(again, data=feeds).model == again


def without_figures(model: onnx.ModelProto) -> tuple[bytes, Any, set[str]]:
    """A model without its record of types, and that record: the types, and what there are reasons for."""
    bare, record = onnx.ModelProto(), stored_precision(model)
    bare.CopyFrom(model)
    drop_metadata(bare, PRECISION)
    if record is None:
        return bare.SerializeToString(deterministic=True), None, set()
    told = replace(record, assignment=replace(record.assignment, reasons={}))
    return bare.SerializeToString(deterministic=True), told, set(record.assignment.reasons)


def check_the_way_back(tmp_path: Path, model: onnx.ModelProto, made: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
    """`peel --source` gives the source, and the cache of the FP32 file, to the byte."""
    if not verbs.plan(made[0]).points:
        return
    source = tmp_path / "m.onnx"
    source.write_bytes(model.SerializeToString(deterministic=True))
    results = []
    for index, qdq in enumerate(made):
        (tmp_path / "q.onnx").write_bytes(qdq.SerializeToString(deterministic=True))
        options = verbs.PeelOptions("8601", source=source)
        out, cache = tmp_path / f"{index}.onnx", tmp_path / f"{index}.cache"
        try:
            verbs.peel(tmp_path / "q.onnx", options, output=out, cache=cache)
        except QdqError as error:
            results.append((error.reason, b""))
            continue
        assert out.read_bytes() == source.read_bytes()
        results.append(("", cache.read_bytes()))
    assert results[0] == results[1]


def check_codes(made: tuple[onnx.ModelProto, onnx.ModelProto], feeds: Feeds) -> None:
    """Given the same codes, every group makes the same codes, but for one step here and there."""
    counted = sum((compare_codes(*made, feed) for feed in feeds), CodeCount(0, 0, 0))
    assert counted.largest <= 1
    assert counted.different <= MOST_DIFFERENT * counted.codes + 1


def check_casts(model: onnx.ModelProto) -> None:
    """Operators of INT8 layers and those between pairs take no Cast more in FP32 than in half."""
    view = GraphView(model.graph)
    graph, layers = float_graph(Model(model), onnx.TensorProto.FLOAT16, {}), int8_layers(view)
    assert graph.casts(layers | between_pairs(view, layers)) <= graph.casts(layers) <= graph.casts(())


@pytest.mark.slow  # half a second a network
@pytest.mark.shared
@pytest.mark.parametrize("name", ["cifar_resnet20_bn", "ultraface_slim320", "mobilenetv1_025_128"])
def test_codes_of_trained_models(name: str, shared: Path) -> None:
    path = shared / "corpus" / "models" / f"{name}.onnx"
    feeds = feeds_of(onnx.load(path))
    made = both(onnx.load(path), feeds)
    assert made is not None
    counted = compare_codes(*made, feeds[1])
    assert counted.codes > 10_000
    assert counted.largest <= 1
    assert counted.different <= MOST_DIFFERENT * counted.codes


@pytest.mark.slow
@pytest.mark.shared
def test_no_code_differs_where_nothing_half_is_in_front_of_a_pair(shared: Path) -> None:
    path = shared / "corpus" / "models" / "nanodet_m_320_coco.onnx"
    feeds = feeds_of(onnx.load(path))
    made = both(onnx.load(path), feeds)
    assert made is not None
    counted = compare_codes(*made, feeds[1])
    assert counted.codes > 1_000_000 and counted.different == 0
