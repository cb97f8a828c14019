# SPDX-License-Identifier: Apache-2.0
"""What is wrong with how a run ended: its exit code, its messages, and the files before and after it."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from qdqtool.cli.color import mode_of
from qdqtool.errors import MAX_LINE
from tests.fuzz.fork_server import HARNESS, Ended

GOOD_CODES = (0, 1, 2, 3)
LONGEST_LINE = MAX_LINE + 200
MOST_MB = 1500  # resident; the seeds need 100
STRAY = ".qdqtool-"
KEPT_ON_ERROR = (".ckpt", ".jsonl")  # a checkpoint and a log are there for runs that fail
_NOT_OURS = (".ses",)  # onnxruntime writes it to TMPDIR when it is imported
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_FRAME = re.compile(r'File "[^"]*?(qdqtool/[^"]+)", line (\d+),? in (\S+)')
_ERROR = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Fault|Fail|Exit|Iteration|Bomb\w*|\w*))(?::|$)"
)


@dataclass(frozen=True, order=True)
class Fault:
    """One fault.

    Attributes:
        kind: bug, hang, signal, code, large, left, torn, changed or message; of saving also partial, second and stray;
            of the heavy inputs slow; harness where this program failed.
        what: what shows it, the same for faults that are alike.
    """

    kind: str
    what: str


def snapshot(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every regular file below a folder; other things by their kind."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() or path.is_symlink():
            regular = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(folder))] = (
                hashlib.sha256(path.read_bytes()).hexdigest() if regular else "not a regular file"
            )
    return found


def faults_of(ended: Ended) -> list[Fault]:
    """All faults of a run, none where it behaved."""
    if ended.code == HARNESS or not (ended.folder / "job.json").exists():
        return [Fault("harness", ended.text("err.txt").strip().rpartition("\n")[2])]
    large = [Fault("large", f"more than {MOST_MB} MB")] if ended.peak_mb > MOST_MB else []
    return [*code_faults(ended), *large, *_of_files(ended), *message_faults(ended)]


def code_faults(ended: Ended) -> list[Fault]:
    """Whether it ended with an exit code that means something, and in time."""
    code, text = ended.code, ended.text("err.txt")
    if ended.late or code == -signal.SIGXCPU or (code == -signal.SIGKILL and ended.cpu_seconds > 1):
        return [Fault("hang", f"{'wall' if ended.late else 'CPU'} time, {_stack_place(text)}")]
    if code < 0:
        return [Fault("signal", f"{signal.Signals(-code).name}, {_stack_place(text)}")]
    if code == 70:
        return [Fault("bug", _raised(text))]
    return [] if code in GOOD_CODES else [Fault("code", f"exit code {code}")]


def _raised(text: str) -> str:
    """The last traceback's exception and its innermost frame in the project."""
    last = text.rpartition("Traceback (most recent call last):")[2]
    frames = _FRAME.findall(last)
    names = [match[1] for line in last.splitlines() if not line.startswith(" ") and (match := _ERROR.match(line))]
    name = next((name for name in names if name != "qdqtool"), "?")
    file, line, function = frames[-1] if frames else ("?", "0", "?")
    return f"{name} in {file}:{line} {function}"


def _stack_place(text: str) -> str:
    """Where faulthandler saw the main thread: its innermost frame in the project."""
    last = text.rpartition("(most recent call first):")[2]
    frames = _FRAME.findall(last)
    return "in {}:{} {}".format(*frames[0]) if frames else "outside Python"


def _of_files(ended: Ended) -> list[Fault]:
    before = json.loads((ended.folder / "job.json").read_text())["inputs"]
    after = snapshot(ended.folder / "run")
    changed = [name for name in before if after.get(name) != before[name] and not name.endswith(KEPT_ON_ERROR)]
    found = [Fault("changed", _kind_of(name)) for name in changed]
    new = [name for name in after if name not in before]
    if ended.code < 0:  # a run that was killed may leave its temporary files
        return found
    found += [Fault("left", "temporary file") for name in new if STRAY in name]
    strange = [path.name for path in (ended.folder / "tmp").iterdir() if path.name not in _NOT_OURS]
    found += [Fault("left", f"in TMPDIR: {_kind_of(name)}") for name in strange]
    if ended.code not in (0, 1):
        left = [name for name in new if STRAY not in name and not name.endswith(KEPT_ON_ERROR)]
        found += [Fault("left", f"exit code {ended.code}, but wrote {_kind_of(name)}") for name in left]
    found += [Fault("torn", _kind_of(name)) for name in new if not readable(ended.folder / "run" / name)]
    return sorted(set(found))


def _kind_of(name: str) -> str:
    """A file's ending: names themselves are random."""
    return "*" + "".join(Path(name).suffixes)[-24:]


def readable(path: Path) -> bool:
    """Whether a file that was written is whole, as far as its format says; other names than ours say no format."""
    try:
        if not (path.name.startswith("out.") or "pictures" in path.parts):  # a changed -o: a cache may be "x.onnx"
            return path.stat().st_size > 0
        if path.suffix == ".onnx":
            onnx.ModelProto.FromString(path.read_bytes())
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
        return path.stat().st_size > 0
    except Exception:  # whatever a reader raises, the file is not whole
        return False


def message_faults(ended: Ended) -> list[Fault]:
    """What a terminal should not get, or a user cannot read."""
    if ended.code not in GOOD_CODES:
        return []
    out, err = ended.text("out.txt"), ended.text("err.txt")
    if _asks_for_color(ended):
        out, err = (_COLOR.sub("", text) for text in (out, err))
    checks: Mapping[str, bool] = {
        "control characters on stdout": bool(_CONTROL.search(out)),
        "control characters on stderr": bool(_CONTROL.search(err)),
        f"a line of more than {LONGEST_LINE} characters on stderr": max(map(len, err.split("\n"))) > LONGEST_LINE,
        "a warning of Python's on stderr": bool(re.search(r"^\S+\.py:\d+: \w*Warning: ", err, re.M)),
        "no single error line": ended.code in (2, 3) and err.count("qdqtool: error: ") != 1,
    }
    return [Fault("message", what) for what, wrong in checks.items() if wrong]


def _asks_for_color(ended: Ended) -> bool:
    """Whether the command line has `--color always`, so that our own escape sequences are no fault."""
    words = json.loads(ended.text("job.json")).get("argv", [])
    return mode_of(words) == "always"
