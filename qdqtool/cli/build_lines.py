# SPDX-License-Identifier: Apache-2.0
"""The line of trtexec that ends a next step: with sizes from data, or to be filled in, and where trtexec is."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.command_lines import next_line, trtexec_line

if TYPE_CHECKING:
    from qdqtool.emit.job import Tensor
    from qdqtool.trtversion import TrtVersion

_JETPACK = re.compile(r"(?:^|=)(?:jp|jetpack)[ _-]?\d", re.I)


def where_trtexec_is(version: TrtVersion, args: argparse.Namespace) -> list[str]:
    """Where trtexec is on a Jetson; from TensorRT 11 on, which is for all of them, only where JetPack was named."""
    from qdqtool.emit.trtexec import JETSON

    named = any(_JETPACK.search(str(word)) for word in args.words)
    if not any("JetPack" in board for board in version.platforms) or not (version.has_caches or named):
        return []
    return [f"on a Jetson trtexec is {JETSON}, which is not on PATH"]


def inputs_of_file(model: object) -> tuple[Tensor, ...]:
    """The inputs of a model file; none where it is no file."""
    from qdqtool.emit.input_shapes import tensors_of
    from qdqtool.graph.io import open_model

    return tensors_of(open_model(model).proto)[0] if isinstance(model, str | Path) else ()


def shape_flag(inputs: Sequence[Tensor], data: Mapping[str, Any] | None, batch: int) -> list[str]:
    """`--shapes` for trtexec where the model leaves sizes open; with SIZE for those that are not known."""
    from qdqtool.emit.input_shapes import blank_shape_words, shape_words

    return shape_words(inputs, data, batch) or blank_shape_words(inputs, data, batch)


def build_lines(words: Sequence[str]) -> list[str]:
    """The line that builds an engine; where a size is not known, what to put there first."""
    line = trtexec_line(words)
    if not any(word.startswith("--shapes=") and "SIZE" in word for word in words):
        return [next_line(line)]
    return [
        "the model has a dynamic size, and no data gives it: trtexec would take 1",
        f"next, with your size for SIZE: {line}",
    ]
