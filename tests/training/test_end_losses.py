# SPDX-License-Identifier: Apache-2.0
"""Losses at the ends in NumPy: what the graph of `finetune` computes, and which outputs no head leads to."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.graph.model import Model
from qdqtool.training.end_losses import DistillLosses
from qdqtool.training.losses.distill_targets import kind_term
from qdqtool.training.losses.nodes import Nodes
from qdqtool.training.losses.targets import Targets
from qdqtool.training.losses.teacher import Teacher
from tests.graphs import model_of
from tests.training.losses.loss_graphs import DETECTOR, SIZES, bare, outputs_of, shapes_of

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

CLASSIFIER = """net (float[1,3,8,8] x) => (float[1,5] g) <float[4,3,3,3] w, float[4,5] v>
{ c = Conv(x, w)  r = Relu(c)  p = GlobalAveragePool(r)  f = Flatten(p)  g = Gemm(f, v) }"""


@pytest.mark.parametrize(
    ("text", "shapes"), [(DETECTOR, SIZES), (CLASSIFIER, {"g": (1, 5), "r": (1, 4, 6, 6), "p": (1, 4, 1, 1)})]
)
def test_each_kind_is_what_finetune_minimizes(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    losses = DistillLosses(Model(model_of(text)), shapes, frozenset(shapes))
    assert losses.kinds and not losses.outputs
    random = np.random.default_rng(1)
    ours, theirs = (
        {name: random.normal(size=shapes[name]).astype(np.float32) for name in losses.tensors} for _ in range(2)
    )
    proto = bare(17, **ours)
    nodes = Nodes(proto, shapes_of(proto))
    targets = Targets(nodes, Teacher(Model(bare(17, **theirs)), {}))
    terms = [nodes.named(kind_term(nodes, targets, kind), f"loss{place}") for place, kind in enumerate(losses.kinds)]
    found = outputs_of(proto, {taker: theirs[tensor] for tensor, taker in targets.inputs.items()})
    assert losses.measure(theirs, ours) == pytest.approx([float(found[name]) for name in terms], rel=1e-4)
    assert losses.measure(theirs, theirs) == pytest.approx(np.zeros(len(terms)), abs=1e-9)


def test_what_no_head_leads_to_counts_by_its_square_error() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,2,4,4] y, int64[4] n) { y = Relu(x)  n = Shape(x) }"
    losses = DistillLosses(Model(model_of(text)), {"y": (1, 2, 4, 4), "n": (4,)}, frozenset({"y"}))
    assert losses.tensors == ("y",) and not losses.kinds
    one = np.ones((1, 2, 4, 4), np.float32)
    assert losses.measure({"y": one}, {"y": 3 * one}).tolist() == [128.0]


def test_large_logits_do_not_overflow() -> None:
    losses = DistillLosses(Model(model_of(DETECTOR)), SIZES, frozenset(SIZES))
    sides = ({name: np.full(SIZES[name], value, np.float32) for name in losses.tensors} for value in (800.0, -800.0))
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(losses.measure(*sides)).all()
