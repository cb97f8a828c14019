# SPDX-License-Identifier: Apache-2.0
"""The verb `sensitivity`, and what `insert` does with it: kept operators and cuts, written, told, found again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool import InsertOptions, InsertResult, PeelOptions, insert, peel, plan
from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions, explain
from qdqtool.metadata import stored_table
from qdqtool.observers.options import CalibrationOptions
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.sensitivity import sensitivity
from qdqtool.verbs.sensitivity_options import SensitivityOptions
from tests.graphs import model_of

ALL = PlanOptions(float_heads="none")
AUTO = CalibrationOptions("auto", progress=False)
V8 = TrtVersion(8, 5, 2)


@pytest.fixture(scope="module")
def detector(models: Path) -> onnx.ModelProto:
    return onnx.load(models / "digits_detector.onnx")


@pytest.fixture(scope="module")
def data(models: Path) -> list[Batch]:
    return [{"images": image[np.newaxis]} for image in np.load(models / "digits_calib.npz")["images"][:3]]


@pytest.fixture(scope="module")
def kept(detector: onnx.ModelProto, data: list[Batch]) -> InsertResult:
    return insert(detector, data=data, options=InsertOptions(plan=ALL, calibration=AUTO, keep_float=1))


def refused(result_or_model: onnx.ModelProto) -> list[str]:
    return [one.site for one in plan(result_or_model, ALL).refusals if one.rule == "keep-float"]


# ---------------------------------------------------------------------------------------------- sensitivity


@pytest.mark.slow
def test_every_int8_operator_is_ranked(detector: onnx.ModelProto, data: list[Batch]) -> None:
    options = SensitivityOptions(plan=ALL, calibration=CalibrationOptions("mse", progress=False), ends=False)
    result = sensitivity(detector, data, options)
    assert len(result.ranking.findings) == 14 and 0.0 < result.ranking.loss < 0.5
    assert result.table.provenance.method == "mse"
    heads = sensitivity(detector, data, SensitivityOptions(plan=PlanOptions(float_heads="regression"), ends=False))
    assert len(heads.ranking.findings) == 13


@pytest.mark.slow
def test_the_order_of_the_data_changes_no_figure(detector: onnx.ModelProto, data: list[Batch]) -> None:
    options = SensitivityOptions(plan=ALL, calibration=CalibrationOptions("mse", progress=False), ends=False)
    assert sensitivity(detector, data, options).ranking == sensitivity(detector, data[::-1], options).ranking


def test_the_model_stays_as_it_is(detector: onnx.ModelProto, data: list[Batch]) -> None:
    before = detector.SerializeToString()
    sensitivity(detector, data, SensitivityOptions(ends=False))
    assert detector.SerializeToString() == before


def test_a_model_with_pairs_and_one_without_int8_are_refused(kept: InsertResult, data: list[Batch]) -> None:
    with pytest.raises(QdqError, match="has Q/DQ"):
        sensitivity(kept.model, data)
    nothing = model_of("g (float[N,3] images) => (float[N,3] y) { y = Relu(images) }")
    with pytest.raises(QdqError, match=r"no operator .*INT8"):
        sensitivity(nothing, [{"images": np.ones((1, 3), np.float32)}])


# ---------------------------------------------------------------------------------------------- kept operators


@pytest.mark.slow
def test_a_kept_operator_has_no_pair_on_its_weight_and_is_reported(
    kept: InsertResult, detector: onnx.ModelProto
) -> None:
    (refusal,) = [one for one in kept.plan.refusals if one.rule == "keep-float"]
    assert any(re.match(f"{refusal.site} stays in float: .*loss", note) for note in kept.notes)
    weight = next(node.input[1] for node in detector.graph.node if node.name == refusal.site)
    assert weight not in GraphView(kept.model.graph).pairs
    others = [node.input[1] for node in detector.graph.node if node.op_type == "Conv" and node.name != refusal.site]
    assert all(name in GraphView(kept.model.graph).pairs for name in others)


def test_the_result_tells_what_was_kept_and_why(kept: InsertResult) -> None:
    (site,) = refused(kept.model)
    lines = explain(plan(kept.model, ALL), site, ALL)
    assert any("left in float by rule keep-float: " in line for line in lines)


def test_inserting_again_keeps_what_was_kept(kept: InsertResult) -> None:
    again = insert(kept.model, options=InsertOptions(plan=ALL))
    assert again.model.SerializeToString(deterministic=True) == kept.model.SerializeToString(deterministic=True)
    assert not again.inserted.added


def test_its_table_places_the_same_pairs_on_the_plain_model(kept: InsertResult, detector: onnx.ModelProto) -> None:
    table = stored_table(kept.model)
    assert table is not None and len(table.decisions.float_layers or ()) == 1
    again = insert(detector, scales=table, options=InsertOptions(plan=ALL))
    assert [p.tensor for p in again.inserted.added] == [p.tensor for p in kept.inserted.added]


def test_requantizing_begins_anew(kept: InsertResult) -> None:
    again = insert(kept.model, options=InsertOptions(plan=ALL, requantize=True))
    assert not [one for one in again.plan.refusals if one.rule == "keep-float"]


def test_peel_gives_the_plain_model_back(kept: InsertResult, detector: onnx.ModelProto) -> None:
    peeled = peel(kept.model, PeelOptions(V8)).model
    assert peeled.SerializeToString(deterministic=True) == detector.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (InsertOptions(keep_float="auto"), False, "--keep-float: needs data for a measurement"),
        (InsertOptions(max_output_loss=0.1), False, "give --data"),
        (InsertOptions(max_output_loss=0.1, keep_float=2), True, "--max-output-loss: decides how many"),
        (InsertOptions(max_output_loss=1.5), True, "--max-output-loss: 1.5 is not a loss from 0 to 1"),
    ],
)
def test_what_does_not_go_together_is_refused(
    detector: onnx.ModelProto, data: list[Batch], options: InsertOptions, given: bool, message: str
) -> None:
    with pytest.raises(QdqError) as caught:
        insert(detector, data=data if given else None, options=options)
    assert message in caught.value.line()


def test_pairs_that_stand_there_are_in_the_way(kept: InsertResult, data: list[Batch]) -> None:
    with pytest.raises(QdqError, match="already has Q/DQ; add --requantize"):
        insert(kept.model, data=data, options=InsertOptions(plan=ALL, keep_float=1))


# ---------------------------------------------------------------------------------------------- cuts

SHUFFLE = """g (float[N,4,8,8] x) => (float[N,8,8,8] y)
  <float[4,4,1,1] w0, float[4,4,1,1] w1, float[4,4,1,1] w2, float[8,8,1,1] w4, int64[2] halves> {
  a = Conv(x, w0) b = Conv(x, w1) c = Concat<axis=1>(a, b)
  p, q = Split<axis=1>(c, halves) d = Conv(q, w2) e = Concat<axis=1>(p, d) y = Conv(e, w4) }"""


@pytest.fixture(scope="module")
def shuffle() -> tuple[onnx.ModelProto, InsertResult]:
    model = model_of(SHUFFLE)
    for tensor in model.graph.initializer:
        size = tensor.dims[0]
        value = np.eye(size, dtype=np.float32).reshape(size, size, 1, 1) if tensor.name != "halves" else None
        value = np.array([4, 4], np.int64) if value is None else value * (200 if tensor.name == "w2" else 1)
        tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    rng = np.random.default_rng(0)
    data: list[Batch] = [{"x": (rng.standard_normal((1, 4, 8, 8)) ** 5).astype(np.float32)} for _ in range(4)]
    return model, insert(model, data=data, options=InsertOptions(plan=ALL, calibration=AUTO))


def test_a_cut_stands_in_the_graph_with_two_scales(shuffle: tuple[onnx.ModelProto, InsertResult]) -> None:
    _, result = shuffle
    scales = result.inserted.scales
    assert result.table.decisions.requantize_points == ("p",) and "p" in GraphView(result.model.graph).pairs
    assert scales["p"].same_bits(scales["d"]) and scales["a"].same_bits(scales["b"])
    assert not scales["p"].same_bits(scales["a"])


def test_a_cut_goes_in_and_out_without_a_trace(shuffle: tuple[onnx.ModelProto, InsertResult]) -> None:
    model, result = shuffle
    again = insert(result.model, options=InsertOptions(plan=ALL))
    assert again.model.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)
    given = insert(model, scales=result.table, options=InsertOptions(plan=ALL))
    assert [p.tensor for p in given.inserted.added] == [p.tensor for p in result.inserted.added]
    peeled = peel(result.model, PeelOptions(V8)).model
    assert peeled.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
