# SPDX-License-Identifier: Apache-2.0
"""What `amp` promises of any network: finite where FP32 is, types that agree, casts as told, the same done twice.

onnxruntime loads what comes out as it optimizes by itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given

from qdqtool import AmpOptions, AmpResult, CalibrationOptions, InsertOptions, QdqError, amp, insert
from qdqtool.data.loader import inputs_of
from qdqtool.graph.io import serialize
from qdqtool.graph.model import Model
from qdqtool.precision.casts import count_casts
from qdqtool.precision.element_types import infer_types
from qdqtool.runtime.activations import OrtActivations
from qdqtool.tensorrt_rtx.build import build_engine
from tests.conftest import shared_folder
from tests.laws import law_checks as laws
from tests.laws.random_graphs import networks
from tests.ort_session import OPTIMIZED, session_of
from tests.precision.typed_graphs import widened, with_roundings

TRAINED = sorted(((shared_folder() or Path()) / "corpus" / "models").glob("*.onnx"))
OPTIONS = AmpOptions(calibration=CalibrationOptions(progress=False))
PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
PAIRS = InsertOptions(calibration=CalibrationOptions("max", progress=False), keep_float=0, allow_empty=True)
many = laws.examples(4)


def data_for(model: onnx.ModelProto, factor: float = 1.0) -> list[dict[str, Any]]:
    """Two batches of random numbers; a free axis has one, a picture of free sizes 64."""
    values, feeds = np.random.default_rng(0), []
    for _ in range(2):
        feed = {}
        for one in inputs_of(model.graph):
            sides = enumerate(one.shape or ())
            shape = [side if isinstance(side, int) and side else 64 if at else 1 for at, side in sides]
            is_float = np.dtype(one.dtype).kind == "f"
            random = values.normal(size=shape) * factor if is_float else values.integers(0, 2, shape)
            feed[one.name] = random.astype(one.dtype)
        feeds.append(feed)
    return feeds


def typed(model: onnx.ModelProto, data: list[dict[str, Any]]) -> AmpResult[onnx.ModelProto]:
    return amp(model, data, options=OPTIONS)


def check_finite(model: onnx.ModelProto, made: onnx.ModelProto, batch: dict[str, Any]) -> None:
    """Every tensor that is finite in FP32 is finite with the roundings of the typed model."""
    plain = dict(OrtActivations(Model(widened(model))).run(batch))
    half = dict(OrtActivations(Model(with_roundings(made))).run(batch))
    assert plain.keys() <= half.keys()
    for name, values in plain.items():
        assert np.isfinite(half[name]).all() or not np.isfinite(values).all(), name


def loads(model: onnx.ModelProto) -> bool:
    """Whether onnxruntime takes the model as it is given."""
    try:
        session_of(model, OPTIMIZED)
    except Exception:  # what onnxruntime raises has no common type
        return False
    return True


def check_all(model: onnx.ModelProto, data: list[dict[str, Any]]) -> AmpResult[onnx.ModelProto]:
    """Every law on one model."""
    before = serialize(model)
    done = typed(model, data)
    assert serialize(model) == before, "the caller's model was changed"
    check_finite(model, done.model, data[0])
    assert not infer_types(done.model).conflicts
    assert done.choice.casts == count_casts(done.model)
    if loads(model):  # names may be doubled
        session_of(done.model, OPTIMIZED)
    assert serialize(typed(done.model, data).model) == serialize(done.model)
    assert serialize(typed(model, data).model) == serialize(done.model)
    return done


@many
@given(networks())
def test_the_laws_on_random_networks(model: onnx.ModelProto) -> None:
    check_all(model, data_for(model))


@many
@given(networks())
def test_the_laws_where_values_pass_fp16(model: onnx.ModelProto) -> None:
    try:
        check_all(model, data_for(model, 3e4))
    except QdqError as error:  # all values do
        assert re.search("no operator .*FP32 for values ", str(error))


@many
@given(networks(tidy=True))
def test_the_laws_on_random_networks_with_pairs(model: onnx.ModelProto) -> None:
    data = data_for(model)
    check_all(insert(model, data=data, options=PAIRS).model, data)


@pytest.mark.slow  # half a second to two a network: the rounding executor runs every node by itself
@pytest.mark.shared
@pytest.mark.parametrize("file", TRAINED, ids=lambda file: file.stem)
def test_the_laws_on_trained_models(file: Path) -> None:
    model = onnx.load(file)
    check_all(model, data_for(model))


@pytest.mark.rtx
@pytest.mark.shared
@pytest.mark.parametrize("file", laws.few_at_once(TRAINED), ids=[file.stem for file in TRAINED])
def test_the_compiler_builds_every_trained_model(file: Path, tmp_path: Path) -> None:
    model = onnx.load(file)
    done = amp(model, data_for(model), options=OPTIONS, output=tmp_path / "m.onnx")
    built = build_engine(tmp_path / "m.onnx")
    if not any(op in PRODUCTS for _, op in (done.choice.operators[key] for key in done.choice.reasons)):
        assert set(built.products) <= {"FP16"}
