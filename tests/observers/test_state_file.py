# SPDX-License-Identifier: Apache-2.0
"""An observation as a file: it comes back bit for bit, and what is no state of this plan is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data.loader import Task
from qdqtool.decisions import Provenance
from qdqtool.errors import QdqError
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observer_state import ObserverState
from qdqtool.observers.pre_batchnorm_range import Affine
from qdqtool.observers.state_file import State, StateIdentity, read_state, state_from_bytes, state_to_bytes, write_state
from tests.graphs import view_of

NET = "net (float[N,2,4] a, float[N,3,4] b) => (float[N,2,4] y) { y = Neg(a)  z = Neg(b) }"
NAMES = ("a", "b", "y", "z")


def state_of(*, ranges: bool = True, kinds: tuple[str, ...] = ("mergeable",)) -> State:
    """Two tensors that have ranges of two and three channels, of one batch."""
    plain = ObservationPlan.of(view_of(NET), NAMES, kinds, {}, derive=False)
    affine = {"p": Affine("a", (1.0, -2.0), (0.0, 1.0)), "q": Affine("b", (3.0, 1.0, -1.0), (0.0,) * 3)}
    plan = ObservationPlan((*NAMES, *affine), plain.derivations, affine, {}, {}) if ranges else plain
    observation = ObserverState(plan)
    r = np.random.default_rng(0)
    arrays = [r.normal(size=(2, channels, 4)).astype(np.float32) for channels in (2, 3, 2, 3)]
    observation.counter(NAMES).add(Task(5, 10, 2, dict), arrays)
    return State(StateIdentity("m", "d", "cpu"), plan, observation, (0, 1), True, Provenance(other={"n": 1}))


def parts_of(state: State) -> dict[str, Any]:
    with np.load(io.BytesIO(state_to_bytes(state))) as stored:
        return dict(stored)


def bytes_of(parts: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **parts)
    return file.getvalue()


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("compress", [True, False])
def test_a_state_comes_back(tmp_path: Path, ranges: bool, compress: bool) -> None:
    state = state_of(ranges=ranges, kinds=("mergeable",) if ranges else ("entropy", "mergeable"))
    write_state(state, tmp_path / "s", compress=compress)
    back = read_state(tmp_path / "s")
    assert state_to_bytes(back) == state_to_bytes(state) == state_to_bytes(state_from_bytes(state_to_bytes(state)))
    assert back.identity == state.identity and back.provenance.other == {"n": 1}
    assert 5 in back.observation.done and back.observation.samples == 2
    for kind, found in state.observation.histograms.items():
        for name, one in found.items():
            assert back.observation.histograms[kind][name].state() == one.state()


def test_each_range_gets_its_own_channels() -> None:
    state = state_of()
    packed = parts_of(state)["ranges"]
    assert packed.shape == (2, 5) and packed.dtype == np.float32
    back = state_from_bytes(state_to_bytes(state)).observation
    for name, one in state.observation.ranges.items():
        assert np.isfinite(one.ends).all()
        assert back.ranges[name].ends.tobytes() == one.ends.tobytes()
    back.merge(state.observation)  # what was read can be written to
    assert back.ranges["q"].high == state.observation.ranges["q"].high
    assert "ranges" not in parts_of(state_of(ranges=False))


@pytest.mark.parametrize(
    "broken",
    [
        None,
        np.zeros((2, 4), np.float32),
        np.zeros((2, 6), np.float32),
        np.zeros((5, 2), np.float32),
        np.zeros((2, 5), np.float64),
        np.full((2, 5), np.nan, np.float32),
    ],
    ids=["missing", "too few", "too many", "turned", "float64", "NaN"],
)
def test_ranges_of_another_survey_are_refused(broken: Any) -> None:
    parts = parts_of(state_of())
    assert state_from_bytes(bytes_of(parts)).observation.ranges["p"].amax > 0
    parts.pop("ranges")
    if broken is not None:
        parts["ranges"] = broken
    with pytest.raises(QdqError, match="calibration state"):
        state_from_bytes(bytes_of(parts))


def test_ranges_that_nobody_asked_for_are_refused() -> None:
    parts = {**parts_of(state_of(ranges=False)), "ranges": np.zeros((2, 1), np.float32)}
    with pytest.raises(QdqError, match="calibration state"):
        state_from_bytes(bytes_of(parts))


@pytest.mark.parametrize("name", ["meta", "done", "mergeable.counts", "mergeable.lengths", "mergeable.tally"])
def test_a_state_without_a_part_is_refused(name: str) -> None:
    parts = parts_of(state_of())
    del parts[name]
    with pytest.raises(QdqError):
        state_from_bytes(bytes_of(parts))


def test_numbers_that_are_not_real_are_refused_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    parts = parts_of(state_of())
    parts["mergeable.counts"] = parts["mergeable.counts"].astype(np.complex64)
    with pytest.raises(QdqError, match="real numbers"):
        state_from_bytes(bytes_of(parts))
    assert not recwarn.list


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="does not exist"):
        read_state(tmp_path / "none")
    with pytest.raises(QdqError, match="cannot be read"):
        state_from_bytes(b"PK\x03\x04 and no more")


def forged(kinds: tuple[str, ...] = ("mergeable",), *, meta: dict[str, Any] | None = None, **arrays: Any) -> bytes:
    """A state with other arrays, or other entries of its description."""
    parts = parts_of(state_of(ranges=kinds == ("mergeable",), kinds=kinds))
    reported = {**json.loads(parts["meta"].tobytes()), **(meta or {})}
    parts["meta"] = np.frombuffer(json.dumps(reported).encode(), np.uint8)
    return bytes_of({**parts, **{name.replace("__", "."): array for name, array in arrays.items()}})


@pytest.mark.parametrize("width", [-1.0, -0.5, 0.0, 1e-60, 1e40, np.inf, -np.inf, np.nan])
def test_a_width_that_no_data_gives_is_refused(width: float) -> None:
    assert state_from_bytes(forged(("entropy",))).observation.histograms["entropy"]["a"].counts.any()
    with pytest.raises(QdqError, match=r"histogram .*wide"):
        state_from_bytes(forged(("entropy",), entropy__width=np.full((4, 1), width)))


@pytest.mark.parametrize("ends", [(-np.inf, np.inf), (np.inf, -np.inf), (2.0, -2.0), (np.nan, 1.0), (-1.0, np.nan)])
def test_a_range_that_no_data_gives_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(QdqError, match=r"histogram .*range"):
        state_from_bytes(forged(mergeable__range=np.tile(np.array(ends, np.float32), (4, 1))))


@pytest.mark.parametrize("tally", [-1, 1 << 62])
def test_counts_that_nobody_counted_are_refused(tally: int) -> None:
    with pytest.raises(QdqError, match="tally is missing"):
        state_from_bytes(forged(mergeable__tally=np.full((4, 4), tally)))


@pytest.mark.parametrize(
    "meta",
    [
        {"shard": [0, 10**18]},
        {"shard": [3, 2]},
        {"shard": [-1, 2]},
        {"shard": ["a", 2]},
        {"shard": [0.5, 2]},
        {"shard": 3},
        {"samples": -1},
        {"samples": 1e400},
        {"samples": "many"},
        {"passed": [1]},
        {"facts": 3},
        {"facts": {"data": 3}},
        {"facts": {"kept": ["a"]}},
        {"identity": 3},
        {"identity": {"model": 3, "data": "", "provider": "", "passes": []}},
        {"identity": {"model": "m", "data": "d", "provider": "cpu", "passes": 3}},
        {"survey": []},
        {"survey": {"names": ["a"], "kinds": {}, "affine": {}, "follows": {}, "behind": {}}},
        {"survey": {"names": ["a"], "kinds": {"other": {}}, "affine": {}, "follows": {}, "behind": {}}},
        {"schema": 99},
    ],
)
def test_a_damaged_description_is_one_line(meta: dict[str, Any]) -> None:
    with pytest.raises(QdqError) as caught:
        state_from_bytes(forged(meta=meta))
    assert caught.value.exit_code == 2 and "\n" not in caught.value.line()


@pytest.mark.parametrize(
    "changed",
    [
        {"names": ["a", "a", "y", "z"]},
        {"follows": {"z": "nobody"}},
        {"affine": {"z": ["nobody", [1.0], [0.0], False]}},
        {"affine": {"z": ["a", [0.0], [0.0], False]}},
        {"affine": {"z": ["a", [1.0, 2.0], [0.0], False]}},
        {"affine": {"z": ["a", [float("inf")], [0.0], False]}},
        {"kinds": {"mergeable": {"y": ["same", "nobody"]}}},
        {"kinds": {"mergeable": {"y": ["same", "z"], "z": ["same", "y"]}}},
        {"kinds": {"mergeable": {"y": ["same"]}}},
        {"kinds": {"mergeable": {"y": ["doubled", "a"]}}},
    ],
)
def test_a_survey_whose_sources_are_not_there_is_refused(changed: dict[str, Any]) -> None:
    reported = state_of(ranges=False).plan.to_json()
    assert ObservationPlan.from_json(reported).to_json() == reported
    with pytest.raises((KeyError, TypeError, ValueError)):
        ObservationPlan.from_json({**reported, **changed})
    with pytest.raises(QdqError, match="calibration state"):
        state_from_bytes(forged(meta={"survey": {**reported, **changed}}))
