# SPDX-License-Identifier: Apache-2.0
"""The verb `lint`: what is wrong with a model for TensorRT's INT8, and the model with what can be repaired repaired."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import onnx

from qdqtool.calibration.engine import calibrate_scales
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.diagnosis.cause import LossCauses
from qdqtool.diagnosis.diagnose import DiagnosisOptions, causes_of, look
from qdqtool.display import Cells, Displayed, counted
from qdqtool.dla.assignment import DlaReport
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import ModelSource, ModelT, give_back, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.weighted import is_product
from qdqtool.linting.checks import Check, checks_of, run_checks
from qdqtool.linting.finding import Finding, by_code, format_counts
from qdqtool.linting.fixes import BY_CODE_ONLY, OF_ANY_TYPES, repair
from qdqtool.linting.lint_context import LintContext
from qdqtool.observers.options import CalibrationOptions
from qdqtool.output_paths import check_target, files_of
from qdqtool.precision.widen import as_fp32, is_typed, refuse_typed
from qdqtool.tensorrt_rtx.installed import find_library, how_to_install, require_library
from qdqtool.tensorrt_rtx.parser import parse_opened
from qdqtool.verbs.lint_options import LintOptions
from qdqtool.verbs.measured_remedy import with_brought

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader
    from qdqtool.tensorrt_rtx.installed import RtxLibrary
    from qdqtool.tensorrt_rtx.parser import ParserVerdict

_FIRST_OF_ITS_OWN = 11  # TensorRT from here on is judged by this parser unasked
_PARSER_CODES = frozenset({"Q050", "Q051"})
_NAMED = 3  # places that a line names beside what to do there
_SHOWN = 5  # places of one code, before "and N more"


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
        typed: whether the model has FP16 or BF16 tensors: some repairs edit FP32 models alone.
        new: the findings of the repaired model that the given one had not: of a cut of the DLA's part, once others are
            gone, another node is the first.
        causes: with data, why the given model loses accuracy; None for a plain model, or where codes were selected.
    """

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    fixed: tuple[Finding, ...] = ()
    model: ModelT | None = None
    notes: tuple[str, ...] = ()
    dla: DlaReport | None = None
    typed: bool = False
    new: tuple[Finding, ...] = ()
    causes: LossCauses | None = None

    def repaired(self) -> str:
        """How many findings a repair did away with, how many are left, and how many of those are new."""
        if not self.fixed:
            return "as it was, nothing was repaired"
        beside = f", {len(self.new)} of them new ({', '.join(by_code(self.new))})" if self.new else ""
        return f"{counted(len(self.fixed), 'finding')} repaired, {len(self.findings) or 'none'} left{beside}"

    def headline(self) -> str:
        """How many findings there are of each severity and of which codes, and the likely cause of a loss."""
        causes = [] if self.causes is None or self.causes.loss is None else [self.causes.headline()]
        listed = f"{format_counts(self.findings)} ({', '.join(by_code(self.findings))})"
        return "; ".join([listed if self.findings else "nothing found", *causes])

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
        causes, nothing = list[str](), "nothing found"
        if self.causes is not None:
            causes = self.causes.summary()
            nothing = "nothing else found" if self.causes.causes else "nothing found in the graph"
        listed = format_counts(self.findings) or nothing
        return [*causes, *lines, f"{name}: {listed}" if name else listed]

    def rows(self) -> Cells:
        """One row for each finding, by code."""
        rows = [(one.code, one.severity, one.where, one.message) for one in self.findings]
        return [("code", "severity", "where", "message"), *rows] if rows else ()


@overload
def lint(
    model: onnx.ModelProto,
    options: LintOptions | None = ...,
    *,
    data: Data | DataLoader | None = ...,
    output: str | Path | None = ...,
) -> LintResult[onnx.ModelProto]: ...


@overload
def lint(
    model: str | os.PathLike[str],
    options: LintOptions | None = ...,
    *,
    data: Data | DataLoader | None = ...,
    output: str | Path | None = ...,
) -> LintResult[Path]: ...


@overload
def lint(
    model: ModelSource,
    options: LintOptions | None = ...,
    *,
    data: Data | DataLoader | None = ...,
    output: str | Path | None = ...,
) -> LintResult[Any]: ...


def lint(
    model: ModelSource,
    options: LintOptions | None = None,
    *,
    data: Data | DataLoader | None = None,
    output: str | Path | None = None,
) -> LintResult[Any]:
    """Say what is wrong with a model for TensorRT's INT8, without TensorRT; repair what can be repaired safely.

    Args:
        model: plain or with Q/DQ; a path, ModelProto, gs.Graph or a callable returning one; never changed.
        options: see `LintOptions`.
        data: what to run through the model, so that FP16 is judged by the values of its tensors, too, and causes of a
            loss are named; see `open_loader`.
        output: file for the repaired model, needed where `fix` is asked for and the model is a path.

    Raises:
        QdqError: a code that no check has, a model that cannot be opened, a repair without an output, a crash of
            NVIDIA's parser. Nothing is written then.
        MissingPackageError: NVIDIA's parser is asked for and not installed; onnxruntime, with data, is not.
    """
    options = options or LintOptions()
    checks = checks_of(options.select, options.ignore)
    if options.source is not None and data is None:
        raise QdqError("--source", "is for --data, which is not given", "add --data, or leave it out")
    opened = open_model(model)
    inlined = inline_products(opened, pairs=False)  # as TensorRT does; pairs in functions are Q024's
    _check_places(opened, data, options, None if output is None else Path(output))
    fix = _codes_to_fix(opened, options)
    options, said = with_known(options, opened, data, anew=bool(opened.view.pairs))  # a cause of a loss
    context = LintContext(opened, options.target, options.trt_version, options.platform)
    library = _library(options, checks)
    context.verdict = _verdict(library, opened)
    causes, unknown = (None, ()) if data is None else _run_data(context, data, options)
    before = run_checks(context, checks)
    notes = (
        *dict.fromkeys((*said, *unknown)),
        *(() if library is not None else _not_asked(options, checks)),
        *_inside_bodies(opened),
    )
    if fix and inlined:
        notes = (f"inlined local functions with products: {', '.join(inlined)}", *notes)
    if not fix:
        return LintResult(
            tuple(before), tuple(checks), notes=notes, causes=causes, dla=context.dla, typed=is_typed(opened)
        )

    done = repair(context, checks, fix)
    context = context.again()
    context.verdict = _verdict(library, replace(opened, kind="proto", path=None))
    after = run_checks(context, checks)
    left = {finding.key for finding in after}
    earlier = [((one.code, done.renamed.get(one.where, one.where)), one) for one in before]
    gone = tuple(one for key, one in earlier if key not in left)
    new = tuple(one for one in after if one.key not in dict(earlier))
    given = give_back(opened.proto, opened, None if output is None else Path(output))
    return LintResult(
        tuple(after), tuple(checks), gone, given, (*notes, *done.notes), context.dla, new=new, causes=causes
    )


def _codes_to_fix(opened: Model, options: LintOptions) -> tuple[str, ...]:
    """The codes that are repaired: of a typed model those whose repairs ask for no types."""
    if not options.fix or not is_typed(opened):
        return options.fix

    if options.fix == ("all",):
        return tuple(sorted(OF_ANY_TYPES - BY_CODE_ONLY))
    others = [code for code in options.fix if code not in OF_ANY_TYPES]
    if others:
        refuse_typed(opened, f"--fix {','.join(others)} edits FP32 models")
    return options.fix


def _inside_bodies(opened: Model) -> tuple[str, ...]:
    """A sentence on the products inside bodies of control flow, which no check but Q024 looks at."""
    bodies = opened.view.bodies()
    inside = [f"{body.scope}/{node.name}" for body in bodies for node in body.nodes if is_product(node)]
    if not inside:
        return ()
    there = f"{counted(len(inside), 'product')} inside If, Loop or Scan, such as {inside[0]}"
    return (f"{there}: TensorRT uses no INT8 there, and lint does not look there but for Q/DQ",)


def _run_data(
    context: LintContext, data: Data | DataLoader, options: LintOptions
) -> tuple[LossCauses | None, tuple[str, ...]]:
    """Give the context the largest values on the data; of a Q/DQ model the causes of its loss, or a note why not."""
    opened, notes = context.model, tuple[str, ...]()
    if opened.view.pairs and not options.select:
        how = DiagnosisOptions(
            target=options.target,
            trt_version=options.trt_version,
            data_options=options.data_options,
            provider=options.provider,
        )
        source = None if options.source is None else open_model(options.source)
        try:
            found, said = look(opened, data, how, source)
            context.largest = found.context.largest
            return with_brought(causes_of(found), found), said
        except QdqError as error:  # data that do not fit are refused below
            todo = f"; {error.todo}" if error.todo else ""
            notes = (f"causes of a loss are not looked for: {error.where} {error.reason}{todo}",)
    context.largest = _largest(opened, data, options)
    return None, notes


def _largest(opened: Model, data: Data | DataLoader, options: LintOptions) -> dict[str, float]:
    """The largest magnitude of each float32 tensor on the data; infinity where a value was."""
    loader = open_loader(data, inputs_of(opened.proto.graph), options.data_options)
    how = CalibrationOptions(method="max", provider=options.provider, where=opened.name)
    table = calibrate_scales(as_fp32(opened), loader, how)
    infinite = {name: math.inf for name, reason in table.unscaled.items() if "Inf" in reason}
    return {name: scale.amax for name, scale in table.scales.items()} | infinite


def _library(options: LintOptions, checks: Sequence[Check]) -> RtxLibrary | None:
    """The TensorRT for RTX whose parser is asked; None where it is not to be asked."""
    if options.parser is False or not {check.code for check in checks} & _PARSER_CODES:
        return None
    return require_library() if options.parser else find_library() if _asks_parser(options) else None


def _asks_parser(options: LintOptions) -> bool:
    """Whether the parser is asked of itself where it is installed."""
    target: str = options.target
    return target == "rtx" or (options.trt_version is not None and options.trt_version.major >= _FIRST_OF_ITS_OWN)


def _not_asked(options: LintOptions, checks: Sequence[Check]) -> tuple[str, ...]:
    """A sentence that the parser was not asked, where it would have been if it were installed."""
    wanted = options.parser is None and _asks_parser(options) and {check.code for check in checks} & _PARSER_CODES
    how = how_to_install() if wanted else ""
    return (f"NVIDIA's parser was not asked: TensorRT for RTX {how}",) if how else ()


def _verdict(library: RtxLibrary | None, opened: Model) -> ParserVerdict | None:

    return None if library is None else parse_opened(opened, library=library)


def _check_places(opened: Model, data: object, options: LintOptions, output: Path | None) -> None:
    if options.fix and output is None and opened.kind == "path":
        raise QdqError(opened.name, "the repaired model needs an output file", "name it with -o")
    if output is not None and not options.fix:
        raise QdqError(output, "names an output, but nothing is to be repaired", "add --fix")
    check_target(output, [*opened.files, *files_of(data, options.source)])


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
    fixes: dict[str, list[str]] = {}
    for finding in listed:
        if finding.fix:
            fixes.setdefault(finding.fix, []).append(finding.where)
    if len(fixes) == 1:
        return [*lines, *(f"  to do: {fix}" for fix in fixes)]
    return lines + [f"  to do at {_places(places)}: {fix}" for fix, places in fixes.items()]


def _places(places: Sequence[str]) -> str:
    """The first places, each once, and how many more there are."""
    once = list(dict.fromkeys(places))
    return ", ".join(once[:_NAMED]) + (f" and {len(once) - _NAMED} more" if once[_NAMED:] else "")


def _notes(code: str, name: str, found: Sequence[Finding]) -> str:
    """One line: the only note, or how many there are and where the first are."""
    if len(found) == 1:
        return f"{code} {name}, note: {found[0].where}: {found[0].message}"
    places = ", ".join(dict.fromkeys(finding.where for finding in found[:_SHOWN]))
    more = f" and {len(found) - _SHOWN} more" if found[_SHOWN:] else ""
    return f"{code} {name}: {len(found)} notes, at {places}{more} (--all shows them)"
