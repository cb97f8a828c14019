# SPDX-License-Identifier: Apache-2.0
"""The next step after a calibration cache: the line that builds an engine of it, or the script that does."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qdqtool.cli.build_lines import build_lines, inputs_of_file, where_trtexec_is
from qdqtool.cli.next_steps import without_option
from qdqtool.command_lines import again, next_line, run_script, shell_line, stem_of
from qdqtool.display import counted

if TYPE_CHECKING:
    from qdqtool.emit.layers import FloatLayer
    from qdqtool.trtversion import TrtVersion

_MOST_LAYERS = 12  # that a printed line names


_AGAIN = "the next step writes the same cache again, and the script"


def after_cache(
    args: argparse.Namespace,
    files: tuple[object, object],
    version: TrtVersion,
    emitted: Mapping[str, object],
    layers: Sequence[FloatLayer] = (),
    data: Mapping[str, Any] | None = None,
    max_batch: int | None = None,
    *,
    has_all_scales: bool,
) -> list[str]:
    """Build an engine from a plain model and its cache, with the flags that the version's trtexec takes.

    Nothing for versions before 6.0, whose trtexec is not known here.
    """
    from qdqtool.emit import EmitJob
    from qdqtool.emit.input_shapes import blank_shape_words
    from qdqtool.emit.trtexec import trtexec_arguments
    from qdqtool.emit.trtexec_flags import has_flag

    if not has_flag("--onnx", version):
        return []
    target, (model, cache) = args.target, files
    kept = tuple(layers) if len(layers) <= _MOST_LAYERS and has_flag("--layerPrecisions", version) else ()
    job = EmitJob(str(model), str(cache), stem_of(model), target, version, kept, {}, inputs_of_file(model))
    job = replace(job, data=data or {}, batch=max_batch or 1, max_batch=max_batch, kinds=frozenset(emitted))
    lost = len(layers) - len(job.named)
    if lost and (has_all_scales or has_flag("--layerPrecisions", version)):  # a line would build them in INT8
        if "polygraphy-script" in emitted:
            return [_polygraphy_line(files, emitted["polygraphy-script"], target, version)]
        if "deepstream" in emitted:
            named = counted(sum(bool(layer.name) for layer in layers), "layer")
            return [
                f"{emitted['deepstream']} names the {named} that stay in float; Gst-nvinfer builds the engine by it"
            ]
        takes_names = has_flag("--layerPrecisions", version)
        step = next_line(again(args, "--emit", "trtexec" if takes_names else "polygraphy-script"))
        if takes_names:
            return [
                f"{counted(lost, 'layer')} must stay in float, too many to name in one line: a script does it",
                _AGAIN,
                step,
            ]
        in_int8 = "this trtexec takes no names of layers and builds them in INT8"
        return [
            f"{counted(lost, 'layer')} should stay in float; {in_int8}, a script of Polygraphy in float",
            _AGAIN,
            step,
        ]
    if "deepstream" in emitted:
        return [
            f"Gst-nvinfer builds the engine by {emitted['deepstream']} at its first start, without FP16",
            f"for a script that builds it before that, with FP16: {again(args, '--emit', 'trtexec')}",
        ]
    words = trtexec_arguments(job)
    blank = [] if any(word.startswith("--shapes=") for word in words) else blank_shape_words(job.inputs, data)
    return [*where_trtexec_is(version, args), *build_lines([*words, *blank])]


def _polygraphy_line(files: tuple[object, object], script: object, target: str, version: TrtVersion) -> str:
    """Build with Polygraphy, whose script tells every layer that stays in float."""
    from qdqtool.emit.polygraphy_script import polygraphy_words

    words = polygraphy_words(str(files[0]), str(files[1]), str(script), target, version)
    return next_line(shell_line(*words, "--save-engine", f"{stem_of(files[0])}.engine"))


def after_script(
    args: argparse.Namespace,
    files: tuple[object, object],
    version: TrtVersion,
    emitted: Mapping[str, object],
    *,
    tells_all: bool,
) -> list[str]:
    """Run the script that builds the engine; where trtexec cannot be told what stays in float, one that can be."""
    if tells_all:
        return [run_script(emitted["trtexec"])]
    if "polygraphy-script" in emitted:
        return [_polygraphy_line(files, emitted["polygraphy-script"], args.target, version)]
    words = [*without_option("--emit", args.words), "--emit", "polygraphy-script"]
    why = "as this trtexec takes no names of layers; a script of Polygraphy keeps it in float"
    said = f"{emitted['trtexec']} builds in INT8 what should stay in float, {why}"
    return [said, _AGAIN, next_line(shell_line("qdqtool", *words))]
