# SPDX-License-Identifier: Apache-2.0
"""Whether TensorRT builds the Q/DQ model that `improve` was given, by the errors of lint. Nothing is repaired."""

from __future__ import annotations

from pathlib import Path

from qdqtool.deploying.target import DeployTarget
from qdqtool.display import counted
from qdqtool.linting.finding import Finding, by_code
from qdqtool.verbs.lint import lint
from qdqtool.verbs.lint_options import LintOptions


def refusal_of(given: Path, plain: Path, target: DeployTarget) -> str:
    """Why TensorRT does not build a model as it is; empty if it does, or if it reads a cache instead."""
    version = target.version
    if version is not None and version.has_caches and (target.kind == "dla" or not version.builds_qdq):
        return ""
    own = {one.code for one in _errors(plain, target)}
    found = [one for one in _errors(given, target) if one.code not in own]
    if not found:
        return ""
    errors = f"{counted(len(found), 'error')} in it ({', '.join(by_code(found))})"
    return f"lint finds {errors}, for which TensorRT refuses it or breaks its numbers"


def _errors(model: Path, target: DeployTarget) -> list[Finding]:
    found = lint(model, LintOptions(target.kind, target.version)).findings
    return [one for one in found if one.severity == "error"]
