# SPDX-License-Identifier: Apache-2.0
"""The command lines that `insert` prints where a model may lose much: measure it, train it, begin without its Q/DQ."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.cli.next_steps import data_words, finer_words, held_out_words, known_preprocess_words, without_option
from qdqtool.command_lines import command, file_word, option, output_beside, peel_any, shell_line
from qdqtool.target_options import emitted_kinds
from qdqtool.trtversion import RELEASES, parse

if TYPE_CHECKING:
    from qdqtool.measuring.keep_float import OutputLoss

OTHERS = "samples that did not calibrate it for TEST"
_WORD = "conditioned"
_STEPS = "equalize,smooth"
_KEEPS_OUTPUTS = frozenset({"equalize", "smooth", "shift"})  # steps that leave FP32 outputs as they are


def measured_first(args: argparse.Namespace, written: Path, loss: OutputLoss, *, had_pairs: bool) -> str:
    """What was written beside the float model on other data: `evaluate`, or `compare` where nothing decodes.

    A model that had pairs is no float model: the user has that.
    """
    data = held_out_words(args)
    before = "FP32.onnx" if had_pairs else file_word(args.model)
    if loss.reads:
        line = command("evaluate", file_word(written), "--baseline", before, *data)
    else:
        line = command("compare", before, file_word(written), *data)
    return f"with {f'your float model for {before}, ' if had_pairs else ''}{OTHERS}: {line}"


def likely_cause(args: argparse.Namespace, written: Path, *, edited: bool = False) -> str:
    """What names the cause of a large loss; after an edit of weights, beside the FP32 model."""
    source = option("--source", file_word(args.model)) if edited else []
    target = ["--target", "dla"] if args.target == "dla" else []
    target += option("--trt-version", args.trt_version) if target and args.trt_version else []
    return command("lint", file_word(written), *target, *source, *data_words(args, calibrates=False))


def measured_cache(args: argparse.Namespace, cache: Path, loss: OutputLoss) -> str:
    """A plain model with its cache beside the float model on other data: `evaluate`, or `simulate`."""
    words = [
        file_word(args.model),
        *option("--cache", cache),
        *(option("--baseline", args.model) if loss.reads else []),
    ]
    words += [] if args.target == "gpu" else ["--target", args.target]
    return f"with {OTHERS}: {command('evaluate' if loss.reads else 'simulate', *words, *held_out_words(args))}"


def cache_that_loses_less(args: argparse.Namespace, cache: Path) -> str:
    """The way to a cache over a Q/DQ model whose weights were edited: `insert --condition auto`, then `peel`."""
    placed = cache.with_suffix(".conditioned.onnx")
    version = option("--trt-version", args.trt_version)
    for_dla = ["--target", "dla"] if args.target == "dla" else []
    asked = ["--condition", "auto", *for_dla, *version, *option("-o", placed)]
    insert = command("insert", file_word(args.model), *data_words(args), *asked)
    peeled = [*option("-o", placed.with_suffix(".plain.onnx")), *option("--cache", placed.with_suffix(".cache"))]
    kinds = emitted_kinds(args.emit)
    peeled += [*(["--emit", ",".join(kinds)] if kinds else []), *(option("--names", args.names) if args.names else [])]
    peel = command("peel", file_word(placed), "--target", args.target, *version, *peeled)
    return f"{insert}; then {peel}"


def lose_less(args: argparse.Namespace, written: Path, *, edited: bool, attends: bool = False) -> list[str]:
    """What loses less: the same `insert` with edited weights, then training block by block, which is for INT8.

    With edited weights data may quantize other attentions; `attends` is whether there are any. Blocks are not trained
    of a model whose FP32 outputs were changed on purpose: its weights are edited anew, without that.
    """
    from qdqtool.formats import INT8, number_format

    lines, trained, row = list[str](), written, number_format(args.format)
    changed = bool(args.condition) and not _KEEPS_OUTPUTS.issuperset(args.condition.split(","))
    anew_for_blocks = changed and row == INT8
    if (not edited or anew_for_blocks) and not row.has_two_levels:
        beside = output_beside(written, _WORD)
        steps = "smooth" if row.blocks else "shift,correct" if row.is_relative else _STEPS
        anew = f" (data then choose anew which attentions are in {row.title})" if attends else ""
        what = "to train it block by block" if anew_for_blocks else f"to lose less{anew}"
        lines.append(f"{what}: {shell_line('qdqtool', *_same(args), '--condition', steps, *beside)}")
        trained = Path(beside[-1].removeprefix("-o="))
    if row != INT8:
        return lines
    train = command(
        "finetune", file_word(trained), *data_words(args, calibrates=False), "--blocks", "--ranges", "learn"
    )
    return [*lines, f"{'then' if lines else 'to lose less'}: {train}"]


def peeled_first(args: argparse.Namespace, written: Path) -> list[str]:
    """Weights are edited in a model without Q/DQ: take them out, then insert with --condition auto."""
    asked = parse(args.trt_version) if args.trt_version else None
    newest = max(one.version for one in RELEASES if one.version.has_caches)
    version = args.trt_version if asked is not None and asked.has_caches else newest.text
    source = Path(args.model)
    plain = source.with_name(f"{source.name.removesuffix('.onnx').removesuffix('.qdq')}.plain.onnx")
    files = [*option("-o", plain), *option("--cache", plain.with_suffix(".cache"))]
    peel = peel_any(source, version, *files)  # as --requantize takes them out
    same = [word for word in _same(args) if word != "--requantize"]
    same = [file_word(plain) if word == args.model else word for word in same]
    same += known_preprocess_words(args)
    insert = shell_line("qdqtool", *same, "--condition", "auto", *output_beside(written, _WORD))
    return [f"to edit its weights, take its Q/DQ out: {peel}", f"then: {insert}"]


def _same(args: argparse.Namespace) -> Sequence[str]:
    """The user's words of `insert` as `finer_words` has them, without --condition."""
    return without_option("--condition", finer_words(args))
