# SPDX-License-Identifier: Apache-2.0
"""Advice is predicted without an edit, and given only where outputs gain on samples that were not counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdqtool.conditioning import advice as module
from qdqtool.conditioning.advice import advice
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from tests.conditioning.nets import RELU, SILU, even, feed_of, samples, spread

pytest.importorskip("onnxruntime", reason="onnxruntime runs the models")

PLAN = PlanOptions(float_heads="none")


@pytest.mark.parametrize("net", [SILU, RELU])
def test_it_predicts_without_an_edit(net: str) -> None:
    proto = spread(net)
    before = proto.SerializeToString()
    found = advice(Model(proto), feed_of(proto), PLAN)
    assert found is not None
    assert found[1].worst > found[0].worst + 2
    assert proto.SerializeToString() == before


def test_nothing_is_said_where_nothing_would_be_divided() -> None:
    assert advice(Model(even()), feed_of(even()), PLAN) is None


def test_a_network_of_much_work_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took three to nine times what `insert` takes by itself, and two sizes of a large model beside it."""
    proto = spread(SILU)
    context = module.look(Model(proto), PLAN)
    work = module.work_of(context, {"x": samples(1)})
    weights = [context.view.constant_tensor(node.inputs[1]) for node in context.view.nodes if node.op == "Conv"]
    taps = [int(np.prod(weight.dims)) for weight in weights if weight is not None]
    places = [int(np.prod(samples(1).shape[2:]))] * len(taps)
    assert work == sum(own * (place + 32) for own, place in zip(taps, places, strict=True))
    monkeypatch.setattr(module, "MOST_WORK", work)
    assert advice(Model(proto), feed_of(proto), PLAN) is not None
    monkeypatch.setattr(module, "MOST_WORK", work - 1)
    assert advice(Model(proto), feed_of(proto), PLAN) is None


@pytest.mark.parametrize(
    ("losses", "given"), [([0.2, 0.1], True), ([0.1, 0.1], False), ([0.1, 0.2], False), (None, True)]
)
def test_the_outputs_must_gain(monkeypatch: pytest.MonkeyPatch, losses: list[float] | None, given: bool) -> None:
    monkeypatch.setattr(module, "output_losses", lambda *_: losses)
    proto = spread(SILU)
    assert (advice(Model(proto), feed_of(proto), PLAN) is not None) == given


@pytest.mark.parametrize("net", [SILU, RELU])
def test_it_is_judged_by_what_it_says_on_samples_that_were_not_counted(
    monkeypatch: pytest.MonkeyPatch, net: str
) -> None:
    proto = spread(net)
    seen: list[Any] = []
    real = module.output_losses

    def judged(*given: Any) -> list[float] | None:
        losses = real(*given)
        seen.append((given, losses))
        return losses

    monkeypatch.setattr(module, "output_losses", judged)
    counted: list[bytes] = []
    count = module.count_classes

    def counting(context: Any, classes: Any, walk: Any) -> Any:
        walked = list(walk)
        counted.extend(np.asarray(one["x"]).tobytes() for one in walked)
        return count(context, classes, walked)

    monkeypatch.setattr(module, "count_classes", counting)
    assert advice(Model(proto), feed_of(proto, samples(24)), PLAN) is not None
    ((context, variants, held), losses) = seen[0]
    assert losses is not None and losses[1] < losses[0]
    assert held and not {np.asarray(one["x"]).tobytes() for one in held} & set(counted)
    (plain, _), (edited, _) = (variant() for variant in variants)
    assert plain.proto == context.model.proto and plain.proto is not context.model.proto
    muls = [node for node in edited.graph.node if node.op_type == "Mul" and "smooth" in node.output[0]]
    assert isinstance(edited, Model) and bool(muls) == (net == SILU)
