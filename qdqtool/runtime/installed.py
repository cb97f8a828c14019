# SPDX-License-Identifier: Apache-2.0
"""Finding onnxruntime: exactly one flavor of it. What it runs on is not asked here (`providers.py`)."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Sequence
from typing import Any

from qdqtool.errors import MissingPackageError

# Wheels that all install the module `onnxruntime`, each over the other.
_FLAVORS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
    "onnxruntime-qnn",
    "onnxruntime-silicon",
    "onnxruntime-training",
    "onnxruntime-training-cpu",
)
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(r"\S+\.(?:cc|h|cu):\d+ (?:[\w:<>&*, ]+\([^)]*\) )?")
_LONGEST = 240
_READ = 4000  # characters of a message, before its places are cut out: names of tensors may stand in it


def load_onnxruntime() -> Any:
    """The module onnxruntime.

    Raises:
        MissingPackageError: it is not installed, or several flavors are, which overwrite one another.
    """
    found = _sole_flavor()
    try:
        import onnxruntime
    except ImportError as error:
        reason = "is not installed, and running a model needs it" if not found else f"does not load ({error})"
        raise MissingPackageError("onnxruntime", reason, 'pip install "qdqtool[cpu]"') from error
    if not hasattr(onnxruntime, "InferenceSession"):
        fix = 'pip install --force-reinstall --no-deps onnxruntime, or pip install "qdqtool[cpu]"'
        raise MissingPackageError("onnxruntime", "is installed only in part", fix)
    return onnxruntime


def installed_flavors() -> list[str]:
    """The onnxruntime wheels that are installed: one at most, where all is well."""
    return [name for name in _FLAVORS if _installed(name)]


@functools.cache
def _sole_flavor() -> str:
    """The wheel that is installed, "" where none is; looked for once in a process, as sessions are many."""
    found = installed_flavors()
    if len(found) > 1:
        raise flavor_clash(found)
    return "".join(found)


def flavor_clash(found: Sequence[str]) -> MissingPackageError:
    """What is wrong with several flavors, and the way out."""
    fix = f"pip uninstall -y {' '.join(found)}, then pip install one of them"
    return MissingPackageError("onnxruntime", f"{' and '.join(found)} are installed over one another", fix)


def one_line(error: Exception) -> str:
    """What onnxruntime complains of, without its codes and source places."""
    text = _PREFIX.sub("", next(iter(str(error).splitlines()), type(error).__name__))
    text = _PLACE.sub("", text[:_READ]).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
