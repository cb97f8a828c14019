# SPDX-License-Identifier: Apache-2.0
"""The laws of FP16 and BF16 models: what verbs make of one is what they make of it in FP32, and comes out again."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool import PeelOptions, QdqError, calibrate, evaluate, insert, lint, peel
from qdqtool.data.loader import DataOptions
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.rounded import as_run
from qdqtool.precision.widen import is_typed
from qdqtool.runtime.executor import Executor
from qdqtool.verbs.evaluate_options import EvaluateOptions
from qdqtool.verbs.insert_options import InsertOptions
from tests.laws.law_checks import checker_complaint, examples, same
from tests.laws.random_graphs import networks
from tests.laws.test_laws_rtx import products_built, products_planned
from tests.precision.typed_graphs import widened, with_roundings, with_types

MODELS = Path(__file__).parents[2] / "models"
BUNDLED = {"tiny_classifier": "digits8_calib", "digits_detector": "digits_calib", "bccd_detector": ""}
F16, BF16 = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
ALL = InsertOptions(plan=PlanOptions(float_heads="none"), keep_float=0)
few = examples(6)


@st.composite
def typed_networks(draw: st.DrawFn) -> onnx.ModelProto:
    """A random network in FP16 or BF16, a third of whose operators stay in FP32; nothing in it is told of us."""
    model = draw(networks(tidy=True))
    normalize(Model(model))
    chance = random.Random(draw(st.integers(0, 2**30)))
    float32 = frozenset(node.key for node in GraphView(model.graph).every if chance.random() < 1 / 3)
    kind, half_io = draw(st.sampled_from([F16, BF16])), draw(st.booleans())
    return as_foreign(with_types(model, TypeAssignment(kind, float32, half_io)))


def as_foreign(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without our record of its types, as another tool would have written it."""
    del model.metadata_props[:]
    return model


def half_of(name: str, kind: int = F16) -> onnx.ModelProto:
    """A bundled model in half precision."""
    return as_foreign(with_types(onnx.load(MODELS / f"{name}.onnx"), TypeAssignment(kind, frozenset())))


def nodes_of(model: onnx.ModelProto) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(node.op_type, tuple(node.input), tuple(node.output)) for node in model.graph.node]


def inserted(model: onnx.ModelProto) -> onnx.ModelProto | None:
    try:
        return insert(model, options=ALL).model
    except QdqError:  # nothing to quantize
        return None


def check_typed_as_fp32(model: onnx.ModelProto) -> None:
    """Insert into a typed model and into the same in FP32; take both out."""
    wide = widened(model)
    made, other = inserted(model), inserted(wide)
    if made is None or other is None:
        assert made is other
        return
    assert nodes_of(widened(made)) == nodes_of(other)
    options = PeelOptions("8.5.2", "gpu", allow_estimated=True)
    out, plain = peel(made, options), peel(other, options)
    assert same(out.model, model)
    assert out.cache.entries == plain.cache.entries
    assert same(peel(made, PeelOptions("8.5.2", "gpu", allow_estimated=True, source=model)).model, model)
    again = inserted(made)
    assert again is not None and same(again, made)


@few
@given(typed_networks())
def test_insert_and_peel_of_a_typed_network_are_those_of_the_network_in_fp32(model: onnx.ModelProto) -> None:
    check_typed_as_fp32(model)


@few
@given(typed_networks())
def test_both_fp32_forms_of_a_typed_network_are_sound_and_run(model: onnx.ModelProto) -> None:
    wide = widened(model)
    assert not is_typed(Model(wide)) and not checker_complaint(wide)
    Executor(Model(with_roundings(model))), Executor(Model(wide))
    made = inserted(model)
    if made is not None:
        Executor(Model(with_roundings(made)))


@few
@given(typed_networks())
def test_insert_adds_nothing_to_a_typed_network_that_lint_would_complain_of(model: onnx.ModelProto) -> None:
    made = inserted(model)
    if made is None:
        return
    before = {one.key for one in lint(model).findings}
    told = {one.code for one in lint(made).findings if one.key not in before and one.severity != "note"}
    assert told <= {"Q009", "Q023"}  # every head was asked for, and no data


@pytest.mark.slow  # six times both verbs
@pytest.mark.parametrize("kind", [F16, BF16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("name", BUNDLED)
def test_insert_and_peel_of_a_bundled_model_in_half_precision(name: str, kind: int) -> None:
    check_typed_as_fp32(half_of(name, kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, data in BUNDLED.items() if data])
def test_calibrated_scales_in_half_precision_lie_near_those_in_fp32(name: str) -> None:
    data, options = MODELS / f"{BUNDLED[name]}.npz", DataOptions(limit=8)
    ours = calibrate(half_of(name), data, data_options=options)
    theirs = calibrate(MODELS / f"{name}.onnx", data, data_options=options)
    assert ours.scales.keys() == theirs.scales.keys()
    apart = [abs(float(ours.scales[one].bits) / float(scale.bits) - 1) for one, scale in theirs.scales.items()]
    assert np.median(apart) < 1e-3 and np.quantile(apart, 0.9) < 0.02  # a choice among candidates may tip
    wide = calibrate(widened(half_of(name)), data, data_options=options)
    assert {one: scale.hex() for one, scale in wide.scales.items()} == {n: s.hex() for n, s in ours.scales.items()}


@pytest.mark.slow  # the rounding executor over a test set
@pytest.mark.parametrize("kind", [F16, BF16], ids=["fp16", "bf16"])
def test_a_typed_quantized_classifier_is_as_good_as_that_in_fp32(kind: int) -> None:
    name, data = "tiny_classifier", MODELS / "digits8_calib.npz"
    found = []
    for model in (onnx.load(MODELS / f"{name}.onnx"), half_of(name, kind)):
        made = insert(model, data=data, options=InsertOptions(keep_float=0)).model
        options = EvaluateOptions(progress=False)
        result = evaluate(made, MODELS / "digits8_test.npz", None, options, DataOptions(batch=50))
        found.append(result.value("top1"))
    assert found[0] > 0.9 and abs(found[0] - found[1]) < 0.01


@pytest.mark.rtx
@pytest.mark.parametrize("name", BUNDLED)
def test_what_is_planned_in_a_typed_bundled_model_is_built_in_int8_and_nothing_in_fp32(name: str) -> None:
    made = insert(half_of(name), options=InsertOptions(plan=PlanOptions("rtx"))).model
    planned = products_planned(as_fp32_of(made))
    assert planned and planned <= products_built(made, "89", "INT8")
    assert not products_built(made, "89", "FP32")


def as_fp32_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as plans see it; what judges run of it is another form."""
    assert as_run(Model(model)).proto is not model
    return widened(model)
