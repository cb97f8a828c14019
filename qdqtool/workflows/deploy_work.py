# SPDX-License-Identifier: Apache-2.0
"""The hidden folder beside the output of `deploy` or `improve`: what is done there is not done again after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qdqtool.deploying.choice import DeployCost
from qdqtool.errors import QdqError
from qdqtool.evaluation.metrics import ResampledFigure
from qdqtool.files import replacing
from qdqtool.recipe.content_hash import ContentHashes
from qdqtool.recipe.run_steps import SharedSteps
from qdqtool.recipe.step_store import key_of, take_lock

_ENDINGS = {"deploy": ".deploying", "improve": ".improving"}
_LOCK, _COMMAND, _HASHES, _GIVEN, _MEASURED = "lock", "command", "hashes.json", "given", "measured"
_CONTINUE = "run the same command to continue"


@dataclass(frozen=True)
class Measurement:
    """What was measured of a candidate.

    Attributes:
        figure: of the task, with its resamples.
        change: how far its answers lie from FP32's; None where the figure says that.
        cost: where it runs.
        notes: what the rounding assumes.
        more: further figures, by what they are of.
    """

    figure: ResampledFigure
    change: float | None
    cost: DeployCost
    notes: tuple[str, ...]
    more: Mapping[str, ResampledFigure] = field(default_factory=dict)


class DeployWork:
    """The work of one command.

    Attributes:
        path: the folder.
        begun: whether what it holds is this command's.
        shared: hashes of files and the steps that are done, for all candidates.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.begun = path, False
        self.shared = SharedSteps(ContentHashes(path / _HASHES))

    def begin(self, command: Mapping[str, Any]) -> None:
        """Drop what is there, unless the same command left it."""
        wanted, kept = key_of(command), ""
        with contextlib.suppress(OSError):
            kept = (self.path / _COMMAND).read_text(encoding="ascii")
        self.begun = True
        if kept == wanted:
            return
        (self.path / _COMMAND).unlink(missing_ok=True)
        for path in self.path.iterdir():
            if path.name not in (_LOCK, _HASHES, _GIVEN):
                _remove(path)
        with replacing(self.path / _COMMAND) as file:
            file.write(wanted.encode("ascii"))

    def folder(self, name: str) -> Path:
        """A folder of the work, which may hold what an earlier call made."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        return path

    def emptied(self, name: str) -> Path:
        """The same without what it holds."""
        _remove(self.path / name)
        return self.folder(name)

    def given(self) -> Path:
        """The empty folder for files of what was given in memory."""
        return self.emptied(_GIVEN)

    def measured(self, name: str) -> Measurement | None:
        """What an earlier call measured of a candidate; None where it did not."""
        try:
            kept = json.loads((self.folder(_MEASURED) / f"{name}.json").read_text(encoding="ascii"))
            more = {key: _figure_of(one) for key, one in kept["more"].items()}
            cost = DeployCost(**kept["cost"])
            return Measurement(_figure_of(kept["figure"]), kept["change"], cost, tuple(kept["notes"]), more)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, name: str, found: Measurement) -> None:
        """Record what was measured of a candidate; floats are written so that they are read back to the bit."""
        facts = {
            "figure": _facts_of(found.figure),
            "change": found.change,
            "cost": asdict(found.cost),
            "notes": found.notes,
            "more": {key: _facts_of(one) for key, one in found.more.items()},
        }
        with replacing(self.folder(_MEASURED) / f"{name}.json") as file:
            file.write(json.dumps(facts).encode("ascii"))

    @property
    def holds_some(self) -> bool:
        """Whether it holds the work of this command or of another one."""
        return (self.path / _COMMAND).is_file()


def _facts_of(figure: ResampledFigure) -> dict[str, Any]:
    return {"metric": figure.metric, "value": figure.value, "drawn": figure.drawn.tolist()}


def _figure_of(facts: Mapping[str, Any]) -> ResampledFigure:
    return ResampledFigure(facts["metric"], facts["value"], np.array(facts["drawn"], np.float64))


@contextlib.contextmanager
def unfinished(output: Path, staging: Path, verb: Literal["deploy", "improve"] = "deploy") -> Iterator[DeployWork]:
    """The work for an output, for one command at a time.

    It is kept where the block is interrupted or the process is killed, and removed where the block ends or fails.

    Args:
        output: the folder or file that comes of it.
        staging: a folder on the same file system that is removed with all that is in it; the finished work goes there.
        verb: whose work it is.

    Raises:
        QdqError: another command holds it, or it cannot be made.
        KeyboardInterrupt: interrupted; it says how to go on.
    """
    whole = output.absolute()
    place = whole.with_name(f".{whole.name}{_ENDINGS[verb]}")
    handle = _hold(place, output, verb)
    try:
        work = DeployWork(place)
        try:
            yield work
        except KeyboardInterrupt as error:
            if work.begun:
                raise KeyboardInterrupt(_CONTINUE) from error
            if not work.holds_some:
                _remove(place)
            raise
        except Exception:
            if work.begun or not work.holds_some:  # else it is that of another command
                _remove(place)
            raise
    finally:
        os.close(handle)
    try:
        place.rename(staging / "work")
    except OSError:  # the output may be in its place already
        _remove(place)


def _hold(place: Path, output: Path, verb: str) -> int:
    """Make and lock the folder; once more where the command that held it ended meanwhile."""
    try:
        place.mkdir(exist_ok=True)
        if not (place / _LOCK).exists() and any(place.iterdir()):
            raise QdqError(place, f"is where {verb} works, and holds other files", "move it away")
        handle = os.open(place / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise QdqError(output, f"cannot be written ({error.strerror})", "give another with -o") from error
    try:
        take_lock(output, handle)
        if (place / _LOCK).exists() and os.path.samestat(os.fstat(handle), (place / _LOCK).stat()):
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return _hold(place, output, verb)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
