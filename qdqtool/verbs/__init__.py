# SPDX-License-Identifier: Apache-2.0
"""The public verbs, each from one noun to another. What they share is in `output_paths.py` and `metadata.py`."""

from qdqtool.metadata import stored_table
from qdqtool.scales import load_table
from qdqtool.verbs.amp import amp, plan_types
from qdqtool.verbs.amp_options import AmpOptions, AmpResult
from qdqtool.verbs.compare import CompareOptions, Comparison, compare
from qdqtool.verbs.compare_pictures import DrawnDifferences, DrawOptions, draw_differences
from qdqtool.verbs.condition import ConditionOptions, ConditionResult, condition
from qdqtool.verbs.deploy import deploy
from qdqtool.verbs.deploy_options import DeployOptions, DeployResult
from qdqtool.verbs.evaluate import EvaluateOptions, evaluate
from qdqtool.verbs.evaluation_result import Evaluation
from qdqtool.verbs.graft import GraftOptions, GraftResult, graft
from qdqtool.verbs.improve import improve
from qdqtool.verbs.improve_options import ImproveOptions, ImproveResult
from qdqtool.verbs.infer import InferOptions, InferResult, infer
from qdqtool.verbs.insert import insert, plan
from qdqtool.verbs.insert_options import InsertOptions, InsertResult
from qdqtool.verbs.lint import LintOptions, LintResult, lint
from qdqtool.verbs.peel import peel
from qdqtool.verbs.peel_options import PeelOptions, PeelResult
from qdqtool.verbs.prune import PruneOptions, PruneResult, plan_pruning, prune
from qdqtool.verbs.ptq import PtqOptions, PtqResult, ptq
from qdqtool.verbs.ptq_compare import BackendComparison, compare_backends
from qdqtool.verbs.sensitivity import SensitivityOptions, SensitivityResult, sensitivity
from qdqtool.verbs.simulate import Simulated, SimulateOptions, SimulateResult, simulate, simulated_model

__all__ = [
    "AmpOptions",
    "AmpResult",
    "BackendComparison",
    "CompareOptions",
    "Comparison",
    "ConditionOptions",
    "ConditionResult",
    "DeployOptions",
    "DeployResult",
    "DrawOptions",
    "DrawnDifferences",
    "EvaluateOptions",
    "Evaluation",
    "GraftOptions",
    "GraftResult",
    "ImproveOptions",
    "ImproveResult",
    "InferOptions",
    "InferResult",
    "InsertOptions",
    "InsertResult",
    "LintOptions",
    "LintResult",
    "PeelOptions",
    "PeelResult",
    "PruneOptions",
    "PruneResult",
    "PtqOptions",
    "PtqResult",
    "SensitivityOptions",
    "SensitivityResult",
    "SimulateOptions",
    "SimulateResult",
    "Simulated",
    "amp",
    "compare",
    "compare_backends",
    "condition",
    "deploy",
    "draw_differences",
    "evaluate",
    "graft",
    "improve",
    "infer",
    "insert",
    "lint",
    "load_table",
    "peel",
    "plan",
    "plan_pruning",
    "plan_types",
    "prune",
    "ptq",
    "sensitivity",
    "simulate",
    "simulated_model",
    "stored_table",
]
