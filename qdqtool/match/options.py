# SPDX-License-Identifier: Apache-2.0
"""What the user may decide about the places of pairs. `-h` reads these declarations: no onnx, and of rules, names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from qdqtool.errors import QdqError
from qdqtool.options import ADVANCED, Option, TextOption, check_choices, option
from qdqtool.rule_files import format_rows
from qdqtool.target_options import TARGETS, TargetOptions
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.rulebook import RuleBook

FloatHeads = Literal["regression", "all", "none"]
WeightScales = Literal["per-channel", "per-tensor"]
DepthwiseType = Literal["int8", "float"]
DecoderType = Literal["float", "int8"]
AttentionType = Literal["auto", "int8", "float"]

_ROWS = [f"{row['name']}{' (weights alone)' if row.get('roles') == ['weight'] else ''}" for row in format_rows()]
_FORMATS = ", ".join([f"{_ROWS[0]} (default)", *_ROWS[1:], "mixed (by operator)"])
_DIGITS = 9  # of a number of operators
_BLOCKS = (16, 32, 64, 128)  # that TensorRT for RTX builds into a product


@dataclass(frozen=True)
class KeepFloat:
    """What `--keep-float` says.

    Attributes:
        count: how many operators are searched for, or "auto"; None where that is not said.
        names: operators that stay in float in any case.
    """

    count: int | Literal["auto"] | None = None
    names: tuple[str, ...] = ()


def keep_float(text: str) -> KeepFloat:
    """Read `auto`, a number, names of operators with commas between, or one of the first and names.

    Exporters name operators by numbers, too: after a comma at the end every word is a name.

    Raises:
        argparse.ArgumentTypeError: an empty name, or two of auto and numbers.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) > 1 and not words[-1]:
        asked, words = [], words[:-1]
    else:
        asked = [word for word in words if _is_count(word)]
    if not all(words) or len(asked) > 1:
        hint = " (a comma at the end makes names of numbers)" if all(words) else ""
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto, nor a number, nor names of operators{hint}")
    names = tuple(dict.fromkeys(word for word in words if word not in asked))
    if not asked:
        return KeepFloat(0, names)
    return KeepFloat("auto" if asked == ["auto"] else int(asked[0]), names)


def _is_count(word: str) -> bool:
    return word == "auto" or (word.isdecimal() and len(word) <= _DIGITS)


def names_word(names: Sequence[str]) -> str:
    """Names of operators as `keep_float` reads them."""
    return ",".join([*names, ""] if any(map(_is_count, names)) else names)


def names_only(text: str) -> tuple[str, ...]:
    """Names of operators with commas between.

    Raises:
        argparse.ArgumentTypeError: an empty name, auto, or a number, which are insert's.
    """
    found = keep_float(text)
    if found.count != 0 or not found.names:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names; insert decides how many stay in float")
    return found.names


@dataclass(frozen=True)
class PlanOptions(TargetOptions):
    """What the user may decide about the places of pairs, beside `TargetOptions`.

    Attributes:
        heads: patterns (searched) of node, tensor or output names whose weighted operators stay in float.
        not_heads: patterns of heads that are quantized anyway.
        keep_float: names of weighted operators (or of what they make) that stay in float.
        depthwise: None for the target's policy.
        attention: "auto" decides by `Decisions.attention`.
        format: number format of the pairs, a row of rules/formats.toml.
        block: for formats with blocks; None is the longest of the format's lengths that divides the axis.
    """

    target: str = option(
        "gpu",
        "--target",
        "gpu (default): around fused groups; rtx: TensorRT for RTX; dla: every tensor",
        choices=TARGETS,
    )
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion,
        parse,
        Option(
            "--trt-version", "TensorRT version whose rules place the pairs (default: the newest known)", metavar="V"
        ),
    )
    float_heads: FloatHeads = option(
        "regression",
        "--float-heads",
        "detection heads left in float; regression: box values (default %(default)s)",
        choices=get_args(FloatHeads),
    )
    heads: tuple[str, ...] = option(
        (), "--heads", "more operators left in float: node, tensor or output names", metavar="RE", repeated=True
    )
    not_heads: tuple[str, ...] = option(
        (), "--not-heads", "heads that are quantized anyway", metavar="RE", repeated=True
    )
    keep_float: tuple[str, ...] = option(
        (), "--keep-float", "operators left in float", metavar="NAMES", read=names_only
    )
    rules: Path | None = option(
        None, "--rules", "a rules file of your own that extends the target's", metavar="F", convert=Path, group=ADVANCED
    )
    weights: WeightScales = option(
        "per-channel",
        "--weights",
        "scales of weights: one per output channel (default), or one per weight, which is coarser",
        choices=get_args(WeightScales),
        group=ADVANCED,
    )
    depthwise: DepthwiseType | None = option(
        None,
        "--depthwise",
        "depthwise convolutions in INT8, or left in float (default: as the target's rules say)",
        choices=get_args(DepthwiseType),
        group=ADVANCED,
    )
    decoder: DecoderType = option(
        "float",
        "--decoder",
        "decoder of a DETR-like detector: left in float (default), or in INT8 with float boxes",
        choices=get_args(DecoderType),
        group=ADVANCED,
    )
    attention: AttentionType = option(
        "auto",
        "--attention",
        "attentions that are built as one kernel: quantized in the format of the pairs where data show that little is"
        " lost (auto, the default), all of them (int8, also for FP8), or none",
        choices=get_args(AttentionType),
        group=ADVANCED,
    )
    format: str = option(
        "int8",
        "--format",
        f"number format of the pairs: {_FORMATS}; see docs/formats.md",
        metavar="F",
    )
    block: int | None = option(
        None,
        "--block",
        "values of an INT4 weight that share a scale (default: the largest of 128, 64, 32 that divides the axis)",
        metavar="N",
        read=int,
        group=ADVANCED,
    )

    def __post_init__(self) -> None:
        """Refuse a target that is none, and a word that is none of an option's choices."""
        super().__post_init__()
        check_choices(self)
        if self.block is not None and self.block not in _BLOCKS:
            raise QdqError(
                f"--block {self.block}", "is no length of a block", f"choose {' or '.join(map(str, _BLOCKS))}"
            )

    def rule_book(self) -> RuleBook:
        """What the target can do at this version, the user's own rules before it, weight scales as asked for.

        Raises:
            QdqError: a rules file that is missing or not of the schema.
        """
        from qdqtool.formats import INT8, MIXED  # `-h` does without these two
        from qdqtool.rulebook import load_rules

        number_format = INT8.name if self.format == MIXED else self.format  # mixed: each format has a plan of its own
        rules = load_rules(self.target, self.trt_version, self.rules, number_format)
        if self.weights == "per-channel":
            return rules
        return replace(rules, weights=tuple(replace(rule, axis=None) for rule in rules.weights))
