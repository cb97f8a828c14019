# SPDX-License-Identifier: Apache-2.0
"""The names of the module `tensorrt` for one stand-in: what a version has is there, what it lacks is not."""

from __future__ import annotations

import enum
from types import ModuleType
from typing import Any

from tests.fake_tensorrt.builder import STRONGLY_TYPED, Builder, DeviceType, Runtime
from tests.fake_tensorrt.network import DataType, LayerType, OnnxParser
from tests.fake_tensorrt.running import ICudaEngine, IExecutionContext, IOutputAllocator, TensorFormat, TensorIOMode
from tests.fake_tensorrt.state import Fake

_TYPES = {"float32": "FLOAT", "float16": "HALF", "int8": "INT8", "int32": "INT32", "bool": "BOOL", "uint8": "UINT8"}
_CALIBRATORS = {
    "IInt8LegacyCalibrator": 0,
    "IInt8EntropyCalibrator": 1,
    "IInt8EntropyCalibrator2": 2,
    "IInt8MinMaxCalibrator": 3,
}


class CalibrationAlgoType(enum.IntEnum):
    """Kinds of calibration."""

    LEGACY_CALIBRATION = 0
    ENTROPY_CALIBRATION = 1
    ENTROPY_CALIBRATION_2 = 2
    MINMAX_CALIBRATION = 3


class Severity(enum.IntEnum):
    """Severities of a log."""

    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


class ILogger:
    """trt.ILogger, and trt.Logger."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def __init__(self, min_severity: Severity = Severity.WARNING) -> None:
        self.min_severity = min_severity

    def log(self, severity: Severity, msg: str) -> None:
        """Where a subclass is empty, nothing is said."""


class IInt8Calibrator:
    """The base of calibrators; one whose __init__ was not called crashes TensorRT, and is refused here."""

    _ready = False

    def __init__(self) -> None:
        self._ready = True


def make_module(fake: Fake, calibrators: ModuleType | None) -> ModuleType:
    """A module `tensorrt`.

    Args:
        fake: what it works on.
        calibrators: another module whose calibrator classes it shows instead of its own, such as NVIDIA's bindings.
    """
    module: Any = ModuleType("tensorrt", "A stand-in for TensorRT from tests.fake_tensorrt.")
    module.__version__ = fake.text
    module.DataType, module.LayerType, module.DeviceType = DataType, LayerType, DeviceType
    for name, member in _TYPES.items():
        setattr(module, name, DataType[member])
    if fake.version.major >= 10:
        module.int64 = DataType.INT64
    module.ILogger = module.Logger = ILogger
    module.Builder = type("Builder", (Builder,), {"fake": fake})
    module.Runtime = type("Runtime", (Runtime,), {"fake": fake})
    module.OnnxParser = OnnxParser
    module.ICudaEngine, module.IExecutionContext = ICudaEngine, IExecutionContext
    module.IOutputAllocator, module.TensorIOMode, module.TensorFormat = IOutputAllocator, TensorIOMode, TensorFormat
    module.MemoryPoolType = _enum("MemoryPoolType", [("WORKSPACE", 0)])
    module.LayerInformationFormat = _enum("LayerInformationFormat", [("ONELINE", 0), ("JSON", 1)])
    module.ProfilingVerbosity = _enum("ProfilingVerbosity", [("LAYER_NAMES_ONLY", 0), ("DETAILED", 2)])
    module.init_libnvinfer_plugins = lambda logger, namespace: True
    module.BuilderFlag = _builder_flags(fake)
    flags = [] if fake.version.major >= 10 else [("EXPLICIT_BATCH", 0)]
    module.NetworkDefinitionCreationFlag = _enum(
        "NetworkDefinitionCreationFlag", [*flags, ("STRONGLY_TYPED", STRONGLY_TYPED)]
    )
    if fake.version.has_caches:
        _add_calibrators(module, calibrators)
    return module  # type: ignore[no-any-return]


def _builder_flags(fake: Fake) -> Any:
    """Those that are used or shown; INT8 and its like went with TensorRT 11."""
    weak = [("FP16", 0), ("INT8", 1), ("OBEY_PRECISION_CONSTRAINTS", 10)] if fake.version.has_caches else []
    if fake.version.has_caches and fake.version.major >= 9:
        weak.append(("BF16", 17))
    rest = [("GPU_FALLBACK", 3), ("TF32", 7), ("PREFER_PRECISION_CONSTRAINTS", 11), ("DIRECT_IO", 12)]
    return _enum("BuilderFlag", [*weak, *rest])


def _enum(name: str, members: list[tuple[str, int]]) -> Any:
    make: Any = enum.IntEnum
    return make(name, members)


def _add_calibrators(module: Any, other: ModuleType | None) -> None:
    names = ["IInt8Calibrator", "CalibrationAlgoType", *_CALIBRATORS]
    if other is not None:
        for name in names:
            setattr(module, name, getattr(other, name))
        return
    module.IInt8Calibrator, module.CalibrationAlgoType = IInt8Calibrator, CalibrationAlgoType
    for name, number in _CALIBRATORS.items():
        algorithm = CalibrationAlgoType(number)
        methods = {"get_algorithm": lambda self, algorithm=algorithm: algorithm}
        setattr(module, name, type(name, (IInt8Calibrator,), methods))
