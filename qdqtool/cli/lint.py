# SPDX-License-Identifier: Apache-2.0
"""`qdqtool lint`: what is wrong with a model for TensorRT's INT8. Parses arguments and prints results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.data import add_data_arguments, data_options_from
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.next_steps import data_words, improved, known_preprocess_words, repair
from qdqtool.cli.output import print_json, print_lines, warn
from qdqtool.command_lines import command, file_word, next_line, output_beside
from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.linting.finding import at_least, by_code, counts
from qdqtool.verbs.lint_options import LintOptions, split_codes

if TYPE_CHECKING:
    from qdqtool.diagnosis.cause import Cause
    from qdqtool.dla.assignment import DlaAssignment, DlaReport
    from qdqtool.linting.checks import Check
    from qdqtool.linting.finding import Finding
    from qdqtool.verbs.lint import LintResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a plain or a Q/DQ model, which is not changed")
    parser.add_argument(
        "--level",
        choices=("error", "warning", "note"),
        default="error",
        help="exit 1 on a finding of this severity or worse",
    )
    add_options(parser, LintOptions, without=("provider",))
    parser.add_argument("--explain", metavar="CODE", help="explain a code; needs no model")
    parser.add_argument(
        "--fix",
        metavar="CODES",
        nargs="?",
        const="all",
        help="apply the safe repairs, or only those of these codes; needs -o",
    )
    add_data_arguments(parser, calibrates=False)
    parser.add_argument("--all", action="store_true", help="show every finding and note, and for dla every node")
    parser.add_argument("--format", choices=("text", "json", "sarif"), default="text", help="how to print (text)")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("-o", "--output", metavar="OUT", help="the repaired model, with --fix")


def run(args: argparse.Namespace) -> int:
    """Look, say what was found, and whether it is too grave; faults are raised as QdqError."""
    from qdqtool.verbs.lint import lint

    if args.explain is not None:
        return _explain(args)
    check_dla_arguments(args)
    options = _options(args)
    if args.model is None:
        raise QdqError("lint", "no model is given", "give one, or --explain CODE")
    result = lint(args.model, options, data=args.data, output=args.output)
    for note in result.notes:
        warn(note, args, "note")
    _print(result, args)
    return 1 if at_least(result.findings, args.level) else 0


def _options(args: argparse.Namespace) -> LintOptions:
    fix = () if args.fix is None else split_codes([args.fix])
    if args.fix is not None and not fix:
        raise QdqError(f"--fix {args.fix!r}", "names no code", "give codes such as Q003, or --fix alone")
    if args.model is None and fix and fix != ("all",) and not fix[0].startswith("Q"):
        args.model, fix = args.fix, ("all",)  # `--fix MODEL`: argparse takes the model for codes
    return options_from(LintOptions, args, fix=fix, data_options=None if args.data is None else data_options_from(args))


def _explain(args: argparse.Namespace) -> int:
    from qdqtool.linting.checks import check_named

    check = check_named(args.explain)
    if args.json or args.format == "json":
        print_json({**_check_facts(check), "explanation": check.explanation})
        return 0
    head = f"{check.code} {check.name} ({check.severity}; {', '.join(check.targets)}{_versions(check)})"
    print_lines([head, "", *check.explanation.splitlines()], args, asked=True)
    return 0


def _versions(check: Check) -> str:
    return f"; TensorRT {check.trt}" if check.trt else ""


def _check_facts(check: Check) -> dict[str, object]:
    return {
        "code": check.code,
        "name": check.name,
        "severity": check.severity,
        "summary": check.summary,
        "targets": list(check.targets),
        "trt": check.trt,
    }


def _print(result: LintResult, args: argparse.Namespace) -> None:
    if args.format == "sarif":
        from qdqtool import __version__
        from qdqtool.linting.sarif import sarif_log

        print_json(sarif_log(args.model, result.findings, result.checks, __version__))
    elif args.json or args.format == "json":
        print_json({**_facts(result, args), **dla_facts(result.dla)})
    else:
        print_lines([*_text(result, args), *dla_text(result.dla, args), *_dla_form(result, args)], args, asked=True)


def _facts(result: LintResult, args: argparse.Namespace) -> dict[str, object]:

    return {
        "model": args.model,
        "target": args.target,
        "counts": counts(result.findings),
        "findings": [finding.to_json() for finding in result.findings],
        "causes": None if result.causes is None else result.causes.to_json(),
        "fixed": [finding.to_json() for finding in result.fixed],
        "new": [finding.to_json() for finding in result.new],
        "file": None if args.output is None else str(result.model),
        "notes": list(result.notes),
    }


def _text(result: LintResult, args: argparse.Namespace) -> list[str]:

    lines = result.summary(args.model, in_full=args.all or args.verbose)
    if args.output is not None:
        lines.append(f"wrote {result.model}: {result.repaired()}")
    else:
        lines += _repairs(result.findings, args, typed=result.typed)
    if result.causes is not None and result.causes.causes:
        lines += _remedy(result.causes.causes[0], args)
    elif result.causes is not None and result.causes.unexplained and args.output is None:
        lines += improved(args)
    if result.findings:
        lines.append(f"what a code means: qdqtool lint --explain {next(iter(by_code(result.findings)))}")
    return lines


def _remedy(cause: Cause, args: argparse.Namespace) -> list[str]:
    """The commands that do away with a cause."""
    output = output_beside(Path(args.model), "mended")[-1].removeprefix("-o=")
    target = [] if args.target == "gpu" else ["--target", args.target]
    commands = cause.commands(
        file_word(args.model), output, [*data_words(args), *known_preprocess_words(args)], args.source
    )
    commands[-1][-2:-2] = [*target, *([] if args.trt_version is None else ["--trt-version", args.trt_version])]
    return [next_line(command(*words)) for words in commands]


def _repairs(findings: Sequence[Finding], args: argparse.Namespace, *, typed: bool) -> list[str]:
    """The commands that repair what can be: one for all that is repaired unasked, one for all codes that are not."""
    from qdqtool.linting.fixes import BY_CODE_ONLY, OF_ANY_TYPES

    fixable = [finding for finding in findings if finding.fixable]
    others = [finding for finding in fixable if typed and finding.code not in OF_ANY_TYPES]
    fixable = [finding for finding in fixable if finding not in others]
    alone = sorted({finding.code for finding in fixable} & BY_CODE_ONLY)
    unasked = sum(finding.code not in BY_CODE_ONLY for finding in fixable)
    beside = ", and others that follow from them," if unasked < len(findings) else ""
    lines = [f"{unasked}{beside} can be repaired: {repair(args)}"] if unasked else []
    if others:
        lines.append(
            f"{len(others)} can be repaired in a Q/DQ model in FP32 (--rest fp32), not in this one with FP16 or BF16"
        )
    if alone:
        said = f"{', '.join(alone)} {'is' if len(alone) == 1 else 'are'} repaired only on request"
        said += ", here with the others" if unasked else ""
        lines.append(f"{said}: {repair(args, sorted({finding.code for finding in fixable}))}")
    return lines


def check_dla_arguments(args: argparse.Namespace) -> None:
    """Refuse what would do nothing."""
    if args.platform is not None and args.target != "dla":
        raise QdqError("--platform", "says whose DLA, and the target is another", "add --target dla")


def dla_text(report: DlaReport | None, args: argparse.Namespace) -> list[str]:
    """What is printed after the findings: the counts, and on request a line for each node that has a layer."""
    if report is None:
        return []
    parts = len(report.subgraphs.members)
    limit = "" if report.most is None else f" of at most {report.most.most}"
    whose = f"DLA of {report.platform.capitalize()}, TensorRT {report.version.text}"
    split = f"{counted(len(report.on_dla), 'node')} on the DLA, {len(report.fallbacks)} on the GPU"
    lines = [f"{whose}: {split}, {counted(parts, 'DLA subgraph')}{limit}"]
    if report.guessed:
        lines.append(f"{report.guesses()}; the log of a build on the board says it")
    if report.free_batch:
        lines.append("its batch is dynamic, and 1 was assumed: give one shape for minimum, optimum and maximum")
    if report.subgraphs.untried:
        lines.append(
            f"{counted(report.subgraphs.untried, 'group')} of fallback nodes not checked for the subgraphs that "
            "they split"
        )
    if not (args.all or args.verbose):
        return [*lines, "where each node runs: --all shows it"]
    for one in report.verdicts:
        if one.device == "dla":
            lines.append(f"  {one.name}: {one.op}, DLA subgraph {one.subgraph}{_by_guess(one)}")
        elif one.device == "gpu":
            why = "; ".join(reason.text for reason in one.reasons)
            lines.append(f"  {one.name}: {one.op}, GPU because {why}{_by_guess(one)}")
    return lines


def _dla_form(result: LintResult, args: argparse.Namespace) -> list[str]:
    """What a file needs before this DLA runs it: no Q/DQ up to TensorRT 10.7, types from 11.4.1 on."""
    report = result.dla
    if report is None:
        return []
    version = args.trt_version or report.version.text
    if report.has_pairs and report.version.has_dla_int8:
        peel = command("peel", file_word(args.model), "--target", "dla", "--trt-version", version)
        return [
            "this DLA takes no Q/DQ, but the model without and a calibration cache, which peel writes",
            next_line(peel),
        ]
    if report.version.has_typed_dla and not report.has_pairs and not result.typed:
        return [
            "the file is FP32, of which this DLA runs nothing; counted is what insert (INT8) or amp (FP16) makes of it"
        ]
    return []


def _by_guess(one: DlaAssignment) -> str:
    """What is said after a verdict that rests on guesses."""
    return f" (by a guess: rule {', '.join(one.guessed_rules)})" if one.guessed_rules else ""


def dla_facts(report: DlaReport | None) -> dict[str, object]:
    """What `--json` has more for the DLA."""
    return {} if report is None else {"dla": report.to_json()}
