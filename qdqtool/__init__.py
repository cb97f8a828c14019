# SPDX-License-Identifier: Apache-2.0
"""The bridge between ONNX and TensorRT's two INT8 worlds: Q/DQ graphs and calibration caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from qdqtool.artifacts import load_table
    from qdqtool.cache.retarget import retarget
    from qdqtool.cache.text import Cache, read_cache, write_cache
    from qdqtool.calibration.engine import CalibrationOptions, calibrate
    from qdqtool.data.geometry import Geometry
    from qdqtool.data.loader import DataOptions
    from qdqtool.diagnosis import Diagnosis
    from qdqtool.doctor import diagnose
    from qdqtool.errors import QdqError
    from qdqtool.evaluation.decode.auto_detect import find_decoder
    from qdqtool.evaluation.detections import Detections
    from qdqtool.evaluation.inference import DecodeOptions
    from qdqtool.evaluation.nms import Selection
    from qdqtool.linting.finding import Finding
    from qdqtool.match.plan import Plan, PlanOptions
    from qdqtool.scales import Scale, ScaleTable
    from qdqtool.trtversion import TrtVersion
    from qdqtool.verbs.build import build
    from qdqtool.verbs.build_options import BuildOptions, BuildResult
    from qdqtool.verbs.compare import CompareOptions, Comparison, compare
    from qdqtool.verbs.condition import ConditionOptions, ConditionResult, condition
    from qdqtool.verbs.differences import DrawnDifferences, DrawOptions, draw_differences
    from qdqtool.verbs.evaluate import EvaluateOptions, evaluate
    from qdqtool.verbs.evaluation_result import Evaluation
    from qdqtool.verbs.finetune import FinetuneOptions, FinetuneResult, finetune
    from qdqtool.verbs.graft import GraftOptions, GraftResult, graft
    from qdqtool.verbs.infer import InferOptions, InferResult, infer
    from qdqtool.verbs.insert import insert, plan
    from qdqtool.verbs.insert_options import InsertOptions, InsertResult
    from qdqtool.verbs.lint import LintOptions, LintResult, lint
    from qdqtool.verbs.peel import peel
    from qdqtool.verbs.peel_options import PeelOptions, PeelResult
    from qdqtool.verbs.ptq import PtqOptions, PtqResult, ptq
    from qdqtool.verbs.ptq_compare import BackendComparison, compare_backends
    from qdqtool.verbs.sensitivity import SensitivityOptions, SensitivityResult, sensitivity
    from qdqtool.verbs.show_engine import (
        EngineDifference,
        PredictedLayers,
        ShowEngineOptions,
        ShownEngine,
        diff_engines,
        predicted_layers,
        show_engine,
    )
    from qdqtool.verbs.simulate import Simulated, SimulateOptions, SimulateResult, simulate, simulated_model

# name -> the room it lives in; imported when it is first asked for, so that `import qdqtool` costs nothing.
_HOMES = {
    "BackendComparison": "verbs.ptq_compare",
    "BuildOptions": "verbs.build_options",
    "BuildResult": "verbs.build_options",
    "Cache": "cache.text",
    "CalibrationOptions": "calibration.engine",
    "CompareOptions": "verbs.compare",
    "Comparison": "verbs.compare",
    "Detections": "evaluation.detections",
    "Diagnosis": "diagnosis",
    "DrawOptions": "verbs.differences",
    "DrawnDifferences": "verbs.differences",
    "EngineDifference": "verbs.show_engine",
    "EvaluateOptions": "verbs.evaluate",
    "Evaluation": "verbs.evaluation_result",
    "ConditionOptions": "verbs.condition",
    "ConditionResult": "verbs.condition",
    "DataOptions": "data.loader",
    "Finding": "linting.finding",
    "FinetuneOptions": "verbs.finetune",
    "FinetuneResult": "verbs.finetune",
    "Geometry": "data.geometry",
    "GraftOptions": "verbs.graft",
    "GraftResult": "verbs.graft",
    "InferOptions": "verbs.infer",
    "InferResult": "verbs.infer",
    "InsertOptions": "verbs.insert_options",
    "InsertResult": "verbs.insert_options",
    "LintOptions": "verbs.lint",
    "LintResult": "verbs.lint",
    "PeelOptions": "verbs.peel_options",
    "PeelResult": "verbs.peel_options",
    "Plan": "match.plan",
    "PlanOptions": "match.plan",
    "PredictedLayers": "verbs.show_engine",
    "PtqOptions": "verbs.ptq",
    "PtqResult": "verbs.ptq",
    "QdqError": "errors",
    "DecodeOptions": "evaluation.inference",
    "Scale": "scales",
    "ScaleTable": "scales",
    "Selection": "evaluation.nms",
    "SensitivityOptions": "verbs.sensitivity",
    "SensitivityResult": "verbs.sensitivity",
    "ShowEngineOptions": "verbs.show_engine",
    "ShownEngine": "verbs.show_engine",
    "SimulateOptions": "verbs.simulate",
    "SimulateResult": "verbs.simulate",
    "Simulated": "verbs.simulate",
    "TrtVersion": "trtversion",
    "build": "verbs.build",
    "calibrate": "calibration.engine",
    "condition": "verbs.condition",
    "compare": "verbs.compare",
    "compare_backends": "verbs.ptq_compare",
    "diagnose": "doctor",
    "diff_engines": "verbs.show_engine",
    "draw_differences": "verbs.differences",
    "evaluate": "verbs.evaluate",
    "find_decoder": "evaluation.decode.auto_detect",
    "finetune": "verbs.finetune",
    "graft": "verbs.graft",
    "infer": "verbs.infer",
    "insert": "verbs.insert",
    "lint": "verbs.lint",
    "load_table": "artifacts",
    "peel": "verbs.peel",
    "plan": "verbs.insert",
    "predicted_layers": "verbs.show_engine",
    "ptq": "verbs.ptq",
    "read_cache": "cache.text",
    "retarget": "cache.retarget",
    "sensitivity": "verbs.sensitivity",
    "show_engine": "verbs.show_engine",
    "simulate": "verbs.simulate",
    "simulated_model": "verbs.simulate",
    "write_cache": "cache.text",
}

__all__ = [
    "BackendComparison",
    "BuildOptions",
    "BuildResult",
    "Cache",
    "CalibrationOptions",
    "CompareOptions",
    "Comparison",
    "ConditionOptions",
    "ConditionResult",
    "DataOptions",
    "DecodeOptions",
    "Detections",
    "Diagnosis",
    "DrawOptions",
    "DrawnDifferences",
    "EngineDifference",
    "EvaluateOptions",
    "Evaluation",
    "Finding",
    "FinetuneOptions",
    "FinetuneResult",
    "Geometry",
    "GraftOptions",
    "GraftResult",
    "InferOptions",
    "InferResult",
    "InsertOptions",
    "InsertResult",
    "LintOptions",
    "LintResult",
    "PeelOptions",
    "PeelResult",
    "Plan",
    "PlanOptions",
    "PredictedLayers",
    "PtqOptions",
    "PtqResult",
    "QdqError",
    "Scale",
    "ScaleTable",
    "Selection",
    "SensitivityOptions",
    "SensitivityResult",
    "ShowEngineOptions",
    "ShownEngine",
    "SimulateOptions",
    "SimulateResult",
    "Simulated",
    "TrtVersion",
    "build",
    "calibrate",
    "compare",
    "compare_backends",
    "condition",
    "diagnose",
    "diff_engines",
    "draw_differences",
    "evaluate",
    "find_decoder",
    "finetune",
    "graft",
    "infer",
    "insert",
    "lint",
    "load_table",
    "peel",
    "plan",
    "predicted_layers",
    "ptq",
    "read_cache",
    "retarget",
    "sensitivity",
    "show_engine",
    "simulate",
    "simulated_model",
    "write_cache",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qdqtool' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"qdqtool.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
