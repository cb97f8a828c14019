# SPDX-License-Identifier: Apache-2.0
"""The verb `lint`: what is wrong with a model for TensorRT's INT8, and the model with what can be repaired repaired."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtool.artifacts import check_target
from qdqtool.dla.assignment import DlaReport
from qdqtool.dla.rules import Platform
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource, Opened, give_back, open_model
from qdqtool.linting.checks import Check, checks_of, run_checks
from qdqtool.linting.finding import Finding
from qdqtool.linting.lint_context import LintContext, Target
from qdqtool.trtversion import TrtVersion


@dataclass(frozen=True)
class LintOptions:
    """What is looked at.

    Attributes:
        target: gpu or dla.
        trt_version: whose rules hold; None for the newest, and then checks for one version only are silent.
        platform: for dla, xavier or orin; None for the one that the version is mostly for.
        select: codes to look for; empty for all.
        ignore: codes to leave out.
        fix: codes to repair; empty for none, ("all",) for whatever can be.
    """

    target: Target = "gpu"
    trt_version: TrtVersion | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    platform: Platform | None = None


@dataclass(frozen=True)
class LintResult:
    """What was found, and the repaired model where one was asked for.

    Attributes:
        findings: by code, then in the order of the graph; those of the repaired model where there is one.
        checks: the checks that were asked.
        fixed: the findings that the repair did away with.
        model: the repaired model, of the kind that was given; None where nothing was asked for.
        notes: sentences on what was repaired.
        dla: for dla, where each node would run, in the model that was looked at last.
    """

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    fixed: tuple[Finding, ...] = ()
    model: Any = None
    notes: tuple[str, ...] = ()
    dla: DlaReport | None = None


def lint(model: ModelSource, options: LintOptions | None = None, *, output: str | Path | None = None) -> LintResult:
    """Say what is wrong with a model for TensorRT's INT8, without TensorRT; repair what can be repaired safely.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        options: see `LintOptions`.
        output: file for the repaired model, needed where `fix` is asked for and the model is a path.

    Raises:
        QdqError: a code that no check has, a model that cannot be opened, a repair without an output. Nothing is
            written then.
    """
    options = options or LintOptions()
    checks = checks_of(options.select, options.ignore)
    opened = open_model(model)
    _check_places(opened, options, None if output is None else Path(output))
    subject = LintContext(opened.proto, opened.folder, options.target, options.trt_version, options.platform)
    before = run_checks(subject, checks)
    if not options.fix:
        return LintResult(tuple(before), tuple(checks), dla=subject.dla)
    from qdqtool.linting.fixes import repair

    done = repair(subject, checks, options.fix)
    subject = subject.again()
    after = run_checks(subject, checks)
    left = {finding.key for finding in after}
    gone = tuple(one for one in before if (one.code, done.renamed.get(one.where, one.where)) not in left)
    given = give_back(opened.proto, opened, None if output is None else Path(output))
    return LintResult(tuple(after), tuple(checks), gone, given, done.notes, subject.dla)


def _check_places(opened: Opened, options: LintOptions, output: Path | None) -> None:
    if options.fix and output is None and opened.kind == "path":
        raise QdqError(opened.name, "a repaired model needs a file of its own", "name it with -o")
    if output is not None and not options.fix:
        raise QdqError(output, "is to be written, but nothing is to be repaired", "add --fix")
    check_target(output, opened.files)
