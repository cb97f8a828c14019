# SPDX-License-Identifier: Apache-2.0
"""A training run as a file, to be taken up again to the bit: arrays and JSON in an .npz, no pickle. Not when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.data.arrays import open_npz
from qdqtool.errors import QdqError
from qdqtool.files import replacing

SCHEMA = 1
_MOST = 64 << 30  # bytes that a checkpoint may unpack to
_HINT = "remove the file and start the training again"
_WORDS = {"model": "model", "data": "data", "teacher": "teacher", "options": "set of options"}


@dataclass(frozen=True)
class TrainingIdentity:
    """What a run is of; a checkpoint is continued only where all of it is equal.

    Attributes:
        model: digest of the Q/DQ model.
        data: digest of the data's names, sizes and options; "" for data that only Python has.
        teacher: digest of the teacher's model, "" where it is made of the model.
        options: all that decides what is computed, as text.
    """

    model: str
    data: str
    teacher: str
    options: str

    def differs(self, other: TrainingIdentity) -> str:
        """What differs, in words; "" where nothing does."""
        return next((words for name, words in _WORDS.items() if getattr(self, name) != getattr(other, name)), "")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds.

    Attributes:
        identity: what the run is of.
        facts: counters and figures, as JSON has them.
        arrays: weights, what the optimizer remembers, the best weights.
    """

    identity: TrainingIdentity
    facts: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[np.float32]]


def newest_state(folder: Path) -> Path | None:
    """The checkpoint of the last step in a folder of `keep_state`; None where there is none."""
    return max(folder.glob("step-*.npz"), default=None)


def keep_state(saved: Saved, folder: Path, step: int, keep: int) -> None:
    """Write a checkpoint into a folder, and remove all but the newest; one is there at any time.

    Raises:
        QdqError: the folder or the file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QdqError(folder, f"cannot be made ({error.strerror})", "give --checkpoint another folder") from error
    write_state(saved, folder / f"step-{step:010}.npz")
    for old in sorted(folder.glob("step-*.npz"))[:-keep]:
        old.unlink(missing_ok=True)


def write_state(saved: Saved, path: Path) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        QdqError: the file cannot be written.
    """
    meta = {"schema": SCHEMA, "identity": asdict(saved.identity), "facts": dict(saved.facts)}
    arrays: dict[str, npt.NDArray[Any]] = {f"array.{name}": array for name, array in saved.arrays.items()}
    with replacing(path) as file:
        np.savez(file, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)  # type: ignore[arg-type]


def read_state(path: Path) -> Saved:
    """Read a checkpoint.

    Raises:
        QdqError: it is missing, damaged, or none of this version.
    """
    if not path.is_file():
        raise QdqError(path, "does not exist", "name the file that --checkpoint wrote")
    arrays = {name: stored.whole() for name, stored in open_npz(path, _MOST).items()}
    try:
        meta = json.loads(arrays.pop("meta").astype(np.uint8, casting="equiv").tobytes())
        if meta["schema"] != SCHEMA:
            raise QdqError(path, f"is a checkpoint of schema {meta['schema']}, this reads {SCHEMA}", _HINT)
        own = {name.removeprefix("array."): array for name, array in arrays.items()}
        if any(array.dtype != np.float32 for array in own.values()):
            raise ValueError("an array is not float32")
        return Saved(TrainingIdentity(**meta["identity"]), dict(meta["facts"]), own)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise QdqError(path, f"is not a checkpoint of a training ({type(error).__name__}: {error})", _HINT) from error


def open_state(path: Path, identity: TrainingIdentity, *, resume: bool) -> Saved | None:
    """The checkpoint to go on from, None where there is none yet.

    Raises:
        QdqError: one is there and `resume` is False; it is of another model, other data or options; it is damaged.
    """
    if not path.exists():
        return None
    if not resume:
        raise QdqError(path, "holds an unfinished training", "continue it with --resume, or remove the file")
    found = read_state(path)
    reason = found.identity.differs(identity)
    if reason:
        raise QdqError(path, f"was made with a different {reason}", "give the same again, or remove the file")
    return found
