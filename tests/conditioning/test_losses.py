# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""The error of each operator by itself: against the same computed in numpy, and its correction."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.conditioning.bias_correction import find_additions
from qdqtool.conditioning.losses import Loss, measure_losses, read_scales, rounded_weight
from qdqtool.errors import QdqError
from qdqtool.formats import FP8
from qdqtool.scales import Scale, ScaleTable
from tests.conditioning.nets import RELU, context_of, samples, singles_of, spread, value_of
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

FLAT = """g (float[N,8] x) => (float[N,5] y, float[N,4,5] z) <float[8,5] fc, int64[3] s = {-1,4,2}, float[2,5] w>
{ y = Gemm(x, fc)  r = Reshape(x, s)  z = MatMul(r, w) }"""


def table(**scales: float) -> ScaleTable:
    return ScaleTable({name: Scale.of(np.float32(value)) for name, value in scales.items()})


def test_mean_square_and_signal_of_a_matrix_product() -> None:
    proto = model_of(FLAT)
    context, rows = context_of(proto), samples(7, (8,))
    (loss,) = [one for one in measure_losses(context, table(x=0.05), singles_of(proto, rows)) if one.key == "y"]
    weight = value_of(proto, "fc")
    step = np.abs(weight).max(axis=0) / np.float32(127)
    exact = rows @ weight
    made = (np.clip(np.rint(rows / np.float32(0.05)), -128, 127) * 0.05) @ (np.rint(weight / step) * step)
    assert loss.mean == pytest.approx((exact - made).mean(axis=0), abs=1e-6)
    assert loss.square == pytest.approx(np.square(exact - made).mean(axis=0), rel=1e-3)
    assert loss.signal == pytest.approx(np.square(exact).mean(axis=0), rel=1e-5)
    assert loss.chance == pytest.approx((exact - made).var(axis=0, ddof=0) / 6, rel=1e-3)


def test_operators_of_another_format_are_rounded_to_its_codes() -> None:
    proto = model_of(
        "g (float[N,32] x) => (float[N,32] y) <float[32,32] fc> { y = MatMul(x, fc) }", opset=FP8.opset, ir=9
    )
    rows, weight = samples(7, (32,)), value_of(proto, "fc")
    scale, step = FP8.scale_of(4.0), np.abs(weight).max(axis=0) / np.float32(448)
    given = ScaleTable({"x": Scale.of(scale, format=FP8)})
    (loss,) = measure_losses(context_of(proto, format="fp8"), given, singles_of(proto, rows))
    made = (FP8.nearest(rows / scale) * scale) @ (FP8.nearest(weight / step) * step)
    assert loss.mean == pytest.approx((rows @ weight - made).mean(axis=0), abs=1e-5)


def test_convolutions_and_products_behind_a_move_are_measured() -> None:
    proto = model_of(FLAT)
    found = measure_losses(context_of(proto), table(x=0.05), singles_of(proto, samples(3, (8,))))
    assert [loss.key for loss in found] == ["y", "z"]
    proto = spread(RELU)
    found = measure_losses(context_of(proto), table(x=0.03, r1=0.01), singles_of(proto))
    assert [(loss.key, loss.mean.size) for loss in found] == [("c1", 8), ("y", 3)]
    assert all(0 < loss.noise() < 0.1 for loss in found)


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_opsets_that_write_axes_as_an_attribute(opset: int) -> None:
    scales = table(x=0.03, r1=0.01)
    found, same = (
        measure_losses(context_of(proto), scales, singles_of(proto))
        for proto in (spread(RELU, opset), spread(RELU, 17))
    )
    assert [loss.mean.tolist() for loss in found] == [loss.mean.tolist() for loss in same]


def test_order_and_batch_do_not_matter() -> None:
    proto, rows = spread(RELU), samples(6)
    context, scales = context_of(proto), table(x=0.03, r1=0.01)
    one = measure_losses(context, scales, singles_of(proto, rows))
    other = measure_losses(context, scales, singles_of(proto, rows[::-1], batch=4))
    for left, right in zip(one, other, strict=True):
        for name in ("mean", "square", "signal", "chance"):
            assert getattr(left, name).tobytes() == getattr(right, name).tobytes()


def test_tied_points_are_read_with_the_largest_scale() -> None:
    proto = model_of("""g (float[N,4,6,6] x) => (float[N,2,6,6] y) <float[4,4,1,1] w, float[4,4,1,1] v, float[2,8,1,1] u>
{ c = Conv(x, w)  r = Relu(c)  d = Conv(x, v)  q = Relu(d)  k = Concat<axis=1>(r, q)  y = Conv(k, u) }""")
    scales = read_scales(context_of(proto), table(x=0.1, r=0.2, q=0.3))
    assert scales["y"][1].bits == np.float32(0.3)
    assert scales["c"][1].bits == np.float32(0.1)
    with pytest.raises(QdqError, match=r"q: .*no scale"):
        read_scales(context_of(proto), table(x=0.1, r=0.2))


def test_a_weight_is_rounded_per_channel_or_whole() -> None:
    proto = spread(RELU)
    node = context_of(proto).view.producers["c1"]
    weight = value_of(proto, "w1")
    rows, whole = rounded_weight(node, weight, 0), rounded_weight(node, weight, None)
    assert np.abs(rows - weight).max(axis=(1, 2, 3)) == pytest.approx(0, abs=float(np.abs(weight).max()) / 254)
    assert (np.abs(rows - weight)[-1] <= np.abs(weight[-1]).max() / 253).all()
    assert np.abs(whole - weight)[-1].max() > np.abs(rows - weight)[-1].max()


def loss_of(mean: float, chance: float, key: str = "y") -> Loss:
    return Loss(key, np.full(3, mean), np.full(3, 1.0), np.full(3, 100.0), np.full(3, chance))


@pytest.mark.parametrize(
    ("mean", "chance", "added"), [(0.5, 0.0, 0.5), (0.5, 0.1, 0.3), (0.5, 0.3, None), (0.01, 0.0, None)]
)
def test_only_what_is_more_than_chance_is_added(mean: float, chance: float, added: float | None) -> None:
    found, left = find_additions(context_of(spread(RELU)), [loss_of(mean, chance)])
    assert left == {}
    assert [one.values.tolist() for one in found] == ([] if added is None else [pytest.approx([added] * 3)])


def test_each_channel_is_judged_by_itself() -> None:
    loss = Loss("y", np.array([0.5, 0.5, -0.5]), np.full(3, 1.0), np.full(3, 9.0), np.array([0.0, 0.3, 0.125]))
    (found,), _ = find_additions(context_of(spread(RELU)), [loss])
    assert found.values.tolist() == [0.5, 0.0, -0.25]
    assert found.decibel == pytest.approx(10 * np.log10(3 / (3 - 0.25 - 0.1875)))


def test_one_sample_corrects_nothing() -> None:
    assert find_additions(context_of(spread(RELU)), [loss_of(0.5, np.inf)]) == ([], {})


def test_an_operator_without_a_place_for_a_bias_is_reported() -> None:
    loss = Loss("z", np.full(5, 0.5), np.full(5, 1.0), np.full(5, 9.0), np.zeros(5))
    found, left = find_additions(context_of(model_of(FLAT)), [loss])
    assert found == []
    assert left.keys() == {"z"} and "no bias" in left["z"]


ONES = "g (float[N,4,6,6] x) => (float[N,2,6,6] y) <float[2,4,1,1] w> { y = Conv(x, w) }"


def _filled(weight: float) -> onnx.ModelProto:
    proto = model_of(ONES)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full((2, 4, 1, 1), weight, np.float32), "w"))
    return proto


@pytest.mark.filterwarnings("error")
def test_a_sum_of_errors_whose_square_is_beyond_float32_is_counted() -> None:
    proto, rows = _filled(1.0), np.full((2, 4, 6, 6), 4e17, np.float32)  # 36 errors of 1.6e18 each: their sum is 5.8e19
    (loss,) = measure_losses(context_of(proto), table(x=0.05), singles_of(proto, rows))
    assert loss.mean == pytest.approx([1.6e18, 1.6e18])
    assert loss.chance == pytest.approx([0.0, 0.0], abs=1e26)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("weight", "value"), [(1.0, 1e20), (3e38, 1.0)])
def test_an_error_without_a_square_is_refused_by_its_tensor(weight: float, value: float) -> None:
    proto, rows = _filled(weight), np.full((1, 4, 6, 6), value, np.float32)
    with pytest.raises(QdqError, match=r"^y: .*NaN or Inf"):
        measure_losses(context_of(proto), table(x=0.05), singles_of(proto, rows))
