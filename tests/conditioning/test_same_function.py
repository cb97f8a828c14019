# SPDX-License-Identifier: Apache-2.0
"""How far two models lie apart, and where weights are clipped."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from qdqtool.conditioning.channel_histograms import ChannelSpectrum, ErrorTable
from qdqtool.conditioning.check import Outputs, compare, moved_most
from qdqtool.conditioning.equalization_sets import EqualizationSet
from qdqtool.conditioning.predict import Weight
from qdqtool.conditioning.weight_clipping import find_limits
from qdqtool.data.single_samples import SingleSamples
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.measures import OutputChange
from tests.conditioning.nets import RELU, feed_of, samples, singles_of
from tests.graphs import model_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")


def test_a_difference_is_measured_over_all_samples() -> None:
    proto = model_of(RELU)
    before = Outputs(Model(proto))
    bias = proto.graph.initializer[3]
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(0.5), bias.name))
    loader = feed_of(proto)
    found = compare(before, [Outputs(Model(proto))], SingleSamples(loader, loader.inputs))[0]["y"]
    exact = np.concatenate([dict(before.open().run({"x": row[None]}))["y"] for row in samples()])
    assert found.relative == pytest.approx(0.5 / np.sqrt(np.square(exact).mean()), rel=1e-4)
    assert found.largest == pytest.approx(0.5 / np.abs(exact).max(), rel=1e-4)
    assert found.decibel == pytest.approx(-20 * np.log10(found.relative))
    assert found.of_range == pytest.approx(0.5 / float(np.ptp(exact)), rel=1e-4)
    assert moved_most({"y": found}).startswith("the output y changed by ")


def test_a_difference_beyond_float32_is_held_at_its_limit() -> None:
    models = [
        Outputs(Model(model_of(f"net (float[2] x) => (float[2] y) {{ y = {op} }}"))) for op in ("Neg(x)", "Abs(x)")
    ]
    (found,) = compare(models[0], models[1:], [{"x": np.full(2, 1e38, np.float32)}])
    assert found["y"].relative == 1.0


def test_an_output_that_is_no_number_counts_as_lost() -> None:
    """Its squares had no exact sum, which ended with exit code 70."""
    models = [
        Outputs(Model(model_of(f"net (float[2] x) => (float[2] y) {{ y = {op} }}"))) for op in ("Abs(x)", "Log(x)")
    ]
    (found,) = compare(models[0], models[1:], [{"x": np.array([-1, 1], np.float32)}])
    assert found["y"].relative > 1.0


def test_the_same_model_does_not_differ() -> None:
    proto = model_of(RELU)
    (found,) = compare(Outputs(Model(proto)), [Outputs(Model(proto))], singles_of(proto))
    assert found == {"y": OutputChange(0.0, 0.0, 0.0, 999.0)}
    assert moved_most(found) == ""
    assert moved_most({"y": OutputChange(9.9e-5, 1e-3, 9.9e-6, 80.1)}) == ""
    worst = {"y": OutputChange(1.0, 1.0, 2e-5, 0.0), "z": OutputChange(1.0, 1.0, float("nan"), 0.0)}
    assert re.match("the output z .* nan .* 1e-05$", moved_most(worst))


def test_an_output_that_is_mostly_zero_is_judged_by_its_range() -> None:
    """A heat map: one peak among zeros. Rounding of 1e-7 of the peak was 1e-5 of the root mean square."""
    one, other = (model_of("g (float[N,4,6,6] x) => (float[N,4,6,6] y) { y = Relu(x) }") for _ in range(2))
    other.graph.node[0].op_type = "LeakyRelu"
    other.graph.node[0].attribute.append(onnx.helper.make_attribute("alpha", 2e-5))
    rows = np.full((1, 4, 6, 6), -1.0, np.float32)
    rows[0, 0, 0, 0] = 10.0
    (found,) = compare(Outputs(Model(one)), [Outputs(Model(other))], singles_of(one, rows))
    assert found["y"].relative > 1e-5 and moved_most(found) == ""


def test_an_output_of_one_value_is_judged_by_that() -> None:
    rows = np.ones((1, 4, 6, 6), np.float32)
    one, other = (
        model_of(f"g (float[N,4,6,6] x) => (float[N,4,6,6] y) {{ y = Elu<alpha={a}>(x) }}") for a in (1.0, 2.0)
    )
    assert compare(Outputs(Model(one)), [Outputs(Model(other))], singles_of(one, rows))[0]["y"].of_range == 0
    assert compare(Outputs(Model(one)), [Outputs(Model(other))], singles_of(one, -rows))[0]["y"].of_range == 1


def test_another_shape_is_refused() -> None:
    body = "g (float[N,4,6,6] x) => (float[N,a,b,c] y) {{ y = {} }}"
    one, other = model_of(body.format("Relu(x)")), model_of(body.format("GlobalMaxPool(x)"))
    with pytest.raises(QdqError, match="has the shape"):
        compare(Outputs(Model(one)), [Outputs(Model(other))], singles_of(one))


def family_of(cube: np.ndarray) -> EqualizationSet:
    spectrum = ChannelSpectrum(cube.shape[2], 1)
    spectrum.add(np.random.default_rng(0).normal(size=(1, cube.shape[2], 500)).astype(np.float32))
    table = ErrorTable(spectrum.counts, spectrum.amax)
    return EqualizationSet((), table, (Weight("y", cube, np.arange(cube.shape[2]), "channel"),))


def test_an_outlier_among_weights_is_clipped_where_that_wins() -> None:
    cube = np.random.default_rng(1).laplace(size=(1, 4, 64, 9))
    families = [(family_of(cube), np.ones(64, np.float32))]
    shares, decibel = find_limits(families, 0.0)["y"]
    assert ((shares >= 0.7) & (shares <= 1)).all()
    assert (shares < 1).any()
    assert decibel > 0
    assert find_limits(families, 20.0) == {}


def test_weights_without_outliers_stay() -> None:
    cube = np.full((1, 2, 8, 1), 0.5)
    assert find_limits([(family_of(cube), np.ones(8, np.float32))], 0.0) == {}
