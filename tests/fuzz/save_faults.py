# SPDX-License-Identifier: Apache-2.0
"""Each verb that writes, with errors and a kill at each of its calls to the file system: all is written, or none.

A call fails with each errno of its kind; of a command with more than 100 calls, each with one of them in turn.
"""

from __future__ import annotations

import atexit
import errno
import functools
import itertools
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.fork_server import HARNESS, Ended, FuzzRun, FuzzTask, Limits, run_all
from tests.fuzz.fuzz_commands import COMMANDS, Command
from tests.fuzz.fuzz_report import Report
from tests.fuzz.fuzz_seeds import Family
from tests.fuzz.mutants import lay_out, write_job
from tests.fuzz.save_calls import ERRORS, Calls
from tests.fuzz.verdict import STRAY, Fault, code_faults, message_faults, snapshot

_OLD = b"what was here before\n"
_OLD_FACTS = b'{"tool": "qdqtool"}\n'  # beside a cache, anything else is refused as a file of the user's
_CLEANING = ("os.remove", "os.rmdir")  # where this fails, a temporary file cannot but stay
_MANY = 100  # calls


@dataclass(frozen=True)
class SavedCommand:
    """A command that writes, what it writes when nothing is in its way, and the calls that it makes for it."""

    command: Command
    family: Family
    outputs: Mapping[str, str]
    calls: Sequence[str]

    def lay(self, folder: Path, old: bool) -> list[str]:
        """Write the inputs, and with `old` something under the name of every output."""
        words = lay_out(self.command, self.family, folder / "run")
        write_job(folder, words, "")
        for name in self.outputs if old else ():
            (folder / "run" / name).parent.mkdir(exist_ok=True)
            (folder / "run" / name).write_bytes(_old(name, self.outputs))
        return words

    def task(self, at: int, error: int | None, old: bool) -> FuzzTask:
        """The command with this error at its call number `at`, or with a kill there."""

        def prepare(folder: Path) -> FuzzRun:
            calls = Calls(folder / "run", "error", at, error) if error else Calls(folder / "run", "kill", at)
            return FuzzRun(self.lay(folder, old), calls.arm)

        way = errno.errorcode[error] if error else "kill"
        return FuzzTask(f"{self.command.name}:{way}-{at}-{self.calls[at]}{'-over' if old else ''}", prepare)


def save_faults(
    families: Sequence[Family],
    place: Path,
    limits: Limits,
    only: str | None,
    report: Report,
    seconds: float = math.inf,
) -> Report:
    """Attack every command that writes files, on the first family that it runs on.

    After an interrupt, and once `seconds` are over, what was found so far is the report; stderr says what is left out.
    """
    end = time.monotonic() + seconds
    left = [command for command in COMMANDS if command.saves and command.name.startswith(only or "")]
    why = f"{seconds:g} s are over"
    try:
        while left and _attack(left[0], families, place, limits, report, end):
            del left[0]
    except KeyboardInterrupt:
        why = "interrupted"
    if left:
        names = ", ".join(command.name for command in left)
        sys.stderr.write(f"\n{why}; what was found so far:\nnot attacked to the end: {names}\n")
    return report


def _attack(
    command: Command, families: Sequence[Family], place: Path, limits: Limits, report: Report, end: float
) -> bool:
    """Attack one command; False where time was over before its end."""
    if time.monotonic() > end:
        return False
    subject = _subject(command, families, place, limits)
    if subject is None:
        report.add(*_unfit(command, place))
        return True
    for ended, faults in _attacked(subject, place, limits):
        report.add(ended, faults)
        if time.monotonic() > end:
            return False
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{command.name}: {report.runs} runs, {report.faulty} faulty ")
    return True


def _subject(command: Command, families: Sequence[Family], place: Path, limits: Limits) -> SavedCommand | None:
    """Run the command undisturbed on one family after the other, until it writes all; None where none does."""
    for family in families:
        if set(command.roles) <= set(family.files):
            bare = SavedCommand(command, family, {}, ())
            (found,) = (_seen(ended) for ended in run_all([_counting(bare)], place, limits))
            if found and set(command.saves) <= set(found[0]):
                return SavedCommand(command, family, *found)
    return None


def _unfit(command: Command, place: Path) -> tuple[Ended, list[Fault]]:
    """A fault of this program: no seed is fit for the command."""
    (place / "unfit").mkdir(exist_ok=True)
    what = f"{command.name} writes {', '.join(command.saves)} on none of the seeds"
    ended = Ended(
        FuzzTask(f"{command.name}:none", lambda folder: FuzzRun([])), place / "unfit", HARNESS, False, 0.0, 0.0
    )
    return ended, [Fault("harness", what)]


def _counting(subject: SavedCommand) -> FuzzTask:
    def prepare(folder: Path) -> FuzzRun:
        calls = Calls(folder / "run")
        atexit.register(lambda: (folder / "calls.json").write_text(json.dumps(calls.names)))
        return FuzzRun(subject.lay(folder, old=False), calls.arm)

    return FuzzTask(subject.command.name, prepare)


def _seen(ended: Ended) -> tuple[dict[str, str], list[str]] | None:
    if ended.code != 0:
        return None
    before = json.loads(ended.text("job.json"))["inputs"]
    after = snapshot(ended.folder / "run")
    return {name: digest for name, digest in after.items() if name not in before}, json.loads(ended.text("calls.json"))


def _attacked(subject: SavedCommand, place: Path, limits: Limits) -> Iterator[tuple[Ended, list[Fault]]]:
    chosen = _chosen(subject.calls)
    for at, old in itertools.product(chosen, (False, True)):
        over = old and not any("/" in name for name in subject.outputs)  # a folder of pictures must be new
        errors = ERRORS[subject.calls[at]]
        if len(chosen) > _MANY:
            errors = (errors[(2 * at + old) % len(errors)],)
        for ended in run_all([subject.task(at, error, over) for error in errors], place, limits):
            yield ended, _after_error(subject, ended, subject.calls[at], over)
        for ended in run_all([subject.task(at, None, over)], place, limits):
            faults = _after_kill(subject, ended, over)
            for again in run_all([FuzzTask(ended.task.id, functools.partial(_again, ended))], place / "again", limits):
                faults += _after_second(subject, again)
            yield ended, faults


def _chosen(calls: Sequence[str]) -> list[int]:
    """The calls that are attacked: all, but of writes in a row the first two and the last one."""
    chosen, at = [], 0
    for name, row in itertools.groupby(calls):
        numbers = range(at, at := at + len(list(row)))
        chosen += numbers if name != "write" else sorted({*numbers[:2], numbers[-1]})
    return chosen


def _old(name: str, outputs: Mapping[str, str]) -> bytes:
    return _OLD_FACTS if name.endswith(".json") and name.removesuffix(".json") in outputs else _OLD


def _again(killed: Ended, folder: Path) -> FuzzRun:
    """The same command in the folder as the kill has left it; a folder that the kill left filled needs --force."""
    shutil.copytree(killed.folder / "run", folder / "run", dirs_exist_ok=True)
    words = json.loads(killed.text("job.json"))["argv"]
    filled = any(any((folder / "run" / name).glob("*")) for name in ("pictures", "out"))
    return FuzzRun([*words, "--force"] if filled else words)


def _states(subject: SavedCommand, ended: Ended, old: bool) -> tuple[dict[str, str], list[Fault]]:
    """Output -> old, new or torn; and the inputs that are not as they were."""
    before, after = json.loads(ended.text("job.json"))["inputs"], snapshot(ended.folder / "run")
    faults = [Fault("changed", name) for name in before if after.get(name) != before[name]]
    states = {}
    for name, digest in subject.outputs.items():
        path = ended.folder / "run" / name
        is_old = path.is_file() and path.read_bytes() == _old(name, subject.outputs) if old else not path.exists()
        states[name] = "old" if is_old else "new" if after.get(name) == digest else "torn"
    return states, faults + [Fault("torn", name) for name, state in states.items() if state == "torn"]


def _strays(ended: Ended) -> list[str]:
    return [path.name for path in (ended.folder / "run").rglob("*") if STRAY in path.name]


def _after_error(subject: SavedCommand, ended: Ended, call: str, old: bool) -> list[Fault]:
    states, faults = _states(subject, ended, old)
    faults += [*code_faults(ended), *message_faults(ended)]
    kinds = set(states.values())
    if ended.code == 0 and kinds != {"new"}:
        faults.append(Fault("partial", f"exit code 0 after a failing {call}, but not all is written"))
    elif ended.code != 0 and kinds != {"old"}:
        new = ", ".join(name for name, state in states.items() if state == "new")
        faults.append(Fault("partial", f"exit code {ended.code} after a failing {call}, but wrote {new}"))
    if _strays(ended) and call not in _CLEANING:
        faults.append(Fault("left", f"temporary file after a failing {call}"))
    return faults


def _after_kill(subject: SavedCommand, ended: Ended, old: bool) -> list[Fault]:
    """Inputs and whole outputs; sets may be half renamed, since no system renames two files at once."""
    return _states(subject, ended, old)[1]


def _after_second(subject: SavedCommand, again: Ended) -> list[Fault]:
    """The run after a kill: it does its work and sweeps what the killed one has left."""
    after = snapshot(again.folder / "run")
    wrong = [name for name, digest in subject.outputs.items() if after.get(name) != digest]
    faults = [Fault("second", f"exit code {again.code} after a kill")] if again.code else []
    faults += [Fault("second", f"other bytes after a kill: {', '.join(wrong)}")] if wrong and not again.code else []
    return faults + ([Fault("stray", "temporary file of a killed run after the next run")] if _strays(again) else [])
