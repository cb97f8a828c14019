# SPDX-License-Identifier: Apache-2.0
"""Formats of a cache, and how it is converted. Imports no numpy."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Literal, get_args

from qdqtool.options import Option, TextOption, option
from qdqtool.trtversion import TrtVersion, parse

Target = Literal["trt", "ort-flatbuffers", "ort-json", "tao-json", "polygraphy-script", "csv", "json"]
Source = Literal["trt", "ort-flatbuffers", "ort-json", "ort-text", "tao-json", "polygraphy-script", "csv", "json"]

TARGETS: tuple[Target, ...] = get_args(Target)
SOURCES: tuple[Source, ...] = get_args(Source)


def _new_name(word: str) -> tuple[str, str]:
    old, equals, new = word.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{word} is not OLD=NEW")
    return old, new


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert.

    Attributes:
        target: the format to write.
        source: the format of the input; None guesses by content.
        trt_version: the version for the header; None keeps that of the input.
        sanitize_names: whether names with a `:` get others; the model must then take the same.
        model_names: every tensor name of that model, so that both get the same new names and none is taken; whoever
            gives them renames the model.
        shift_names: added to names that are numbers; None leaves them.
        rename: old name -> new name; it comes before `shift_names` and `sanitize_names`.
    """

    target: Target = option(
        MISSING, "--to", "the format to write", choices=TARGETS, metavar="|".join(TARGETS), required=True
    )
    source: Source | None = option(
        None, "--from", "the format of CACHE (default: by its content)", choices=SOURCES, metavar="FORMAT"
    )
    trt_version: TextOption[TrtVersion] = TextOption(
        TrtVersion, parse, Option("--trt-version", "for the header: 8502, 8.5.2, jp5.1.2, drive6.0.9 ...", metavar="V")
    )
    sanitize_names: bool = option(
        False, "--sanitize-names", "put _ for the : in names; the model must take the same names"
    )
    model_names: Sequence[str] = ()
    shift_names: int | None = option(
        None,
        "--shift-names",
        "add N to the names that are numbers, as -8: for the cache of another export, as cache check says",
        metavar="N",
        read=int,
    )
    rename: Mapping[str, str] = option(
        MISSING,
        "--rename",
        "give one entry another name; may be given again",
        metavar="OLD=NEW",
        read=_new_name,
        repeated=True,
        convert=dict,
        default_factory=dict,
    )
