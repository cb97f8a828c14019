# SPDX-License-Identifier: Apache-2.0
"""Quantization of ONNX models for TensorRT: INT8 as Q/DQ nodes or as a calibration cache, FP8, INT4 and NVFP4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # `X as X` is how type checkers are told that a name is public
    # isort: off
    from qdqtool.scales import load_table as load_table
    from qdqtool.cache.retarget import retarget as retarget
    from qdqtool.cache.text import Cache as Cache, read_cache as read_cache, write_cache as write_cache
    from qdqtool.calibration.engine import CalibrationOptions as CalibrationOptions, calibrate as calibrate
    from qdqtool.cli.in_python import deploy as deploy, improve as improve
    from qdqtool.data.geometry import Geometry as Geometry
    from qdqtool.data.loader import DataOptions as DataOptions
    from qdqtool.doctor import Diagnosis as Diagnosis, diagnose as diagnose
    from qdqtool.errors import QdqError as QdqError
    from qdqtool.evaluation.decode.auto_detect import find_decoder as find_decoder
    from qdqtool.evaluation.detections import Detections as Detections
    from qdqtool.evaluation.decode_options import DecodeOptions as DecodeOptions
    from qdqtool.evaluation.decode_options import Selection as Selection
    from qdqtool.linting.finding import Finding as Finding
    from qdqtool.match.plan import Plan as Plan, PlanOptions as PlanOptions
    from qdqtool.scales import Scale as Scale, ScaleTable as ScaleTable
    from qdqtool.trtversion import TrtVersion as TrtVersion
    from qdqtool.verbs.amp import amp as amp, plan_types as plan_types
    from qdqtool.verbs.amp_options import AmpOptions as AmpOptions, AmpResult as AmpResult
    from qdqtool.verbs.bench import BenchResult as BenchResult, bench as bench
    from qdqtool.verbs.bench_options import BenchOptions as BenchOptions
    from qdqtool.verbs.forecast import ForecastResult as ForecastResult, forecast as forecast
    from qdqtool.verbs.forecast_options import ForecastOptions as ForecastOptions
    from qdqtool.verbs.build import build as build
    from qdqtool.verbs.build_options import BuildOptions as BuildOptions
    from qdqtool.verbs.build import BuildResult as BuildResult
    from qdqtool.verbs.compare import CompareOptions as CompareOptions, Comparison as Comparison, compare as compare
    from qdqtool.verbs.condition import ConditionResult as ConditionResult, condition as condition
    from qdqtool.verbs.condition_options import ConditionOptions as ConditionOptions
    from qdqtool.verbs.compare_pictures import (
        DrawnDifferences as DrawnDifferences,
        DrawOptions as DrawOptions,
        draw_differences as draw_differences,
    )
    from qdqtool.workflows.deploy_options import DeployOptions as DeployOptions
    from qdqtool.workflows.deploy_result import DeployResult as DeployResult
    from qdqtool.verbs.evaluate import evaluate as evaluate
    from qdqtool.verbs.evaluate_options import EvaluateOptions as EvaluateOptions
    from qdqtool.verbs.evaluation_result import Evaluation as Evaluation
    from qdqtool.verbs.finetune import (
        FinetuneOptions as FinetuneOptions,
        FinetuneResult as FinetuneResult,
        finetune as finetune,
    )
    from qdqtool.verbs.graft import graft as graft
    from qdqtool.verbs.graft_options import GraftOptions as GraftOptions, GraftResult as GraftResult
    from qdqtool.workflows.improve_options import ImproveOptions as ImproveOptions
    from qdqtool.workflows.improve_result import ImproveResult as ImproveResult
    from qdqtool.verbs.infer import InferResult as InferResult, infer as infer
    from qdqtool.verbs.infer_options import InferOptions as InferOptions
    from qdqtool.verbs.init import Project as Project, init_project as init_project
    from qdqtool.verbs.insert import insert as insert, plan as plan
    from qdqtool.verbs.insert_options import InsertOptions as InsertOptions, InsertResult as InsertResult
    from qdqtool.verbs.lint import LintResult as LintResult, lint as lint
    from qdqtool.verbs.lint_options import LintOptions as LintOptions
    from qdqtool.verbs.peel import peel as peel
    from qdqtool.verbs.peel_options import PeelOptions as PeelOptions, PeelResult as PeelResult
    from qdqtool.verbs.prune import PruneResult as PruneResult, plan_pruning as plan_pruning, prune as prune
    from qdqtool.verbs.prune_options import PruneOptions as PruneOptions
    from qdqtool.verbs.ptq import ptq as ptq
    from qdqtool.verbs.ptq_options import PtqOptions as PtqOptions, PtqResult as PtqResult
    from qdqtool.verbs.ptq_compare import BackendComparison as BackendComparison, compare_backends as compare_backends
    from qdqtool.workflows.recipe_result import RecipePlan as RecipePlan, RecipeResult as RecipeResult
    from qdqtool.workflows.run_recipe import (
        RecipeOptions as RecipeOptions,
        plan_recipe as plan_recipe,
        run_recipe as run_recipe,
    )
    from qdqtool.workflows.report import report as report
    from qdqtool.workflows.report_options import ReportOptions as ReportOptions, ReportResult as ReportResult
    from qdqtool.verbs.sensitivity import SensitivityResult as SensitivityResult, sensitivity as sensitivity
    from qdqtool.verbs.sensitivity_options import SensitivityOptions as SensitivityOptions
    from qdqtool.verbs.show_engine import (
        EngineDifference as EngineDifference,
        PredictedLayers as PredictedLayers,
        ShowEngineOptions as ShowEngineOptions,
        ShownEngine as ShownEngine,
        diff_engines as diff_engines,
        predicted_layers as predicted_layers,
        show_engine as show_engine,
    )
    from qdqtool.verbs.simulate import (
        Simulated as Simulated,
        SimulateResult as SimulateResult,
        simulate as simulate,
        simulated_model as simulated_model,
    )
    from qdqtool.verbs.simulate_options import SimulateOptions as SimulateOptions
    # isort: on

# name -> the module it lives in; imported when it is first asked for, so that `import qdqtool` costs nothing.
_HOMES = {
    "AmpOptions": "verbs.amp_options",
    "AmpResult": "verbs.amp_options",
    "BackendComparison": "verbs.ptq_compare",
    "BenchOptions": "verbs.bench_options",
    "BenchResult": "verbs.bench",
    "ForecastOptions": "verbs.forecast_options",
    "ForecastResult": "verbs.forecast",
    "BuildOptions": "verbs.build_options",
    "BuildResult": "verbs.build",
    "Cache": "cache.text",
    "CalibrationOptions": "calibration.engine",
    "CompareOptions": "verbs.compare",
    "Comparison": "verbs.compare",
    "Detections": "evaluation.detections",
    "Diagnosis": "doctor",
    "DrawOptions": "verbs.compare_pictures",
    "DrawnDifferences": "verbs.compare_pictures",
    "EngineDifference": "verbs.show_engine",
    "EvaluateOptions": "verbs.evaluate_options",
    "Evaluation": "verbs.evaluation_result",
    "ConditionOptions": "verbs.condition_options",
    "ConditionResult": "verbs.condition",
    "DataOptions": "data.loader",
    "Finding": "linting.finding",
    "FinetuneOptions": "verbs.finetune",
    "FinetuneResult": "verbs.finetune",
    "Geometry": "data.geometry",
    "GraftOptions": "verbs.graft_options",
    "GraftResult": "verbs.graft_options",
    "ImproveOptions": "workflows.improve_options",
    "ImproveResult": "workflows.improve_result",
    "InferOptions": "verbs.infer_options",
    "InferResult": "verbs.infer",
    "InsertOptions": "verbs.insert_options",
    "InsertResult": "verbs.insert_options",
    "LintOptions": "verbs.lint_options",
    "LintResult": "verbs.lint",
    "PeelOptions": "verbs.peel_options",
    "PeelResult": "verbs.peel_options",
    "Plan": "match.plan",
    "PlanOptions": "match.plan",
    "Project": "verbs.init",
    "PredictedLayers": "verbs.show_engine",
    "PruneOptions": "verbs.prune_options",
    "PruneResult": "verbs.prune",
    "PtqOptions": "verbs.ptq_options",
    "PtqResult": "verbs.ptq_options",
    "QdqError": "errors",
    "RecipePlan": "workflows.recipe_result",
    "RecipeResult": "workflows.recipe_result",
    "RecipeOptions": "workflows.run_recipe",
    "DecodeOptions": "evaluation.decode_options",
    "ReportOptions": "workflows.report_options",
    "ReportResult": "workflows.report_options",
    "DeployOptions": "workflows.deploy_options",
    "DeployResult": "workflows.deploy_result",
    "Scale": "scales",
    "ScaleTable": "scales",
    "Selection": "evaluation.decode_options",
    "SensitivityOptions": "verbs.sensitivity_options",
    "SensitivityResult": "verbs.sensitivity",
    "ShowEngineOptions": "verbs.show_engine",
    "ShownEngine": "verbs.show_engine",
    "SimulateOptions": "verbs.simulate_options",
    "SimulateResult": "verbs.simulate",
    "Simulated": "verbs.simulate",
    "TrtVersion": "trtversion",
    "amp": "verbs.amp",
    "bench": "verbs.bench",
    "forecast": "verbs.forecast",
    "build": "verbs.build",
    "calibrate": "calibration.engine",
    "condition": "verbs.condition",
    "compare": "verbs.compare",
    "compare_backends": "verbs.ptq_compare",
    "deploy": "cli.in_python",
    "diagnose": "doctor",
    "diff_engines": "verbs.show_engine",
    "draw_differences": "verbs.compare_pictures",
    "evaluate": "verbs.evaluate",
    "find_decoder": "evaluation.decode.auto_detect",
    "finetune": "verbs.finetune",
    "graft": "verbs.graft",
    "improve": "cli.in_python",
    "infer": "verbs.infer",
    "init_project": "verbs.init",
    "insert": "verbs.insert",
    "lint": "verbs.lint",
    "load_table": "scales",
    "peel": "verbs.peel",
    "plan": "verbs.insert",
    "plan_recipe": "workflows.run_recipe",
    "plan_types": "verbs.amp",
    "plan_pruning": "verbs.prune",
    "predicted_layers": "verbs.show_engine",
    "prune": "verbs.prune",
    "ptq": "verbs.ptq",
    "read_cache": "cache.text",
    "report": "workflows.report",
    "retarget": "cache.retarget",
    "run_recipe": "workflows.run_recipe",
    "sensitivity": "verbs.sensitivity",
    "show_engine": "verbs.show_engine",
    "simulate": "verbs.simulate",
    "simulated_model": "verbs.simulate",
    "write_cache": "cache.text",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qdqtool' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"qdqtool.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
