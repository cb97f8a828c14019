# SPDX-License-Identifier: Apache-2.0
"""Where TensorRT for RTX is installed: in this Python, or in the one that QDQTOOL_RTX_PYTHON names; or why it is not.

Its license forbids redistribution: nothing of it comes with qdqtool, and nothing here installs it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

from qdqtool.errors import MissingPackageError
from qdqtool.rtxversion import RTX_NAME

NAME = RTX_NAME
PYTHON = "QDQTOOL_RTX_PYTHON"
NONE = "none"  # what PYTHON says to leave an installed library out
MODULE = "tensorrt_rtx_bindings"
WHEELS = ("tensorrt-rtx-cu12", "tensorrt-rtx-cu13", "tensorrt-rtx-cu12-bindings", "tensorrt-rtx-cu13-bindings")
LICENSE = "NVIDIA Software License Agreement: proprietary, not to be redistributed, installed by the user"
_INSTALL = 'pip install "qdqtool[rtx]"'
_SECONDS = 60.0
_TODO_PYTHON = "name the python of an environment that has tensorrt-rtx-cu12"
_ASK = f"""import importlib.metadata as records, importlib.util as modules
names = {WHEELS!r}
found = [name for name in names if any(records.distributions(name=name))]
here = modules.find_spec({MODULE!r}) is not None
print(records.version(found[0]) if found and here else "")"""


@dataclass(frozen=True)
class RtxLibrary:
    """An installation of TensorRT for RTX."""

    python: str
    version: str


def find_library() -> RtxLibrary | None:
    """The installation that is used; None where there is none. The library itself is not loaded."""
    named = _named()
    if named == NONE:
        return None
    if named:
        version = _version_in(named)
        return RtxLibrary(named, version) if version else None
    version = _version_here()
    return RtxLibrary(sys.executable, version) if version else None


def require_library() -> RtxLibrary:
    """The installation that is used.

    Raises:
        MissingPackageError: there is none, with the line for pip, or with why no wheel is made for this platform.
    """
    library = find_library()
    if library is not None:
        return library
    named = _named()
    if named not in ("", NONE):
        todo = f"{named} -m pip install tensorrt-rtx-cu12"
        raise MissingPackageError(NAME, f"is not installed for the Python that {PYTHON} names", todo)
    reason = why_no_wheel()
    if reason:
        todo = "run it on Linux x86_64 with glibc 2.28 or later, or on Windows"
        raise MissingPackageError(NAME, f"cannot be installed here: {reason}", todo)
    raise MissingPackageError(NAME, "is not installed", _INSTALL)


def how_to_install() -> str:
    """`is not installed; <pip line>`, or why it cannot be; "" where QDQTOOL_RTX_PYTHON says to leave it out."""
    if _named() == NONE:
        return ""
    try:
        require_library()
    except MissingPackageError as error:
        return "; ".join(part for part in (error.reason, error.todo) if part)
    return ""


def why_no_wheel(system: str | None = None, machine: str | None = None, libc: tuple[str, str] | None = None) -> str:
    """Why NVIDIA makes no wheel for this machine and Python; "" where there is one."""
    system = system or platform.system()
    machine = (machine or platform.machine()).lower()
    if system not in ("Linux", "Windows"):
        return f"there is no wheel for {'macOS' if system == 'Darwin' else system or 'this system'}"
    if machine not in ("x86_64", "amd64"):
        jetson = " (Jetson and other ARM machines)" if machine in ("aarch64", "arm64") else ""
        return f"there is no wheel for {machine}{jetson}"
    if system == "Linux" and (reason := _old_libc(*(libc or platform.libc_ver()))):
        return reason
    running = ".".join(map(str, sys.version_info[:2]))
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"its wheels are for CPython with the GIL, and this is {sys.implementation.name} {running}"
    return f"its wheels are for Python 3.9 to 3.14, and this is {running}" if sys.version_info >= (3, 15) else ""


def _named() -> str:
    return os.environ.get(PYTHON, "")


def _old_libc(name: str, version: str) -> str:
    if name != "glibc":
        return "its wheels need glibc 2.28 or later, and this Linux has another C library"
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return f"its wheels need glibc 2.28 or later, and this Linux has {version}" if parts < (2, 28) else ""


def _version_here() -> str:
    if importlib.util.find_spec(MODULE) is None:
        return ""
    for wheel in WHEELS:
        try:
            return importlib.metadata.version(wheel) or ""
        except (importlib.metadata.PackageNotFoundError, KeyError):
            continue
    return ""


def _version_in(python: str) -> str:
    """The wheel's version in another Python, asked in a process of that Python."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
        raise MissingPackageError(PYTHON, f"names {python}, which does not run ({reason})", _TODO_PYTHON) from None
    if done.returncode:
        raise MissingPackageError(PYTHON, f"names {python}, which is not a Python that runs", _TODO_PYTHON)
    return done.stdout.decode("utf-8", errors="replace").strip()
