# SPDX-License-Identifier: Apache-2.0
"""Which gradient back ends this environment has: one flavor of onnxruntime at most, with or without its training part.

`qdqtool doctor` reports the same conflict; here a run that could not be trusted stops before it begins.
"""

from __future__ import annotations

from typing import Any

from qdqtool.errors import MissingPackageError
from qdqtool.runtime.installed import flavor_clash, installed_flavors, load_onnxruntime

WHEEL = "onnxruntime-training-cpu"
_MARK = "GradientGraphBuilder"  # of a compiled part that has kernels of gradients
_TODO = 'in an environment of its own: pip install "qdqtool[train]" (Python 3.10 to 3.12, x86-64); or --backend builtin'


def check_environment() -> str:
    """The flavor of onnxruntime that is installed; "" where pip knows of none.

    Raises:
        MissingPackageError: several are, over one another, so that nobody knows whose files run.
    """
    found = installed_flavors()
    if len(found) > 1:
        raise flavor_clash(found)
    return found[0] if found else ""


def has_gradient_kernels() -> bool:
    """Whether the onnxruntime that is installed has kernels of gradients.

    Raises:
        MissingPackageError: several flavors are installed.
    """
    flavor = check_environment()
    return "training" in flavor and hasattr(_binding(), _MARK)


def check_training_wheel() -> None:
    """Refuse an environment whose onnxruntime has no kernels of gradients.

    Raises:
        MissingPackageError: the wheel is not installed, is installed only in part, or lies over another flavor.
    """
    flavor = check_environment()
    if "training" not in flavor:
        instead = f"{flavor} is installed, which has no kernels of gradients" if flavor else "is not installed"
        raise MissingPackageError(WHEEL, instead, _TODO)
    if not hasattr(_binding(), _MARK):
        reason = f"is installed only in part (no {_MARK}): another flavor was written over it"
        raise MissingPackageError(flavor, reason, f"pip install --force-reinstall --no-deps {flavor}")


def _binding() -> Any:
    """The compiled part of the onnxruntime that is installed, whatever flavor it is."""
    load_onnxruntime()
    from onnxruntime.capi import _pybind_state

    return _pybind_state
