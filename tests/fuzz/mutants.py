# SPDX-License-Identifier: Apache-2.0
"""One mutant from its number: which command on which files, what is changed and how. Same number, same bytes."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.fork_server import FuzzRun, FuzzTask
from tests.fuzz.fuzz_commands import COMMANDS, Command
from tests.fuzz.fuzz_seeds import Family
from tests.fuzz.mutate_files import mutate_file
from tests.fuzz.mutate_options import mutate_words
from tests.fuzz.verdict import snapshot

_OPTIONS = 0.12  # part of the mutants whose command line is changed, not a file
_TWO_FILES = 0.1
_RENAMED = 0.03  # whose files have a name that is no UTF-8, or one that shells and Python read otherwise
_NAMES = ("\udcff", "\udcc3(", "a\nb", "%s", "{}", "=,:")


@dataclass(frozen=True)
class Source:
    """What mutants are drawn from."""

    families: Sequence[Family]
    seed: int

    def task(self, command: Command, index: int) -> FuzzTask:
        """One mutant; its name is enough to make it again from the same seeds."""
        return FuzzTask(f"{command.name}:{index}", lambda folder: self._prepare(command, index, folder))

    def family_of(self, command: Command, random_: random.Random) -> Family:
        """A family with all files that the command needs; the small ones of our own are drawn more often."""
        fit = [one for one in self.families if set(command.roles) <= set(one.files)]
        return random_.choice([*fit, *fit[:8], *fit[:8], fit[0], fit[0]])

    def _prepare(self, command: Command, index: int, folder: Path) -> FuzzRun:
        random_ = random.Random(f"{self.seed}:{command.name}:{index}")
        family = self.family_of(command, random_)
        words = lay_out(command, family, folder / "run")
        done = [family.name]
        if random_.random() < _OPTIONS or not command.roles:
            words, said = mutate_words(random_, words)
            done.append(said)
        else:
            roles = random_.sample(command.roles, min(len(command.roles), 2 if random_.random() < _TWO_FILES else 1))
            done += [_mutate(random_, folder / "run", role) for role in roles]
        if command.roles and random_.random() < _RENAMED:
            done.append(_rename(random_, folder / "run", random_.choice(command.roles), words))
        write_job(folder, words, "; ".join(done))
        return FuzzRun(words)


def tasks(source: Source, count: int, only: str | None, skip: int = 0) -> Iterator[FuzzTask]:
    """`count` mutants after the first `skip`: all commands by their weight, or those whose name begins with `only`."""
    chosen = [command for command in COMMANDS if only is None or command.name.startswith(only)]
    chosen = [c for c in chosen if any(set(c.roles) <= set(one.files) for one in source.families)]
    order = [command for command in chosen for _ in range(command.weight)]
    random.Random(source.seed).shuffle(order)
    seen = dict.fromkeys((command.name for command in chosen), 0)
    for number in range(skip + count):
        command = order[number % len(order)]
        if number >= skip:
            yield source.task(command, seen[command.name])
        seen[command.name] += 1


def lay_out(command: Command, family: Family, run: Path) -> list[str]:
    """Copy a command's files to the folder that it runs in; the words with their names."""
    places = {}
    for role in command.roles:
        path = family.files[role]
        target = run / f"{role}{path.suffix}"
        _copy(path, target)
        for beside in _beside(path, role):
            _copy(beside, run / (beside.name if beside.suffix == ".bin" else f"{target.name}.json"))
        places[role] = target.name
    return [word.format(**places) for word in command.words.split()]


def write_job(folder: Path, words: Sequence[str], done: str) -> None:
    """Note beside the run what is run and what its files were."""
    job = {"argv": list(words), "done": done, "inputs": snapshot(folder / "run")}
    (folder / "job.json").write_text(json.dumps(job))


def digest(families: Sequence[Family]) -> str:
    """Short name of all seeds together: mutants are the same only where it is."""
    whole = hashlib.sha256()
    for family in families:
        for role, path in sorted(family.files.items()):
            for one in [path, *_beside(path, role)]:
                files = sorted(p for p in one.rglob("*") if p.is_file()) if one.is_dir() else [one]
                for file in files:
                    whole.update(f"{family.name} {role} {file.relative_to(path.parent)} ".encode())
                    whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:12]


def _beside(path: Path, role: str) -> list[Path]:
    """The files that belong to a role's file: its sidecar, and weights of its own."""
    return [p for p in (path.with_name(f"{path.name}.json"), path.with_name(f"{role}.bin")) if p.exists()]


def _copy(path: Path, target: Path) -> None:
    """Copy content alone: the shared folder is read-only."""
    if path.is_dir():
        target.mkdir()
        for one in path.iterdir():
            _copy(one, target / one.name)
    else:
        target.write_bytes(path.read_bytes())


def _rename(random_: random.Random, run: Path, role: str, words: list[str]) -> str:
    """Give a role's file or folder another name, on the command line, too."""
    mark = random_.choice(_NAMES)
    for path in sorted(run.iterdir()):
        if path.stem == role:
            changed = path.rename(path.with_name(f"{role}{mark}{path.suffix}"))
            words[:] = [changed.name if word == path.name else word for word in words]
    return f"{role} renamed {mark!a}"


def _mutate(random_: random.Random, run: Path, role: str) -> str:
    """Change a role's file, one file of its folder, or what lies beside it."""
    found = sorted(
        path for path in run.rglob("*") if path.is_file() and path.relative_to(run).parts[0].split(".")[0] == role
    )
    path = random_.choice(found[:1] * 3 + found)
    content, said = mutate_file(random_, path.suffix, path.read_bytes())
    path.write_bytes(content)
    return f"{path.relative_to(run)}: {said}"
