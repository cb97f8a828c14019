# SPDX-License-Identifier: Apache-2.0
"""The command lines that verbs print as the next step, made from the user's own options: each runs as it is printed.

A new hint is built by `command_lines.py` from `command` (another verb), `again` (the same command with more
options) or `trtexec_line`, with `data_words` and `plan_words` for the options that the user gave, and printed through
`next_line`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.cli.build_lines import build_lines, inputs_of_file, shape_flag, where_trtexec_is
from qdqtool.cli.data import CALIBRATES
from qdqtool.cli.declared import defaults_of
from qdqtool.cli.plan_options import PLACEMENT
from qdqtool.command_lines import (
    again,
    command,
    file_word,
    next_line,
    option,
    output_beside,
    shell_line,
    stem_of,
)
from qdqtool.data.options import DataOptions
from qdqtool.match.options import PlanOptions, names_word
from qdqtool.observers.options import CalibrationOptions
from qdqtool.trtversion import NEWEST, RELEASES, parse

if TYPE_CHECKING:
    from qdqtool.trtversion import TrtVersion
    from qdqtool.verbs.amp_options import AmpResult
    from qdqtool.verbs.condition import ConditionResult
    from qdqtool.verbs.finetune import FinetuneResult
    from qdqtool.verbs.graft_options import GraftResult
    from qdqtool.verbs.insert_options import InsertResult
    from qdqtool.verbs.prune import PruneResult
    from qdqtool.verbs.sensitivity import SensitivityResult
    from qdqtool.workflows.improve_result import ImproveResult


def data_words(args: argparse.Namespace, *, calibrates: bool = True) -> list[str]:
    """The options that name the user's data, for another verb that reads data; empty without data."""
    if args.data is None:
        return []
    paths = getattr(args.data, "paths", None)  # Polygraphy's inputs
    words = option("--data", args.data) if paths is None else ["--load-inputs", *map(file_word, paths)]
    of_runs = defaults_of(CalibrationOptions, only=CALIBRATES if calibrates else ("provider",))
    return words + _given(args, {**defaults_of(DataOptions), **of_runs})


def held_out_words(args: argparse.Namespace) -> list[str]:
    """The options that name other data for a figure, which calibration data flatters: TEST, read as the user's are."""
    defaults = defaults_of(DataOptions)
    return ["--data", "TEST", *_given(args, {name: defaults[name] for name in ("preprocess", "batch")})]


def known_preprocess_words(args: argparse.Namespace) -> list[str]:
    """The preprocessing that the model's file says, for a command on the peeled file, which does not say it."""
    from qdqtool.data.pixel_arrays import holds_images
    from qdqtool.evaluation.known_preprocess import known_preprocess
    from qdqtool.graph.io import open_model

    if args.data is None or args.preprocess is not None or not holds_images(args.data):
        return []
    known = known_preprocess(open_model(args.model).proto)
    return [] if known is None else option("--preprocess", known.spec)


def plan_words(args: argparse.Namespace) -> list[str]:
    """The user's options that say where pairs stand: version, rules and heads; names to keep in float go apart."""
    return _given(args, defaults_of(PlanOptions, only=[name for name in PLACEMENT if name != "keep_float"]))


def after_insert(args: argparse.Namespace, result: InsertResult) -> list[str]:
    """What to do with a Q/DQ model: build it, where the TensorRT takes Q/DQ; peel it for what reads caches."""
    if not result.plan.points:
        return []
    if args.target == "rtx":
        return [_rtx_build(result.model)]
    typed = result.rest is not None
    version, lines = NEWEST if typed else _default_version(args.target), list[str]()
    if args.trt_version:
        version, word = parse(args.trt_version), args.trt_version
    else:
        word = version.text
        lines.append(_newest_is_meant(word))
    builds = typed or not version.has_caches or (args.target == "gpu" and version.builds_qdq)
    if builds:
        shapes = shape_flag(result.inputs, result.table.provenance.data, args.batch)
        lines += _qdq_build(args, result.model, version, target=args.target, typed=typed, shapes=shapes)
    if typed or not version.has_caches:
        return lines
    words = [file_word(result.model), "--target", args.target, *option("--trt-version", word)]
    if not (args.fold_bn or args.requantize or result.inserted.kept):  # else the source is not what comes out
        words += option("--source", args.model)
    if result.estimated:
        words.append("--allow-estimated")
    peel = command("peel", *words)
    return [
        *lines,
        f"only for what reads a calibration cache, such as DeepStream: {peel}" if builds else next_line(peel),
    ]


def after_improve(args: argparse.Namespace, result: ImproveResult) -> list[str]:
    """Build the Q/DQ model; for the DLA, which may read caches only, peel it."""
    if args.target == "rtx":
        return [_rtx_build(result.model)]
    version = parse(args.trt_version) if args.trt_version else _default_version(args.target)
    lines = [] if args.trt_version else [_newest_is_meant(version.text)]
    if version.has_caches and (args.target == "dla" or not version.builds_qdq):
        words = [
            file_word(result.model),
            "--target",
            args.target,
            *option("--trt-version", args.trt_version or version),
        ]
        return [*lines, next_line(command("peel", *words))]
    typed, shapes = _read_file(result.model)
    return [*lines, *_qdq_build(args, result.model, version, target=args.target, typed=typed, shapes=shapes)]


def _read_file(model: str | Path) -> tuple[bool, list[str]]:
    """What a Q/DQ file tells of its build: whether it has float types of its own, and the sizes of its data."""
    from qdqtool.graph.io import open_model
    from qdqtool.metadata import stored_table
    from qdqtool.precision.casts import types_over_pairs

    proto = open_model(model).proto
    table = stored_table(proto)
    shapes = shape_flag(inputs_of_file(model), None if table is None else table.provenance.data, 1)
    return types_over_pairs(proto) is not None, shapes


def _rtx_build(model: object) -> str:
    """The engine of a Q/DQ model for TensorRT for RTX."""
    words = ["--target", "rtx", *option("-o", f"{stem_of(model)}.engine")]
    return next_line(command("build", file_word(str(model)), *words))


def _qdq_build(
    args: argparse.Namespace, model: object, version: TrtVersion, *, target: str, typed: bool, shapes: Sequence[str]
) -> list[str]:
    """The lines of trtexec that build a Q/DQ model as it is."""
    from qdqtool.emit.trtexec import qdq_arguments

    words = qdq_arguments(str(model), stem_of(model), target, version, typed=typed, shapes=shapes)
    return [*where_trtexec_is(version, args), *build_lines(words)]


def after_graft(args: argparse.Namespace, result: GraftResult[Any]) -> list[str]:
    """Build the Q/DQ model; where places have no scale, say that data give them one."""
    if not result.plan.points:
        return []
    starved = args.data is None and any(one.rule == "no-scale" for one in result.plan.refusals)
    lines = []
    if starved and any(result.unknown.values()):
        renames = command("cache", "check", file_word(args.cache), file_word(args.model))
        lines.append(
            f"some names of the cache resemble those of the model; for the command that renames them: {renames}"
        )
    if starved:
        lines.append("--data calibrates the scales that the cache lacks")
        lines.append(
            f"next, with your calibration data for DATA (images: add --preprocess): {again(args, '--data', 'DATA')}"
        )
    version = parse(args.trt_version) if args.trt_version else NEWEST
    if not args.trt_version:
        lines.append(_newest_is_meant(version.text))
    shapes = shape_flag(inputs_of_file(result.model), result.data, args.batch)
    proof = command("cache", "check", file_word(args.cache), file_word(result.model))
    lines.append(f"to compare every scale with the cache, bit for bit: {proof}")
    typed = result.rest is not None
    return [*lines, *_qdq_build(args, result.model, version, target=args.target, typed=typed, shapes=shapes)]


def after_amp(args: argparse.Namespace, result: AmpResult) -> list[str]:
    """Build it: TensorRT 11 takes the types of the file as they are, 9 and 10 must be told to."""
    version = parse(args.trt_version) if args.trt_version else NEWEST
    told = "with 9 and 10 add --stronglyTyped"
    said = [] if args.trt_version else [f"the next step is for TensorRT {version.text}, the newest; {told}"]
    shapes = shape_flag(inputs_of_file(result.model), {"shapes": result.ranges.input_shapes}, args.batch)
    return [*said, *_qdq_build(args, result.model, version, target="gpu", typed=True, shapes=shapes)]


def conditioned_insert(args: argparse.Namespace, written: Path) -> str:
    """The same `insert`, with --condition auto, to a file beside the one that was written."""
    return shell_line("qdqtool", *finer_words(args), "--condition", "auto", *output_beside(written, "conditioned"))


def insert_with_more_float(args: argparse.Namespace, most: float, written: Path) -> str:
    """The same `insert`, with as much in float as a loss at the outputs of `most` takes, to a file of its own."""
    kept = without_option("--keep-float", finer_words(args))
    return shell_line("qdqtool", *kept, "--max-output-loss", f"{most:g}", *output_beside(written, "float"))


def deployed_to_dla(args: argparse.Namespace) -> str:
    """`deploy` of the same model with the same data for the DLA of the version."""
    words = [*option("--data", args.data), *_given(args, {"preprocess": None}), *option("--for", args.trt_version)]
    words += ["--dla"]
    return command("deploy", file_word(args.model), *words, *option("-o", f"{stem_of(args.model)}.deployed"))


def finer_words(args: argparse.Namespace) -> list[str]:
    """The user's words of `insert` without the file that is written, and without what may be the cause of a loss.

    That is weights per tensor, and one method for all ranges, in whose place `auto` chooses by tensor.
    """
    words = without_option("--method", words_to_vary(args))
    return without_option("--weights", words) if args.weights == "per-tensor" else words


def ranked_operators(args: argparse.Namespace) -> str:
    """`sensitivity` on the same model and data, by the same method."""
    words = [file_word(args.model), *data_words(args), *_given(args, {"method": None}), *plan_words(args)]
    return command("sensitivity", *words)


def after_sensitivity(args: argparse.Namespace, result: SensitivityResult) -> list[str]:
    """An insert that differs from a plain one: operators in float beyond what that keeps by itself, or edited weights.

    Where nothing differs, a sentence says so.
    """
    from qdqtool.measuring.output_loss import LARGE_LOSS

    blamed = result.to_blame()
    words = [file_word(args.model), *data_words(args), *_given(args, {"method": None}), *plan_words(args)]
    by_itself = f"insert keeps {', '.join(blamed)} in float by itself (--keep-float auto is its default with --data)"
    lines = list[str]()
    if args.keep_float or (blamed and not result.kept_by_insert(blamed)):
        words += option("--keep-float", names_word([*args.keep_float, *blamed]))
    elif result.ranking.loss >= LARGE_LOSS:
        words += ["--condition", "auto"]
        lines += [by_itself] if blamed else []
    else:
        return [by_itself if blamed else "nothing to keep in float: a plain insert does as well"]
    words += output_beside(
        Path(args.model), "better", ".qdq.onnx"
    )  # what insert wrote before is what it is compared with
    return [*lines, next_line(command("insert", *words))]


def after_condition(args: argparse.Namespace, result: ConditionResult) -> list[str]:
    """Insert with the same data and the same plan, which the edits were made for."""
    if not result.done.edits:
        return []
    words = [file_word(result.model), *data_words(args), *option("--method", args.method), *plan_words(args)]
    words += option("--keep-float", names_word(args.keep_float)) if args.keep_float else []
    return [next_line(command("insert", *words))]


def after_prune(args: argparse.Namespace, result: PruneResult[Any]) -> list[str]:
    """Fine-tune with the same data towards the original; without data, how accuracy comes back."""
    if result.done.parameters[0] == result.done.parameters[1]:
        return []
    if args.data is None:
        teacher = shell_line(*option("--teacher", args.model))
        return [f"to recover accuracy, fine-tune it: qdqtool finetune, with --data and {teacher}"]
    words = [file_word(result.model), *option("--teacher", args.model), *data_words(args, calibrates=False)]
    return [next_line(command("finetune", *words))]


def after_finetune(args: argparse.Namespace, result: FinetuneResult[Any]) -> list[str]:
    """Judge a Q/DQ model, unless `--eval-data` did, and build it; after a training in float, insert.

    Beside the model in float every answer that changed tells; where its file is not known, labels do. `insert` gets the
    data where they hold no labels.
    """
    if not result.in_float:
        lines = [] if args.eval_data else [_judging(args, result)]
        if not result.was_plain:
            as_before = "with the command for the model before training: a Q/DQ file does not name its target"
            return [*lines, f"build {file_word(result.model)} {as_before}"]
        lines.append(
            f"the next step is for a GPU and TensorRT {NEWEST.text}, the newest; with 8 to 10 add --int8 --fp16"
        )
        typed, shapes = _read_file(result.model)
        return [*lines, *_qdq_build(args, result.model, NEWEST, target="gpu", typed=typed, shapes=shapes)]
    if args.label or args.labels or args.loss:
        return ["for INT8 next: qdqtool insert, with --data to calibrate on"]
    return [next_line(command("insert", file_word(result.model), *data_words(args)))]


def _judging(args: argparse.Namespace, result: FinetuneResult[Any]) -> str:
    """How to judge a trained Q/DQ model."""
    known = args.teacher or (args.model if result.was_plain else None)
    before, judged = "FP32.onnx" if known is None else file_word(known), file_word(result.model)
    data, samples = held_out_words(args), "samples that did not train it for TEST"
    samples += "" if known is not None else ", the FP32 model for FP32.onnx"
    if not args.labels and known is not None:
        return f"to judge it, with {samples}: {command('compare', before, judged, *data)}"
    data += [] if args.labels == "folders" else ["--labels", "LABELS"]
    data += option("--names", args.eval_names) if args.eval_names else []
    samples += "" if args.labels else ", and their labels for LABELS"
    return f"to judge it, with {samples}: {command('evaluate', judged, '--baseline', before, *data)}"


def after_calibrate(args: argparse.Namespace, output: Path) -> list[str]:
    """Insert with the table, where the model is known: the states of shards do not tell it."""
    if not args.model:
        return [f"to place Q/DQ with this table: qdqtool insert with --scales {shell_line(str(output))}"]
    return [next_line(command("insert", file_word(args.model), *option("--scales", output)))]


def after_shard(args: argparse.Namespace, output: Path, count: int) -> list[str]:
    """Merge, where the only shard is done; else say that the others come first."""
    if count > 1:
        return [f"when all {count} shards are done, qdqtool calibrate --merge makes the scale table"]
    table = Path(args.model).with_suffix(".scales.json")
    words = ["--merge", file_word(output), *(option("--method", args.method) if args.method else [])]
    return [next_line(command("calibrate", *words, *option("-o", table)))]


def improved(args: argparse.Namespace) -> list[str]:
    """`improve` of the model that was looked at; it parts the data by itself, and reads no inputs of Polygraphy."""
    if getattr(args.data, "paths", None) is not None:
        return []
    words = _given(args, {"source": None, "data": None, "preprocess": None, "trt_version": None})
    words += [] if args.target == "gpu" else ["--target", args.target]
    beside = output_beside(Path(args.model), "improved", ".onnx")
    return [next_line(command("improve", file_word(args.model), *words, "--max-loss", "0.01", *beside))]


def repair(args: argparse.Namespace, codes: Iterable[str] = ()) -> str:
    """`lint --fix` of the model that was looked at, as it was looked at."""
    wanted = ",".join(codes)
    words = [file_word(args.model), *([] if args.target == "gpu" else ["--target", args.target])]
    words += _given(args, {"trt_version": None, "platform": None})
    for name in ("select", "ignore"):
        words += [word for value in getattr(args, name) for word in option(f"--{name}", value)]
    words += ["--fix", *([wanted] if wanted else [])]
    return command("lint", *words, *option("-o", f"{stem_of(args.model)}.fixed.onnx"))


def _default_version(target: str) -> TrtVersion:
    """The newest release known that runs INT8 on the target: whose rules hold where no version is asked for."""
    versions = [release.version for release in RELEASES]
    return max(version for version in versions if target == "gpu" or version.has_dla_int8)


def _newest_is_meant(version: str) -> str:
    """What is said where the user named no version."""
    return f"the next step is for TensorRT {version}, the newest; if yours is another, add --trt-version"


def words_to_vary(args: argparse.Namespace) -> list[str]:
    """The user's words but the file that is written, and the flags that a recipe adds to its steps."""
    words = without_option("--output", without_option("-o", args.words))
    return [word for word in words if word not in ("--json", "--opset-lowered-later")]


def without_option(name: str, words: Sequence[str]) -> list[str]:
    """The user's words but an option that takes a value, in either spelling."""
    left, skip = list[str](), False
    for word in words:
        if skip or word == name or word.startswith(f"{name}="):
            skip = word == name and not skip
        else:
            left.append(word)
    return left


def _given(args: argparse.Namespace, defaults: Mapping[str, object]) -> list[str]:
    """The options that differ from their defaults, as words; one that may be repeated is."""
    words: list[str] = []
    for name, default in defaults.items():
        value = getattr(args, name, default)
        if value != default:
            for one in value if isinstance(value, list) else [value]:
                words += option(f"--{name.replace('_', '-')}", one)
    return words
