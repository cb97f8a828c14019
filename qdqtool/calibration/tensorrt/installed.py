# SPDX-License-Identifier: Apache-2.0
"""Finding TensorRT's Python module and what of it calibrates: which version, which class. Nothing is built here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from qdqtool.amax.method_table import parse_method
from qdqtool.errors import MissingPackageError, QdqError
from qdqtool.runtime.installed import one_line
from qdqtool.trtversion import TrtVersion, parse

FIRST = (8, 5)
_INSTALL = 'pip install "qdqtool[tensorrt]", or pip install "tensorrt>=8.5,<11"'

# method -> (class of the bindings, its member of CalibrationAlgoType, what the header of its caches says)
_CALIBRATORS = {
    "entropy": ("IInt8EntropyCalibrator2", "ENTROPY_CALIBRATION_2", "EntropyCalibration2"),
    "max": ("IInt8MinMaxCalibrator", "MINMAX_CALIBRATION", "MinMaxCalibration"),
}


@dataclass(frozen=True)
class Installed:
    """The TensorRT at hand, and the calibrator that was asked for.

    Attributes:
        module: `tensorrt`.
        text: its version, build included: `10.13.3.9`.
        version: the three numbers that the header of a cache carries.
        base: the calibrator's class.
        algo: its `CalibrationAlgoType`.
        algorithm: what the header of its caches says.
    """

    module: Any
    text: str
    version: TrtVersion
    base: Any
    algo: Any
    algorithm: str


def find_tensorrt(method: str, version: TrtVersion | None = None) -> Installed:
    """The installed TensorRT, if it has the calibrator of a method and writes caches for a version.

    Raises:
        MissingPackageError: there is no TensorRT, one that does not load, one before 8.5, or one without calibrators.
        QdqError: another method, another version, or Polygraphy set to use TensorRT-RTX.
    """
    name = parse_method(method).name
    if name not in _CALIBRATORS:
        hint = "use entropy or max, or leave --backend tensorrt out"
        raise QdqError(f"--method {method}", "is not one of TensorRT's calibrators", hint)
    module, text, found = load_tensorrt("--backend tensorrt needs it")
    base, algo, algorithm = _CALIBRATORS[name]
    if not hasattr(module, base):
        reason = "has no INT8 calibrators (10.16 was the last with them), only Q/DQ models"
        raise MissingPackageError(f"TensorRT {text}", reason, f"use qdqtool insert, or {_INSTALL}")
    if version is not None and found != version:
        reason = f"the installed TensorRT is {found.text}, and it writes caches for itself"
        todo = f"give --trt-version {found.text}, then carry the cache with qdqtool cache retarget"
        raise QdqError(f"--trt-version {version.text}", reason, todo)
    return Installed(module, text, found, getattr(module, base), getattr(module.CalibrationAlgoType, algo), algorithm)


def load_tensorrt(need: str) -> tuple[Any, str, TrtVersion]:
    """The module `tensorrt`, its version with the build number, and without.

    Raises:
        MissingPackageError: there is none, one that does not load, or one before 8.5.
        QdqError: Polygraphy is set to use TensorRT-RTX.
    """
    module = _load(need)
    text = str(module.__version__)
    found = _version(text)
    if (found.major, found.minor) < FIRST:
        raise MissingPackageError(f"TensorRT {text}", "is older than 8.5, the first that is driven here", _INSTALL)
    return module, text, found


def _load(need: str) -> Any:
    from polygraphy import config

    if config.USE_TENSORRT_RTX:
        todo = "unset POLYGRAPHY_USE_TENSORRT_RTX"
        raise QdqError("POLYGRAPHY_USE_TENSORRT_RTX", "is set, and TensorRT-RTX has no calibrators", todo)
    try:
        import tensorrt
    except Exception as error:  # the wheel's own loader raises what it likes where a library is missing
        missing = isinstance(error, ModuleNotFoundError) and error.name == "tensorrt"
        reason = "is not installed" if missing else f"does not load ({one_line(error)})"
        raise MissingPackageError("tensorrt", f"{reason}, and {need}", _INSTALL) from error
    if not hasattr(tensorrt, "__version__"):
        raise MissingPackageError("tensorrt", "is installed only in part", _INSTALL)
    return tensorrt


def _version(text: str) -> TrtVersion:
    """`8.6.1`, `8.6.1.post1`, `10.13.3.9`: the first three numbers."""
    match = re.match(r"\d+\.\d+\.\d+", text)
    if not match:
        raise QdqError(f"TensorRT {text}", "is not a version that is understood", _INSTALL)
    return parse(match[0])
