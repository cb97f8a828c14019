# SPDX-License-Identifier: Apache-2.0
"""Every verb where its surroundings are not as usual: streams, locale, time zone, folders, limits, other processes.

    python -m tests.fuzz.surroundings [--all] [--only insert] [--jobs 2]

Each command runs twice as usual; what both runs share (exit code, stdout, bytes of files) is what it must do in all
surroundings that cost it nothing. Where it cannot write, it must end with exit code 2 and one line, and leave nothing.
Printed: a row for each of the surroundings. Exit code 1 where a run is a fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.fuzz_commands import COMMANDS, Command
from tests.fuzz.fuzz_seeds import Family, families
from tests.fuzz.mutants import lay_out
from tests.fuzz.verdict import STRAY, snapshot

PROJECT = Path(__file__).resolve().parents[2]
_SECONDS = 300
_AT_ONCE = 3


@dataclass(frozen=True)
class Surroundings:
    """What a command runs in.

    Attributes:
        shell: the line that runs it, with the command for {}.
        variables: of the environment; None is none.
        python: options of the interpreter.
        reads: whether stdout, stderr arrive as usual.
        fails: whether it must fail: "never", "on files" where it writes some, "on stdout" where it prints.
        gone: exit codes beside the usual one, where a reader is gone.
    """

    name: str
    shell: str = "{}"
    variables: Mapping[str, str | None] = field(default_factory=dict)
    python: str = ""
    reads: tuple[bool, bool] = (True, True)
    fails: str = "never"
    gone: tuple[int, ...] = ()


SURROUNDINGS = (
    Surroundings("stdin closed", "{} <&-"),
    Surroundings("stdout closed", "{} >&-", reads=(False, True)),
    Surroundings("stderr closed", "{} 2>&-", reads=(True, False)),
    Surroundings("all streams closed", "{} <&- >&- 2>&-", reads=(False, False)),
    Surroundings("stdout on a full disk", "{} > /dev/full", reads=(False, True), fails="on stdout"),
    Surroundings("stderr on a full disk", "{} 2> /dev/full", reads=(True, False)),
    Surroundings("reader of stdout gone", "set -o pipefail; {} | true", reads=(False, True), gone=(141,)),
    Surroundings("locale C", variables={"LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0"}),
    Surroundings("locale POSIX, ASCII streams", variables={"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}),
    Surroundings("Latin-1 streams", variables={"PYTHONIOENCODING": "latin-1"}),
    Surroundings("UTF-16 streams", variables={"PYTHONIOENCODING": "utf-16"}, reads=(False, False)),
    Surroundings("time zone far in the east", variables={"TZ": "Pacific/Kiritimati"}),
    Surroundings("time zone that is none", variables={"TZ": "no/such:zone"}),
    Surroundings("no home", variables={"HOME": None, "XDG_CACHE_HOME": None}),
    Surroundings("home that takes no files", variables={"HOME": "/proc", "XDG_CACHE_HOME": "/proc"}),
    Surroundings("TMPDIR that takes no files", variables={"TMPDIR": "/proc"}),
    Surroundings("no environment but PATH", "env -i PATH=/usr/bin:/bin PYTHONPATH=$PYTHONPATH {}"),
    Surroundings("another order of sets", variables={"PYTHONHASHSEED": "7"}),
    Surroundings("without assertions", python="-O"),
    Surroundings("warnings are errors", python="-W error::ResourceWarning -W error::DeprecationWarning:qdqtool"),
    Surroundings("umask 077", "umask 077; {}"),
    Surroundings("no room for a byte", "ulimit -f 0; {}", fails="on files", gone=(1,)),  # doctor says so
    Surroundings("32 open files", "ulimit -n 32; {}"),
)


@dataclass(frozen=True)
class Done:
    """How a command ended: exit code, streams, and the files that it left, by their digest."""

    code: int
    out: str
    err: str
    files: Mapping[str, str]


@dataclass(frozen=True)
class Subject:
    """A command with its files, and what two usual runs of it have in common."""

    command: Command
    family: Family
    code: int
    out: str | None
    files: Mapping[str, str]

    @property
    def prints(self) -> bool:
        """Whether it says something on stdout."""
        return self.out != ""


def run(command: Command, family: Family, place: Path, around: Surroundings, *, at_once: int = 1) -> list[Done]:
    """Run a command in a folder of its own, `at_once` times beside itself."""
    folder = Path(tempfile.mkdtemp(dir=place))
    words = lay_out(command, family, folder)
    line = around.shell.replace("{}", f"{sys.executable} {around.python} -m qdqtool {shlex.join(words)}")
    changed = {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **around.variables}
    variables = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    before = snapshot(folder)
    started = [
        subprocess.Popen(
            ["bash", "-c", line], cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(at_once)
    ]
    said = [one.communicate(timeout=_SECONDS) for one in started]
    after = snapshot(folder)
    changed_inputs = {name: "changed" for name in before if after.get(name) != before[name]}
    files = {name: digest for name, digest in after.items() if name not in before} | changed_inputs
    shutil.rmtree(folder)
    return [
        Done(one.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), files)
        for one, (out, err) in zip(started, said, strict=True)
    ]


def subject_of(command: Command, made: Sequence[Family], place: Path) -> Subject | None:
    """The command on the first family that it does its work on; None where there is none."""
    usual = Surroundings("as usual")
    for family in made:
        if set(command.roles) <= set(family.files):
            (first,) = run(command, family, place, usual)
            if first.code in (0, 1) and set(command.saves) <= set(first.files):
                (second,) = run(command, family, place, usual)
                same = {name: digest for name, digest in first.files.items() if second.files.get(name) == digest}
                files = {name: same.get(name, "") for name in first.files}
                return Subject(command, family, first.code, first.out if first.out == second.out else None, files)
    return None


def other_files(subject: Subject, done: Done) -> list[str]:
    """Files that are missing or more than as usual, or whose bytes differ though two usual runs gave the same."""
    names = sorted({*subject.files, *done.files})
    return [name for name in names if name not in done.files or subject.files.get(name) not in ("", done.files[name])]


def faults(subject: Subject, around: Surroundings, done: Done) -> Iterator[str]:
    """What is wrong with a run."""
    must_fail = (around.fails == "on files" and subject.files) or (around.fails == "on stdout" and subject.prints)
    if "Traceback" in done.err or done.code in (70, -6, -11, 134, 139):
        lines = [line for line in done.err.splitlines() if re.match(r"\w*(Error|Exception|Warning)\b", line)]
        yield f"exit code {done.code}: {(lines or done.err.strip().splitlines())[-1:]}"
    elif must_fail:
        errors = [line for line in done.err.splitlines() if line.startswith("qdqtool: error: ")]
        if done.code != 2 or (around.reads[1] and len(errors) != 1):
            yield f"exit code {done.code} and {len(errors)} lines where it cannot write"
        if around.fails == "on files" and done.files:
            yield f"left {', '.join(done.files)}"
        return
    elif done.code != subject.code and done.code not in around.gone:
        yield f"exit code {done.code} in place of {subject.code}: {done.err.strip().splitlines()[-1:]}"
    if stray := [name for name in done.files if STRAY in name]:
        yield f"left {', '.join(stray)}"
    if done.code in around.gone:
        return
    if other := other_files(subject, done):
        yield f"other files: {', '.join(other)}"
    ascii_only = around.variables.get("PYTHONIOENCODING", "") in ("ascii", "latin-1") or "LC_ALL" in around.variables
    if around.reads[0] and subject.out is not None and not ascii_only and done.out != subject.out:
        yield "another text on stdout"


def together(subject: Subject, done: Sequence[Done]) -> Iterator[str]:
    """What is wrong with runs that had the same output files at the same time."""
    for one in done:
        if "Traceback" in one.err or one.code not in (subject.code, 2):
            yield f"exit code {one.code}: {one.err.strip().splitlines()[-1:]}"
    if not any(one.code == subject.code for one in done):
        yield "none did its work"
    if other := other_files(subject, done[0]):
        yield f"other files: {', '.join(other)}"


def main() -> int:
    """Run the commands in all surroundings; 1 where a run is a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="all commands of the mutation run, not one for each verb")
    parser.add_argument("--only", default="", help="commands whose name begins so")
    parser.add_argument("--around", default="", help="surroundings whose name begins so")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    chosen = [command for command in COMMANDS if command.name.startswith(args.only)]
    if not args.all:
        named: dict[tuple[str, ...], Command] = {}
        for command in chosen:
            words = command.words.split()
            named.setdefault(tuple(words[: 2 if words[0] in ("cache", "engine") else 1]), command)
        chosen = list(named.values())
    found: list[str] = []
    # No TemporaryDirectory: forked children run the functions that are called at exit, and it is one of them.
    place = Path(tempfile.mkdtemp(prefix="qdqtool-fuzz-"))
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    made = families(place / "seeds", shared if (shared / "corpus").is_dir() else None)
    with ThreadPoolExecutor(args.jobs) as pool:
        subjects = list(pool.map(lambda command: subject_of(command, made, place), chosen))
        unfit = [command.name for command, one in zip(chosen, subjects, strict=True) if one is None]
        fit = [one for one in subjects if one is not None]
        print(f"{len(fit)} commands" + (f"; not run: {', '.join(unfit)}" if unfit else ""), flush=True)
        print("| surroundings | runs | as usual | exit code 2, one line | ended with the reader | faults |")
        print("|---|---|---|---|---|---|")

        def row(title: str, ends: Sequence[tuple[Subject, Sequence[Done], list[str]]]) -> None:
            codes = [(one, done.code) for one, all_done, _ in ends for done in all_done]
            usual = sum(code == one.code for one, code in codes)
            refused = sum(code == 2 != one.code for one, code in codes)
            wrong = [f"{title}, {one.command.name}: {text}" for one, _, texts in ends for text in texts]
            print(
                f"| {title} | {len(codes)} | {usual} | {refused} | {len(codes) - usual - refused} | {len(wrong)} |",
                flush=True,
            )
            found.extend(wrong)

        for around in (one for one in SURROUNDINGS if one.name.startswith(args.around)):
            done = list(pool.map(lambda one, around=around: run(one.command, one.family, place, around), fit))
            row(
                around.name,
                [(one, ends, list(faults(one, around, ends[0]))) for one, ends in zip(fit, done, strict=True)],
            )
        beside = Surroundings("as usual")
        if not f"{_AT_ONCE} at once".startswith(args.around):
            fit = []
        done = list(pool.map(lambda one: run(one.command, one.family, place, beside, at_once=_AT_ONCE), fit))
        row(
            f"{_AT_ONCE} at once", [(one, ends, list(together(one, ends))) for one, ends in zip(fit, done, strict=True)]
        )
    shutil.rmtree(place)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
