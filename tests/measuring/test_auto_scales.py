# SPDX-License-Identifier: Apache-2.0
"""`--method auto` as a table: order and batch leave its bytes alone, every scale says where it is from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.amax.method_table import Method
from qdqtool.amax.methods import choose_amax
from qdqtool.calibration.engine import CalibrationOptions, WantedScales, calibrate, calibrate_scales
from qdqtool.data.loader import Batch, DataOptions
from qdqtool.data.model_inputs import Input
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.measuring.auto_scales import SHADOW_SAMPLES, pick_samples
from qdqtool.scales import ScaleTable

AUTO = CalibrationOptions("auto", progress=False)
FREE = (Input("x", ("N", 3), np.dtype(np.float32)),)
FIXED = (Input("x", (4, 3), np.dtype(np.float32)),)


@pytest.fixture(scope="module")
def detector(models: Path) -> onnx.ModelProto:
    return onnx.load(models / "digits_detector.onnx")


@pytest.fixture(scope="module")
def images(models: Path) -> np.ndarray:
    return np.load(models / "digits_calib.npz")["images"][:18]


@pytest.fixture(scope="module")
def table(detector: onnx.ModelProto, images: np.ndarray) -> ScaleTable:
    return calibrate(detector, one_by_one(images), AUTO)


def one_by_one(images: np.ndarray) -> list[Batch]:
    return [{"images": image[np.newaxis]} for image in images]


def without_data(table: ScaleTable) -> str:
    return replace(table, provenance=replace(table.provenance, data=None)).to_json()


@pytest.mark.parametrize(
    ("order", "batch"),
    [(-1, 5), pytest.param(1, 7, marks=pytest.mark.slow), pytest.param(-1, 1, marks=pytest.mark.slow)],
)
def test_reversed_images_and_another_batch_give_the_same_bytes(
    detector: onnx.ModelProto, images: np.ndarray, table: ScaleTable, order: int, batch: int
) -> None:
    other = calibrate(detector, one_by_one(images[::order]), AUTO, DataOptions(batch=batch))
    assert without_data(other) == without_data(table)


def test_points_say_what_proposed_them_and_others_have_mse(table: ScaleTable) -> None:
    methods = {name: table[name].method for name in table}
    assert table.provenance.method == "auto" and table.provenance.shadow_samples == SHADOW_SAMPLES
    assert methods["images"].startswith("auto:") and "auto:mse" in methods.values()
    assert "mse" in methods.values()  # what nothing quantized reads
    assert all(scale.samples == 18 for scale in table.scales.values())
    assert {scale.origin for scale in table.scales.values() if scale.method.startswith("auto:")} == {"ptq"}


def test_tensors_with_the_values_of_a_point_have_its_scale(table: ScaleTable) -> None:
    same = {name: table[name] for name in table if table[name].method.startswith("auto: same values as ")}
    assert same
    for scale in same.values():
        assert scale.same_bits(table[scale.method.rpartition(" ")[2]])


def test_the_table_covers_what_mse_covers(detector: onnx.ModelProto, images: np.ndarray, table: ScaleTable) -> None:
    mse = calibrate(detector, one_by_one(images), CalibrationOptions("mse", progress=False))
    assert list(mse) == list(table)
    assert any(not mse[name].same_bits(table[name]) for name in mse)
    plain = [name for name in table if table[name].method == "mse"]
    assert plain and all(mse[name].same_bits(table[name]) for name in plain)


@pytest.mark.slow
def test_candidates_are_reported_on_request_only(
    detector: onnx.ModelProto, images: np.ndarray, table: ScaleTable
) -> None:
    assert table.provenance.candidates is None
    reported = calibrate(detector, one_by_one(images), CalibrationOptions("auto", progress=False, candidates=True))
    assert reported.provenance.candidates is not None
    tried = reported.provenance.candidates["images"]
    taken = reported["images"].method.removeprefix("auto:")
    assert tried[taken][1] == min(loss for _, loss in tried.values())
    assert np.float32(tried[taken][0]) / np.float32(127) == reported["images"].bits
    assert {name: scale.hex() for name, scale in reported.scales.items()} == {
        n: s.hex() for n, s in table.scales.items()
    }


@pytest.mark.slow
def test_a_prediction_beside_is_for_the_scales_that_were_chosen(detector: onnx.ModelProto, images: np.ndarray) -> None:
    options = CalibrationOptions("auto", progress=False, beside="mse")
    reported = calibrate(detector, one_by_one(images), options)
    assert reported.provenance.predicted is not None
    decibel = reported.provenance.predicted.decibel
    assert all(chosen <= other + 0.02 for chosen, other in decibel.values())  # mse is the best by that measure
    assert any(chosen < other - 0.02 for chosen, other in decibel.values())


def test_float_heads_change_who_is_asked(detector: onnx.ModelProto, images: np.ndarray) -> None:
    placing = PlanOptions(float_heads="all")
    table = calibrate_scales(Model(detector), one_by_one(images[:8]), AUTO, WantedScales(placing=placing))
    assert table.provenance.method == "auto" and len(table) > 30


def test_data_that_can_be_walked_once_is_refused(detector: onnx.ModelProto, images: np.ndarray) -> None:
    def once() -> Iterator[Batch]:
        yield from one_by_one(images[:2])

    with pytest.raises(QdqError, match="iterated again"):
        calibrate_scales(Model(detector), once(), AUTO)


def test_a_histogram_alone_cannot_choose(images: np.ndarray) -> None:
    from qdqtool.amax.histogram import Histogram

    with pytest.raises(QdqError, match="read a tensor"):
        choose_amax(Method("auto"), Histogram())


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)


def batches(values: np.ndarray, size: int) -> list[Batch]:
    return [{"x": values[start : start + size]} for start in range(0, len(values), size)]


def bytes_of(picked: list[Batch]) -> list[bytes]:
    return [one["x"].tobytes() for one in picked]


def test_the_same_samples_in_the_same_order_however_they_come() -> None:
    values = rows(40)
    want = bytes_of(pick_samples(batches(values, 1), FREE, 6))
    assert len(want) == 6
    for size in (1, 7, 40):
        for order in (values, values[::-1]):
            assert bytes_of(pick_samples(batches(order, size), FREE, 6)) == want


def test_each_sample_is_one_row_and_one_of_the_data() -> None:
    values = rows(10)
    picked = pick_samples(batches(values, 5), FREE, 3)
    assert all(one["x"].shape == (1, 3) for one in picked)
    assert {one["x"].tobytes() for one in picked} <= {row.tobytes() for row in values}


def test_a_sample_that_comes_twice_counts_once() -> None:
    values = rows(5)
    doubled = np.concatenate([values, values])
    assert bytes_of(pick_samples(batches(doubled, 2), FREE, 8)) == bytes_of(pick_samples(batches(values, 1), FREE, 8))


def test_fewer_samples_than_wanted_are_all_taken() -> None:
    assert len(pick_samples(batches(rows(3), 1), FREE, 16)) == 3
    assert pick_samples([], FREE, 16) == []


def test_another_draw_of_data_gives_other_samples() -> None:
    assert bytes_of(pick_samples(batches(rows(9), 1), FREE, 2)) != bytes_of(
        pick_samples(batches(rows(9, 1), 1), FREE, 2)
    )


def test_a_fixed_batch_is_filled_from_rows_whatever_batch_they_were_in() -> None:
    values = rows(16)
    want = bytes_of(pick_samples(batches(values, 4), FIXED, 8))
    shuffled = values[np.random.default_rng(1).permutation(16)]
    assert bytes_of(pick_samples(batches(shuffled, 4), FIXED, 8)) == want and len(want) == 2


def test_a_fixed_batch_that_is_larger_than_what_is_wanted_is_filled_up() -> None:
    picked = pick_samples(batches(rows(4), 4), FIXED, 3)
    assert len(picked) == 1 and picked[0]["x"].shape == (4, 3)
    assert (picked[0]["x"][3] == picked[0]["x"][2]).all()


def test_inputs_that_share_no_first_axis_stay_whole() -> None:
    inputs = (Input("x", ("N", 3), np.dtype(np.float32)), Input("k", (2,), np.dtype(np.float32)))
    data: list[Batch] = [{"x": rows(2, seed), "k": np.zeros(2, np.float32)} for seed in range(3)]
    picked = pick_samples(data, inputs, 2)
    assert len(picked) == 2 and all(one["x"].shape == (2, 3) for one in picked)


def test_what_is_kept_is_a_copy() -> None:
    values = rows(2)
    picked = pick_samples(batches(values, 2), FREE, 2)
    values[:] = 0
    assert all(one["x"].any() for one in picked)
