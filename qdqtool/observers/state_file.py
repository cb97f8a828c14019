# SPDX-License-Identifier: Apache-2.0
"""An observation as a file: a checkpoint, or one shard of many. Arrays and JSON in an .npz, no pickle.

The counts of a tensor end at the last bin that holds something and take the smallest integers that hold them all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from qdqtool.amax.histogram_kinds import KINDS, AnyHistogram
from qdqtool.data.arrays import FAULTS, open_npz
from qdqtool.decisions import Decisions, Provenance, decode_facts, encode_facts
from qdqtool.errors import QdqError
from qdqtool.files import replacing
from qdqtool.observers.observation_plan import ObservationPlan
from qdqtool.observers.observer_state import BatchSet, ObserverState
from qdqtool.observers.pre_batchnorm_range import AffineRange

SCHEMA = 1
_MOST = 64 << 30  # bytes that a state may unpack to: 100,000 tensors of both kinds
_MOST_SAMPLES = 1 << 53
_MOST_SHARDS = 1 << 20
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)
_HINT = "start the calibration again"
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class StateIdentity:
    """What a state was made from; two states go together only where model, data and provider are equal.

    Attributes:
        model: digest of the model.
        data: digest of the data's names, sizes and options; "" for data that only Python has.
        provider: what onnxruntime ran on, and its version.
        passes: how many of the fetched tensors each pass over the data takes.
    """

    model: str
    data: str
    provider: str
    passes: tuple[int, ...] = ()

    def differs(self, other: StateIdentity) -> str:
        """What differs, in words; "" where nothing does."""
        words = {"model": "model", "data": "data", "provider": "onnxruntime or provider"}
        return next((label for name, label in words.items() if getattr(self, name) != getattr(other, name)), "")


@dataclass(frozen=True)
class State:
    """A state file's content.

    Attributes:
        identity: what it was made from.
        plan: what it counts.
        observation: what it has counted.
        shard: (number from 0, of how many) where it is one shard of the batches; (0, 1) for all.
        complete: whether the walk over its batches came to its end.
        provenance: what the scale table is to tell of the data and the model.
    """

    identity: StateIdentity
    plan: ObservationPlan
    observation: ObserverState
    shard: tuple[int, int]
    complete: bool
    provenance: Provenance


def write_state(state: State, path: Path, *, compress: bool) -> None:
    """Write a state, whole or not at all.

    Raises:
        QdqError: the file cannot be written.
    """
    with replacing(path) as file:
        _save(state, file, compress)


def state_to_bytes(state: State) -> bytes:
    """A state as the bytes of its file, compressed."""
    file = io.BytesIO()
    _save(state, file, compress=True)
    return file.getvalue()


def _save(state: State, file: BinaryIO, compress: bool) -> None:
    identity = {**vars(state.identity), "passes": list(state.identity.passes)}
    meta = {
        "schema": SCHEMA,
        "identity": identity,
        "survey": state.plan.to_json(),
        "shard": list(state.shard),
        "complete": state.complete,
        "samples": state.observation.samples,
        "passed": state.observation.passed,
        "facts": encode_facts(Decisions(), state.provenance),
    }
    arrays = {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}
    arrays["done"] = np.frombuffer(state.observation.done.to_bytes(), np.uint8)
    for kind, found in state.observation.histograms.items():
        arrays.update({f"{kind}.{part}": array for part, array in _packed(list(found.values())).items()})
    if state.observation.ranges:
        arrays["ranges"] = np.concatenate([one.ends for one in state.observation.ranges.values()], axis=1)
    (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]


def _packed(histograms: Sequence[AnyHistogram]) -> Arrays:
    """The states of histograms of one kind, part by part over all of them; counts without their empty end."""
    if not histograms:
        return {}
    each = [one.to_arrays() for one in histograms]
    rows = [row for one in each for row in one["counts"].reshape(-1, one["counts"].shape[-1])]
    lengths = np.array([_filled(row) for row in rows], np.int32)
    counts = np.concatenate([row[:length] for row, length in zip(rows, lengths, strict=True)])
    packed = {part: np.stack([one[part] for one in each]) for part in each[0] if part != "counts"}
    largest = int(counts.max(initial=0))
    return {**packed, "lengths": lengths, "counts": counts.astype(np.min_scalar_type(largest))}


def _filled(row: npt.NDArray[np.int64]) -> int:
    found = np.flatnonzero(row)
    return int(found[-1]) + 1 if found.size else 0


def read_state(path: Path) -> State:
    """Read a state file.

    Raises:
        QdqError: it is missing, damaged, or no state of this version.
    """
    if not path.is_file():
        raise QdqError(path, "does not exist", "name the file that --checkpoint or --shard wrote")
    return _parsed({name: stored.whole() for name, stored in open_npz(path, _MOST).items()}, path)


def state_from_bytes(data: bytes) -> State:
    """The state that another process of ours has written with `state_to_bytes`.

    Raises:
        QdqError: damaged, or of another version.
    """
    where = "a worker's state"
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            arrays = dict(stored)
    except FAULTS as error:
        raise QdqError(where, f"cannot be read ({_reason(error)})", "do all machines have the same qdqtool?") from error
    return _parsed(arrays, where)


def _parsed(arrays: Arrays, where: object) -> State:
    try:
        if any(array.dtype.kind not in "biuf" for array in arrays.values()):
            raise TypeError("an array without real numbers")
        meta = json.loads(arrays["meta"].astype(np.uint8, casting="equiv").tobytes())
        if meta["schema"] != SCHEMA:
            raise QdqError(where, f"is a state of schema {meta['schema']}, this reads {SCHEMA}", _HINT)
        document = meta["identity"]
        words = {name: document[name] for name in ("model", "data", "provider")}
        if not all(isinstance(word, str) for word in words.values()):
            raise TypeError("identity")
        identity = StateIdentity(**words, passes=tuple(map(_count, document["passes"])))
        plan = ObservationPlan.from_json(meta["survey"])
        observation = ObserverState(plan)
        observation.samples, observation.passed = _count(meta["samples"]), _count(meta["passed"])
        observation.done = BatchSet(arrays["done"].tobytes())
        for kind, found in observation.histograms.items():
            observation.histograms[kind] = _unpacked(arrays, kind, list(found), where)
        _fill_ranges(list(observation.ranges.values()), arrays.get("ranges", np.zeros((2, 0), np.float32)))
        number, total = map(_count, meta["shard"])
        if not number < total <= _MOST_SHARDS:
            raise ValueError(f"shard {number} of {total}")
        _, provenance = decode_facts(meta["facts"])
        return State(identity, plan, observation, (number, total), bool(meta["complete"]), provenance)
    except _MALFORMED as error:
        raise QdqError(where, f"is not a calibration state ({_reason(error)})", _HINT) from error


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MOST_SAMPLES:
        raise ValueError(f"{value!r} is not a count")
    return value


def _unpacked(arrays: Arrays, kind: str, names: Sequence[str], where: object) -> dict[str, AnyHistogram]:
    if not names:
        return {}
    own = {part.partition(".")[2]: array for part, array in arrays.items() if part.startswith(f"{kind}.")}
    empty = KINDS[kind]().to_arrays()["counts"]
    lengths, flat = own.pop("lengths"), own.pop("counts").astype(np.int64)
    rows = empty.size // empty.shape[-1]
    if lengths.size != rows * len(names) or lengths.min() < 0 or lengths.max() > empty.shape[-1]:
        raise ValueError("lengths of counts")
    ends = np.cumsum(lengths, dtype=np.int64)
    if ends[-1] != flat.size or any(len(array) != len(names) for array in own.values()):
        raise ValueError("counts")
    found: dict[str, AnyHistogram] = {}
    for number, name in enumerate(names):
        counts = np.zeros((rows, empty.shape[-1]), np.int64)
        for row in range(rows):
            place = number * rows + row
            counts[row, : lengths[place]] = flat[ends[place] - lengths[place] : ends[place]]
        parts = {part: array[number] for part, array in own.items()}
        found[name] = KINDS[kind].from_arrays({**parts, "counts": counts.reshape(empty.shape)}, where)
    return found


def _fill_ranges(ranges: Sequence[AffineRange], packed: npt.NDArray[Any]) -> None:
    """Give each range its channels of `packed`, float32[2, channels of all]; the plan knows how many each has."""
    ends = np.cumsum([one.ends.shape[1] for one in ranges], dtype=np.int64)
    if packed.dtype != np.float32 or packed.shape != (2, ends[-1] if ranges else 0) or np.isnan(packed).any():
        raise ValueError("ranges")
    for one, end in zip(ranges, ends, strict=True):
        one.ends[...] = packed[:, end - one.ends.shape[1] : end]


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
