# SPDX-License-Identifier: Apache-2.0
"""The verb `lint`: what is wrong with a model for TensorRT's INT8, and the model with what can be repaired repaired."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import onnx

from qdqtool.artifacts import check_target
from qdqtool.display import Cells, Displayed
from qdqtool.dla.assignment import DlaReport
from qdqtool.dla.rules import Platform
from qdqtool.errors import QdqError
from qdqtool.graph.io import ModelSource, ModelT, Opened, give_back, open_model
from qdqtool.linting.checks import Check, checks_of, run_checks
from qdqtool.linting.finding import Finding, by_code, format_counts
from qdqtool.linting.lint_context import LintContext
from qdqtool.options import TextOption
from qdqtool.precision.widen import refuse_typed
from qdqtool.target_options import TargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.tensorrt_rtx.installed import RtxLibrary
    from qdqtool.tensorrt_rtx.parser import ParserVerdict

_FIRST_OF_ITS_OWN = 11  # TensorRT from here on is judged by this parser unasked
_PARSER_CODES = frozenset({"Q050", "Q051"})
_SHOWN = 5  # places of one code, before "and N more"


@dataclass(frozen=True)
class LintOptions(TargetOptions):
    """What is looked at, beside `TargetOptions`. Without a version, checks for one version only are silent.

    Attributes:
        platform: for dla, xavier or orin; None for the one that the version is mostly for.
        select: codes to look for; empty for all.
        ignore: codes to leave out.
        fix: codes to repair; empty for none, ("all",) for whatever can be.
        parser: whether NVIDIA's own parser is asked, too, which TensorRT for RTX brings; None for where that is
            installed and the target is rtx or the version 11 or later.
    """

    trt_version: TextOption[TrtVersion] = TextOption(TrtVersion, parse)
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    platform: Platform | None = None
    parser: bool | None = None


@dataclass(frozen=True, repr=False)
class LintResult(Displayed, Generic[ModelT]):
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
    model: ModelT | None = None
    notes: tuple[str, ...] = ()
    dla: DlaReport | None = None

    def headline(self) -> str:
        """How many findings there are of each severity, and of which codes."""
        if not self.findings:
            return "nothing found"
        return f"{format_counts(self.findings)} ({', '.join(by_code(self.findings))})"

    def summary(self, name: str = "", *, in_full: bool = False) -> list[str]:
        """What `qdqtool lint` prints of the findings, without what to do next.

        Args:
            name: what the model is called.
            in_full: whether every place and note is shown.
        """
        lines: list[str] = []
        names = {check.code: check.name for check in self.checks}
        for code, found in by_code(self.findings).items():
            lines += _group(code, names.get(code, ""), found, in_full=in_full)
        listed = format_counts(self.findings) or "nothing found"
        return [*lines, f"{name}: {listed}" if name else listed]

    def rows(self) -> Cells:
        """One row for each finding, by code."""
        rows = [(one.code, one.severity, one.where, one.message) for one in self.findings]
        return [("code", "severity", "where", "message"), *rows] if rows else ()


@overload
def lint(
    model: onnx.ModelProto, options: LintOptions | None = ..., *, output: str | Path | None = ...
) -> LintResult[onnx.ModelProto]: ...


@overload
def lint(
    model: str | os.PathLike[str], options: LintOptions | None = ..., *, output: str | Path | None = ...
) -> LintResult[Path]: ...


@overload
def lint(
    model: ModelSource, options: LintOptions | None = ..., *, output: str | Path | None = ...
) -> LintResult[Any]: ...


def lint(
    model: ModelSource, options: LintOptions | None = None, *, output: str | Path | None = None
) -> LintResult[Any]:
    """Say what is wrong with a model for TensorRT's INT8, without TensorRT; repair what can be repaired safely.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        options: see `LintOptions`.
        output: file for the repaired model, needed where `fix` is asked for and the model is a path.

    Raises:
        QdqError: a code that no check has, a model that cannot be opened, a repair without an output, a crash of
            NVIDIA's parser. Nothing is written then.
        MissingPackageError: NVIDIA's parser is asked for and not installed.
    """
    options = options or LintOptions()
    checks = checks_of(options.select, options.ignore)
    opened = open_model(model)
    _check_places(opened, options, None if output is None else Path(output))
    if options.fix:
        refuse_typed(opened, "--fix edits FP32 models")
    subject = LintContext(opened.proto, opened.folder, options.target, options.trt_version, options.platform)
    library = _library(options, checks)
    subject.verdict = _verdict(library, opened)
    before = run_checks(subject, checks)
    if not options.fix:
        return LintResult(tuple(before), tuple(checks), dla=subject.dla)
    from qdqtool.linting.fixes import repair

    done = repair(subject, checks, options.fix)
    subject = subject.again()
    subject.verdict = _verdict(library, replace(opened, kind="proto", path=None))
    after = run_checks(subject, checks)
    left = {finding.key for finding in after}
    gone = tuple(one for one in before if (one.code, done.renamed.get(one.where, one.where)) not in left)
    given = give_back(opened.proto, opened, None if output is None else Path(output))
    return LintResult(tuple(after), tuple(checks), gone, given, done.notes, subject.dla)


def _library(options: LintOptions, checks: Sequence[Check]) -> RtxLibrary | None:
    """The TensorRT for RTX whose parser is asked; None where it is not to be asked.

    Raises:
        MissingPackageError: it is asked for and not installed.
    """
    from qdqtool.tensorrt_rtx.installed import find_library, require_library

    target: str = options.target
    wanted = target == "rtx" or (options.trt_version is not None and options.trt_version.major >= _FIRST_OF_ITS_OWN)
    if options.parser is False or not {check.code for check in checks} & _PARSER_CODES:
        return None
    return require_library() if options.parser else find_library() if wanted else None


def _verdict(library: RtxLibrary | None, opened: Opened) -> ParserVerdict | None:
    from qdqtool.tensorrt_rtx.parser import parse_opened

    return None if library is None else parse_opened(opened, library=library)


def _check_places(opened: Opened, options: LintOptions, output: Path | None) -> None:
    if options.fix and output is None and opened.kind == "path":
        raise QdqError(opened.name, "a repaired model needs a file of its own", "name it with -o")
    if output is not None and not options.fix:
        raise QdqError(output, "is to be written, but nothing is to be repaired", "add --fix")
    check_target(output, opened.files)


def _group(code: str, name: str, found: Sequence[Finding], *, in_full: bool) -> list[str]:
    """One code: its head with the counts, its places, what is left out, and what to do; notes alone in one line."""
    graver = [finding for finding in found if finding.severity != "note"]
    if not graver and not in_full:
        return [_notes(code, name, found)]
    lines = [f"{code} {name}: {format_counts(found)}"]
    listed = list(found) if in_full else graver
    shown = listed if in_full else listed[:_SHOWN]
    lines += [f"  {finding.where}: {finding.message}" for finding in shown]
    if len(found) > len(shown):
        lines.append(f"  and {len(found) - len(shown)} more (--all shows them)")
    fixes = dict.fromkeys(finding.fix for finding in listed if finding.fix)
    return lines + [f"  to do: {fix}" for fix in fixes]


def _notes(code: str, name: str, found: Sequence[Finding]) -> str:
    """One line: the only note, or how many there are and where the first are."""
    if len(found) == 1:
        return f"{code} {name}, note: {found[0].where}: {found[0].message}"
    places = ", ".join(dict.fromkeys(finding.where for finding in found[:_SHOWN]))
    more = f" and {len(found) - _SHOWN} more" if found[_SHOWN:] else ""
    return f"{code} {name}: {len(found)} notes, at {places}{more} (--all shows them)"
