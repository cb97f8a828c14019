# SPDX-License-Identifier: Apache-2.0
"""Imports packages in a process of their own and tells what became of each: a broken one can take only that with it.

Not what is to be thought of it (doctor.py).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

DRIVER = "libcuda"  # no module, but found out in the same process for the same reason
SECONDS = 60.0  # of one module: a slow disk or processor is no fault of the package

_LONGEST = 200
_DRIVER_FILES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",)
# The child looks for modules where this process does, and nowhere else.
_CHILD = """import json, sys
sys.path[:] = json.loads(sys.argv[1])
from qdqtool.import_probe import print_loaded
print_loaded(sys.argv[2:])"""


@dataclass(frozen=True)
class Loaded:
    """What became of one module.

    Attributes:
        missing: there is no such module.
        error: why it does not load; "" where it does, and where it is missing.
        version: its __version__; the CUDA version of a driver.
        facts: what else was asked of it.
    """

    missing: bool = False
    error: str = ""
    version: str = ""
    facts: dict[str, Any] | None = None


def load_apart(modules: Sequence[str], seconds: float = SECONDS) -> dict[str, Loaded]:
    """Import each module, in a child process; after one that ends the process the next go on in another.

    Args:
        modules: names as `import` takes them; with `:function` behind, that is called, too, and gives the facts;
            `DRIVER` is NVIDIA's driver library.
        seconds: how long each module may take.
    """
    found: dict[str, Loaded] = {}
    while left := [name for name in modules if name not in found]:
        found.update(_one_child(left, seconds))
    return {name: found[name] for name in modules}


def print_loaded(modules: Sequence[str]) -> None:
    """Import each module and print a line of JSON before and after it; what they print themselves is dropped."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    for name in modules:
        _print(out, {"begun": name})
        _print(out, {"name": name, **look_at(name)})


def look_at(name: str) -> dict[str, Any]:
    """Import a module here; the fields of `Loaded` that are not as usual."""
    try:
        return _driver() if name == DRIVER else _module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return {"missing": True}
        return {"error": _line(error)}
    except BaseException as error:  # a module may raise anything, SystemExit included
        return {"error": _line(error)}


def _module(name: str) -> dict[str, Any]:
    module, _, function = name.partition(":")
    found = importlib.import_module(module)
    top = sys.modules[module.partition(".")[0]]
    answer: dict[str, Any] = {"version": str(getattr(top, "__version__", ""))}
    if function:
        answer["facts"] = getattr(found, function)()
    if name == "onnxruntime":
        whole = hasattr(top, "InferenceSession")
        answer["facts"] = {"whole": whole, "providers": list(top.get_available_providers()) if whole else []}
    return answer


def _driver() -> dict[str, Any]:
    """The newest CUDA that NVIDIA's driver serves; asking needs no GPU and starts nothing on one."""
    for file in _DRIVER_FILES:
        try:
            library = ctypes.CDLL(file)
        except OSError:
            continue
        number = ctypes.c_int()
        code = library.cuDriverGetVersion(ctypes.byref(number))
        if code:
            return {"error": f"{file} is there but gives error {code}"}
        return {"version": f"{number.value // 1000}.{number.value % 1000 // 10}"}
    return {"missing": True}


def _one_child(modules: Sequence[str], seconds: float) -> dict[str, Loaded]:
    """What one child found out: every module up to the one that it did not survive; at least one."""
    path = json.dumps([*sys.path, str(Path(__file__).resolve().parent.parent)])
    command = [sys.executable, "-I", "-c", _CHILD, path, *modules]
    found: dict[str, Loaded] = {}
    begun, end = modules[0], ""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        threading.Thread(target=_read_lines, args=(child.stdout, lines), daemon=True).start()
        try:
            while line := lines.get(timeout=seconds):
                answer = json.loads(line)
                begun = answer.pop("begun", begun)
                if "name" in answer:
                    name = answer.pop("name")
                    found[name] = Loaded(**answer)
            end = _end_of(child.wait(seconds))
        except (queue.Empty, subprocess.TimeoutExpired):
            child.kill()
            end = f"does not load within {seconds:g} s"
    if begun not in found:
        found[begun] = Loaded(error=end)
    return found


def _read_lines(pipe: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Hand each line on as it comes, and an empty one at the end."""
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def _end_of(code: int) -> str:
    return f"ends Python with signal {-code}" if code < 0 else f"ends Python with exit code {code}"


def _line(error: BaseException) -> str:
    text = next(iter(str(error).splitlines()), "")
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _print(out: TextIO, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()
