# SPDX-License-Identifier: Apache-2.0
"""Samples stage by stage with one session at a time, against one session for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qdqtool.graph.model import Model
from qdqtool.runtime import sample_pass, stages
from qdqtool.runtime.activations import ObservableModel, OrtActivations
from qdqtool.runtime.sample_pass import pass_samples
from tests.graphs import model_of
from tests.runtime.test_staged_activations import BATCHES, blocks

SEQUENCE = """g (float[1,16,12,12] x) => (float[1,32,12,12] z) <float[16,16,3,3] v> {
    a = Conv<pads=[1,1,1,1]>(x, v) s = SequenceConstruct(a, x) b = Conv<pads=[1,1,1,1]>(a, v)
    t = SequenceInsert(s, b) c = ConcatFromSequence<axis=1>(t) z = Relu(c) }"""


def passed(model: ObservableModel, wanted: list[str]) -> list[dict[str, Any]]:
    """Every wanted tensor of every sample."""
    found: list[dict[str, Any]] = [{} for _ in BATCHES]

    def take(number: int, made: Mapping[str, Any]) -> None:
        assert set(made) <= set(wanted)
        found[number].update(made)

    pass_samples(model, wanted, BATCHES, take)
    return found


def test_tensors_are_those_of_one_session_and_no_two_sessions_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    real = sample_pass.start_session

    def start(runtime: Any, parts: Any, *rest: Any, **more: Any) -> Any:
        started.append(len(parts[0].graph.node))
        return real(runtime, parts, *rest, **more)

    monkeypatch.setattr(sample_pass, "start_session", start)
    monkeypatch.setattr(stages, "_BYTES", 40_000)
    model, wanted = ObservableModel(Model(blocks(6))), ["b0", "d2", "r5"]
    found = passed(model, wanted)
    assert len(started) > 2
    for batch, one in zip(BATCHES, found, strict=True):
        whole = dict(OrtActivations.of(model, wanted).run(batch))
        assert all(one[name].tobytes() == whole[name].tobytes() for name in wanted)


def test_a_sequence_passes_no_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_BYTES", 1)
    model = ObservableModel(Model(model_of(SEQUENCE)))
    for batch, one in zip(BATCHES, passed(model, ["b", "z"]), strict=True):
        whole = dict(OrtActivations.of(model, ["b", "z"]).run(batch))
        assert all(one[name].tobytes() == whole[name].tobytes() for name in ("b", "z"))
