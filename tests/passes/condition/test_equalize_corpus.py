# SPDX-License-Identifier: Apache-2.0
"""Every trained network at hand with random powers of two for all its classes gives the same bits as before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from qdqtool.graph.channels.atoms import PINNED, ChannelAtoms
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.types import opset_of
from qdqtool.graph.view import GraphView
from qdqtool.passes.condition.absorbers import factor_classes
from qdqtool.passes.condition.equalize import equalize
from tests.conftest import shared_folder
from tests.laws.law_checks import few_at_once
from tests.ort_session import session_of

ort = pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

TRAINED = sorted(((shared_folder() or Path()) / "corpus" / "models").glob("*.onnx"))
# Nothing may be divided: SiLU and ReLU6 stand after every weight, attention after every LayerNormalization.
NONE = {"bert_toy", "mobilenetv1_025_128", "yolox_nano_coco"}
pytestmark = pytest.mark.shared


def fed(model: onnx.ModelProto) -> dict[str, npt.NDArray[np.generic]]:
    rng, weights, found = np.random.default_rng(0), {one.name for one in model.graph.initializer}, {}
    for value in model.graph.input:
        kind, dims = value.type.tensor_type.elem_type, value.type.tensor_type.shape.dim
        sides = [dim.dim_value or (1 if place == 0 else 64) for place, dim in enumerate(dims)]
        if value.name not in weights:
            whole = kind == onnx.TensorProto.INT64
            found[value.name] = rng.integers(0, 5, sides) if whole else rng.normal(size=sides).astype(np.float32)
    return found


def run(model: onnx.ModelProto, loader: dict[str, npt.NDArray[np.generic]]) -> list[bytes]:
    session = session_of(model)
    return [np.asarray(one).tobytes() for one in session.run(None, loader)]


@pytest.mark.parametrize("file", few_at_once(TRAINED), ids=[file.stem for file in TRAINED])
def test_powers_of_two_keep_every_bit(file: Path) -> None:
    model = onnx.load(file)
    if (opset_of(model) or 0) < 13:
        normalize(Model(model))
    loader = fed(model)
    exact = run(model, loader)
    atoms = ChannelAtoms(
        view := GraphView(model.graph), shapes_of(view, {name: one.shape for name, one in loader.items()})
    )
    classes = factor_classes(atoms)
    labels = np.unique(atoms.find(np.arange(atoms.size)))
    free = labels[labels > PINNED]
    assert bool(free.size) == (file.stem not in NONE)
    factors = np.ones(atoms.size)
    factors[free] = np.exp2(np.random.default_rng(1).integers(-3, 4, free.size))
    before = [node.op_type for node in model.graph.node if node.op_type != "Constant"]
    edited = equalize(Model(model), classes, factors)
    assert bool(edited) == bool(free.size)
    assert [node.op_type for node in model.graph.node if node.op_type != "Constant"] == before
    assert run(model, loader) == exact
