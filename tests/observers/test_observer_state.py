# SPDX-License-Identifier: Apache-2.0
"""The small parts of a count: which batches are in it, what a plan keeps, whose turn it is, what a signal does."""

from __future__ import annotations

import os
import random
import signal
from functools import partial

import numpy as np
import pytest

from qdqtool.data.loader import Task
from qdqtool.errors import QdqError
from qdqtool.observers.interruption import Interruption
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observer_state import BatchSet, ObserverState
from qdqtool.observers.pre_batchnorm_range import Affine
from tests.graphs import view_of

NET = "net (float[4] x) => (float[4] y) { r = Relu(x)  n = Neg(x)  y = Concat<axis=0>(r, n)  z = Relu(n) }"
NAMES = ("x", "r", "n", "y", "z")

pytestmark = pytest.mark.usefixtures("heard")


def plan(*kinds: str, derive: bool = True) -> ObservationPlan:
    return ObservationPlan.of(view_of(NET), NAMES, kinds or ("mergeable",), {}, derive=derive)


def task(index: int, count: int = 1) -> Task:
    return Task(index, index * count, count, dict)


def test_done_is_a_set() -> None:
    numbers = set(random.Random(1).choices(range(3000), k=700))
    done = BatchSet()
    for number in numbers:
        done.add(number)
    assert [number for number in range(4000) if number in done] == sorted(numbers)
    assert len(done) == len(numbers)
    other = BatchSet()
    other.add(9000)
    other.merge(done)
    done.merge(other)
    assert len(done) == len(other) == len(numbers) + 1
    assert BatchSet(done.to_bytes()).to_bytes() == done.to_bytes()
    assert BatchSet().to_bytes() == b""


def test_survey_goes_through_json() -> None:
    made = plan("entropy", "mergeable")
    assert made.ordered
    assert not plan().ordered
    assert made.fetched == NAMES  # TensorRT's histogram derives neither Relu nor Concat
    assert plan().fetched == ("x", "n")
    back = ObservationPlan.from_json(made.to_json())
    assert back.to_json() == made.to_json()
    assert back.fetched == made.fetched
    for broken in ({}, {"names": [], "kinds": {}, "behind": {}}, {"names": ["x"], "kinds": {"odd": {}}, "behind": {}}):
        with pytest.raises((KeyError, ValueError)):
            ObservationPlan.from_json(broken)


def test_dropping_a_tensor_drops_what_follows() -> None:
    assert plan().without([]) == plan()
    left = plan().without(["n"])
    assert left.names == ("x", "r")
    assert left.fetched == ("x",)
    assert plan(derive=False).without(["n"]).names == ("x", "r", "y", "z")


def test_counting_two_kinds_at_once() -> None:
    made = ObserverState(plan("entropy", "mergeable"))
    arrays = [np.array([-1.0, 2.0], np.float32) * k for k in range(1, 6)]
    made.counter(NAMES).add(task(3, 2), arrays)
    assert made.samples == 2
    assert 3 in made.done
    assert {kind: set(found) for kind, found in made.histograms.items()} == {
        "entropy": set(NAMES),
        "mergeable": {"x", "n"},
    }
    assert made.histograms["mergeable"]["n"].amax == 6  # type: ignore[union-attr]
    assert made.histograms["entropy"]["z"].counts.sum() == 2


NORMED = """net (float[N,1,2] x) => (float[N,2,2] z) <float[2,1,1] w, float[2] s, float[2] b, float[2] m, float[2] v> {
 c = Conv(x, w)  y = BatchNormalization(c, s, b, m, u)  u = Abs(v)  z = Relu(y) }"""


def test_ranges_are_counted_with_their_source() -> None:
    plain = ObservationPlan.of(view_of(NORMED), ("x", "y", "z"), ("mergeable",), {}, derive=False)
    affine = {"c": Affine("y", (2.0, -1.0), (0.0, 1.0))}
    parts = [ObserverState(ObservationPlan(("x", "c", "y", "z"), plain.derivations, affine, {}, {})) for _ in range(3)]
    y = np.array([[[1.0, 4.0], [0.0, 3.0]]], np.float32)
    for part, names in zip(parts, (("x", "y"), ("y", "x"), ("x",)), strict=True):
        arrays = {"x": np.ones((1, 1, 2), np.float32), "y": y}
        part.counter(names).add(task(0), [arrays[name] for name in names])
    assert parts[0].ranges["c"].ends.tolist() == parts[1].ranges["c"].ends.tolist() == [[1.0, 0.0], [4.0, 3.0]]
    assert (parts[0].ranges["c"].low, parts[0].ranges["c"].high) == (-2.0, 2.0)
    assert parts[2].ranges["c"].is_empty  # its source comes in another pass
    parts[2].merge(parts[0])
    assert parts[2].ranges["c"].ends.tolist() == parts[0].ranges["c"].ends.tolist()


def test_nan_in_the_source_of_a_range_stops() -> None:
    plain = ObservationPlan.of(view_of(NORMED), ("y",), ("mergeable",), {}, derive=False)
    one = ObserverState(
        ObservationPlan(("c", "y"), plain.derivations, {"c": Affine("y", (2.0, -1.0), (0.0, 1.0))}, {}, {})
    )
    with pytest.raises(QdqError, match="y: holds NaN"):
        one.counter(("y",)).add(task(0), [np.full((1, 2, 2), np.nan, np.float32)])


def test_samples_count_in_the_first_pass_only() -> None:
    made = ObserverState(plan())
    made.passed = 1
    made.counter(["x"]).add(task(0), [np.ones(3, np.float32)])
    assert made.samples == 0
    assert made.histograms["mergeable"]["n"].is_empty


def test_merged_is_the_sum() -> None:
    parts = []
    for index in range(4):
        part = ObserverState(plan())
        part.counter(("x", "n")).add(task(index), [np.full(3, index - 1.5, np.float32)] * 2)
        parts.append(part)
    total = ObserverState(plan())
    for part in parts:
        total.merge(part)
    assert total.samples == len(total.done) == 4
    assert total.histograms["mergeable"]["x"].count == 12  # type: ignore[union-attr]
    assert parts[0].samples == 1


# Signals.


def test_the_second_signal_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), Interruption() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_batch_is_loaded_when_it_is_asked_for() -> None:
    loaded: list[int] = []
    one = Task(0, 0, 1, partial(loaded.append, 1))  # type: ignore[arg-type]
    assert not loaded
    one.load()
    assert loaded == [1]
