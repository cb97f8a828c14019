# SPDX-License-Identifier: Apache-2.0
"""The command to try next where an INT8 model loses much, from the user's own options. Nothing is decided here."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping

# Destination of an option -> how it is written, and its default, which is left out.
_DATA: Mapping[str, tuple[str, object]] = {
    "preprocess": ("--preprocess", None),
    "batch": ("--batch", 1),
    "limit": ("--limit", None),
    "max_data": ("--max-data", 8 << 30),
    "provider": ("--provider", "cpu"),
    "workers": ("--workers", 1),
    "max_memory": ("--max-memory", None),
    "method": ("--method", None),
}
_INSERT: Mapping[str, tuple[str, object]] = {
    **_DATA,
    "target": ("--target", "gpu"),
    "trt_version": ("--trt-version", None),
    "rules": ("--rules", None),
    "float_heads": ("--float-heads", "regression"),
    "heads": ("--heads", []),
    "not_heads": ("--not-heads", []),
    "keep_float": ("--keep-float", None),
    "max_output_loss": ("--max-output-loss", None),
    "points_only": ("--points-only", False),
    "condition": ("--condition", ""),
    "fold_bn": ("--fold-bn", False),
    "output": ("-o", None),
}
_SENSITIVITY: Mapping[str, tuple[str, object]] = {**_DATA, "float_heads": ("--float-heads", "none")}


def conditioned_insert(args: argparse.Namespace) -> str:
    """The same `insert`, with --condition auto."""
    return _command("insert", args, _INSERT, condition="auto")


def insert_with_more_float(args: argparse.Namespace, most: float) -> str:
    """The same `insert`, with as much in float as a loss at the outputs of `most` takes."""
    return _command("insert", args, _INSERT, keep_float=None, max_output_loss=most)


def ranked_operators(args: argparse.Namespace) -> str:
    """`sensitivity` on the same model and data."""
    return _command("sensitivity", args, _SENSITIVITY)


def _command(verb: str, args: argparse.Namespace, options: Mapping[str, tuple[str, object]], **changes: object) -> str:
    words = ["qdqtool", verb, str(args.model), *_data_words(args.data)]
    for name, (option, default) in options.items():
        value = changes.get(name, getattr(args, name))
        if value == default:
            continue
        if value is True:
            words.append(option)
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [option, str(one)]
    return shlex.join(words)


def _data_words(data: object) -> list[str]:
    if isinstance(data, str):
        return ["--data", data]
    return ["--load-inputs", *map(str, getattr(data, "paths", ()))]
