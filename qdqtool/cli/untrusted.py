# SPDX-License-Identifier: Apache-2.0
"""`--untrusted`: the whole command runs in a child process with limits of memory, time and file size.

A crash of native code, an endless loop or a huge allocation ends the child; this process prints one line and removes
what the child left unfinished.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qdqtool.errors import QdqError, printable
from qdqtool.staging import sweep

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

FLAG, VARIABLE = "--untrusted", "QDQTOOL_UNTRUSTED"

_MEMORY, _MEMORY_PER_BYTE = 4 << 30, 16  # the rest of a command's memory is in proportion to its inputs
_MEMORY_SHARE = 0.75  # of what the machine has
_FILE, _FILE_PER_BYTE = 1 << 30, 4
_SECONDS, _BYTES_PER_SECOND = 300, 100_000
_SEARCHING = frozenset(["deploy", "run", "improve", "condition", "finetune", "sensitivity", "prune"])
_SEARCHING_FACTOR = 20  # they run the model for hours
_WALL_FACTOR = 10  # a process that waits uses no CPU time
_TAIL = 1 << 16  # bytes of the child's native messages that are shown
_NOTE_TAIL = 300
# How a command ends. Windows ends a process that crashes with a larger code, and the loader of libraries with 127.
_CODES = frozenset([0, 1, 2, 3, 70, 130, 141])

# The child looks for modules where this process does, never in the working folder, which may be the model's.
_CHILD = """import sys
sys.path[:] = [place for place in sys.path if place]
import json
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
from qdqtool.cli.untrusted import begin_child
begin_child(given["limits"])
sys.argv[:2] = ["qdqtool"]
from qdqtool.__main__ import run
run(limited=True)"""


@dataclass(frozen=True)
class Limits:
    """What a command may take: bytes of memory, seconds of CPU time per process, bytes of one written file."""

    memory: int
    seconds: int
    file: int


def is_untrusted(words: Sequence[str]) -> bool:
    """Whether a command, or else the environment, asks for limits."""
    return FLAG in words or os.environ.get(VARIABLE, "") not in ("", "0")


def limits_of(words: Sequence[str]) -> Limits:
    """Limits of a command, from the bytes of the files and folders that it names; those of the shell where lower."""
    size = sum(map(_bytes_at, _paths(words)))
    seconds = _SECONDS + size // _BYTES_PER_SECOND
    memory = _MEMORY + _MEMORY_PER_BYTE * size
    with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
        memory = min(memory, int(_MEMORY_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    seconds *= _SEARCHING_FACTOR if words[0] in _SEARCHING else 1
    wished = (memory, seconds, _FILE + _FILE_PER_BYTE * size)
    if resource is None:
        return Limits(*wished)
    hard = (resource.getrlimit(kind)[1] for kind in _kinds())
    # One less than the hard limit, at which the system ends a process by another signal.
    return Limits(
        *(w if most == resource.RLIM_INFINITY else min(w, most - 1) for w, most in zip(wished, hard, strict=True))
    )


def _kinds() -> tuple[int, int, int]:
    """What the fields of `Limits` are called by the system. Address space that is not used counts for none."""
    return resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE


def missing_limits() -> str:
    """The limits that this system lacks, in words; "" where it has all."""
    if resource is None:
        return "limits of memory, CPU time and file size"
    return "" if sys.platform.startswith("linux") else "limits of memory"


def run_limited(words: Sequence[str]) -> int:
    """Run a command in a child; its exit code.

    Raises:
        QdqError: the child was ended by a signal, or took too long.
    """
    limits = limits_of(words)
    with tempfile.TemporaryDirectory(prefix="qdqtool-untrusted-", ignore_cleanup_errors=True) as folder:
        noise = Path(folder) / "stderr"
        noise.touch()
        given = {"path": sys.path, "limits": {**asdict(limits), "noise": str(noise)}}
        variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
        command = [sys.executable, "-c", _CHILD, json.dumps(given), *(word for word in words if word != FLAG)]
        # A session of its own: a signal reaches the child once, and its own children can be ended with it.
        child = subprocess.Popen(command, env={**variables, "TMPDIR": folder}, start_new_session=True)
        try:
            code = _wait(child, limits.seconds * _WALL_FACTOR)
        finally:
            if child.returncode not in _CODES:
                _end_group(child)
                for place in {place for path in [Path(), *_paths(words)] for place in (path, path.parent)}:
                    sweep(place)
        said = noise.read_bytes()[-_TAIL:].decode("utf-8", errors="replace")
    if code is None:
        raise QdqError(words[0], f"took more than {limits.seconds * _WALL_FACTOR} s", "do not use the file")
    if code not in _CODES:
        raise _fault_of(code, words[0], limits, said)
    sys.stderr.write("".join(f"{printable(line)}\n" for line in said.splitlines()))
    return code


def begin_child(given: dict[str, int | str]) -> None:
    """Set the limits of this process; what native code writes to stderr goes to the file `noise`."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    handle = os.open(str(given["noise"]), os.O_WRONLY | os.O_APPEND)
    if sys.stderr is not None:
        ours = io.FileIO(os.dup(2), "w")
        sys.stderr = io.TextIOWrapper(ours, sys.stderr.encoding, "backslashreplace", write_through=True)
    os.dup2(handle, 2)
    os.close(handle)
    if resource is None:
        return
    for kind, name in zip(_kinds(), ("memory", "seconds", "file"), strict=True):
        resource.setrlimit(kind, (int(given[name]), int(given[name]) + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _paths(words: Sequence[str]) -> list[Path]:
    """Files and folders that a command may name: `FILE`, `--option=FILE`, `input:FILE`."""
    found = [part for word in words[1:] for part in (word, word.partition("=")[2], word.partition(":")[2])]
    return [Path(part) for part in dict.fromkeys(found) if part and not part.startswith("-")]


def _bytes_at(path: Path) -> int:
    """Bytes of a folder, or of a file and those beside it whose names begin with its own, as of external data."""
    try:
        if path.is_dir():
            files: Iterator[Path] = (Path(at) / name for at, _, names in os.walk(path) for name in names)
        elif path.is_file():
            files = (Path(one.path) for one in os.scandir(path.parent) if one.name.startswith(path.name))
        else:
            return 0
        return sum(one.stat().st_size for one in files if one.is_file())
    except (OSError, ValueError):  # too long for a name, or gone meanwhile
        return 0


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The child's exit code; None where it takes too long. An interrupt is handed on, and the child cleans up."""
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:
        child.terminate()
        return child.wait()


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End the child and the processes that it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _fault_of(code: int, verb: str, limits: Limits, said: str) -> QdqError:
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code & 0xFFFFFFFF:#x}"
    if name == "SIGXCPU":
        return QdqError(verb, f"took more than {limits.seconds} s of CPU time")
    lines = [line for line in said.splitlines() if line.strip()]
    last = f" ({printable(lines[-1].strip(), _NOTE_TAIL)})" if lines else ""
    if name == "SIGKILL":
        return QdqError(verb, f"was ended by the system{last}", "it does that when memory runs out")
    return QdqError(verb, f"a library crashed with {name}{last}", "the file breaks it; do not use it")
