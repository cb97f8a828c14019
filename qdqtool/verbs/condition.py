# SPDX-License-Identifier: Apache-2.0
"""The verb `condition`: open, edit weights, hand back the kind that was given. What is edited is decided elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

import onnx

from qdqtool.amax.method_table import parse_method
from qdqtool.conditioning.edits import parse_steps
from qdqtool.conditioning.run import ConditionSettings, condition_model
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.display import Displayed, counted, model_name
from qdqtool.evaluation.known_preprocess import with_known
from qdqtool.graph.finite_constants import require_finite
from qdqtool.graph.io import ModelSource, ModelT, give_back, open_model
from qdqtool.output_paths import check_target, files_of, output_path
from qdqtool.precision.widen import refuse_typed
from qdqtool.runtime.memory import release_freed_memory
from qdqtool.verbs.condition_options import ConditionOptions

if TYPE_CHECKING:
    from qdqtool.conditioning.edits import Conditioned
    from qdqtool.data.loader import Data, DataLoader


_SHOWN = 8
_STEPS = {
    "relu6": ("Relu", "limited to 6"),
    "equalize": ("tensor", "equalized in the weights around it"),
    "smooth": ("tensor", "equalized one by one"),
    "shift": ("tensor", "with channels moved to the middle of the range"),
    "clip": ("operator", "with clipped weights"),
    "correct": ("operator", "with a corrected bias"),
}
_NODES = {"smooth": "a Mul", "shift": "an Add"}


@dataclass(frozen=True, repr=False)
class ConditionResult(Displayed, Generic[ModelT]):
    """A conditioned model, of the kind that was given (a path for a path), and what was done to it.

    Attributes:
        model: a path, ModelProto or gs.Graph.
        done: every edit, what was left alone, how far the float outputs moved.
    """

    model: ModelT
    done: Conditioned

    def headline(self) -> str:
        """How many edits there are, and after how many samples."""
        done = self.done
        return f"{model_name(self.model)}: {counted(len(done.edits), 'edit')}, {counted(done.samples, 'sample')}"

    def summary(self) -> list[str]:
        """What `qdqtool condition` prints, without what to do next."""
        lines = [self.headline()]
        for step, (what, how) in _STEPS.items():
            if self.done.count(step):
                nodes = sum(edit.step == step and bool(edit.added) for edit in self.done.edits)
                by_node = f", {nodes} by {_NODES[step]}" if step in _NODES else ""
                lines.append(f"  {step}: {counted(self.done.count(step), what)} {how}{by_node}")
        return lines + _effect(self.done)


def _effect(done: Conditioned) -> list[str]:
    """What was predicted, what stayed, what moved."""
    lines = []
    if done.before is not None and done.after is not None and (done.count("equalize") or done.count("smooth")):
        lines.append(
            f"predicted SQNR of the operators: worst {done.before.worst:.1f} -> {done.after.worst:.1f} dB, "
            f"mean {done.before.mean:.1f} -> {done.after.mean:.1f} dB (each alone, simulated)"
        )
    if done.kept:
        most = max(one.of_range for one in done.kept.values())
        steps = "equalize, smooth and shift" if done.count("shift") else "equalize and smooth"
        lines.append(f"{steps} keep the FP32 results: outputs changed by at most {most:.0e} of their range")
    if done.count("relu6") or done.count("clip") or done.count("correct"):
        steps = "relu6, clip and correct" if done.count("relu6") else "clip and correct"
        lines.append(f"{steps} change the FP32 results; SQNR of the FP32 outputs against the original:")
        lines += [f"  {name}: {one.decibel:.1f} dB" for name, one in list(done.moved.items())[:_SHOWN]]
        if len(done.moved) > _SHOWN:
            lines.append(f"  and {len(done.moved) - _SHOWN} more (--json)")
    return lines


@overload
def condition(
    model: onnx.ModelProto,
    data: Data | DataLoader,
    options: ConditionOptions | None = ...,
    output: str | Path | None = ...,
) -> ConditionResult[onnx.ModelProto]: ...


@overload
def condition(
    model: str | os.PathLike[str],
    data: Data | DataLoader,
    options: ConditionOptions | None = ...,
    output: str | Path | None = ...,
) -> ConditionResult[Path]: ...


@overload
def condition(
    model: ModelSource, data: Data | DataLoader, options: ConditionOptions | None = ..., output: str | Path | None = ...
) -> ConditionResult[Any]: ...


def condition(
    model: ModelSource,
    data: Data | DataLoader,
    options: ConditionOptions | None = None,
    output: str | Path | None = None,
) -> ConditionResult[Any]:
    """Edit the weights of a plain model so that it quantizes better.

    Equalize, smooth and shift keep the float function, checked on the data to 1e-5 of the range of each output (root of
    the mean square); where they would not, they divide by powers of two or are left out, as the notes say. relu6, clip
    and correct change it, and the result says by how much. Opset and names stay.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        data: what to loader; see `open_loader`.
        options: steps, method, plan.
        output: file to write; for a path the default is `<name>.conditioned.onnx` beside it.

    Raises:
        QdqError: see `open_model`, `open_loader` and `condition_model`; an unknown step. Nothing is written then.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
    """
    options = options or ConditionOptions()
    steps = parse_steps(options.steps)
    parse_method(options.method)  # a slip here is reported before a large model is read
    opened = open_model(model).with_store()
    require_finite(opened.view)
    refuse_typed(opened, "condition edits FP32 weights")
    target = output_path(opened, output, ".conditioned.onnx")
    check_target(target, [*opened.files, *files_of(data), options.plan.rules])
    options, said = with_known(options, opened, data, anew=True)
    loader = open_loader(data, inputs_of(opened.proto.graph), options.data_options)
    settings = ConditionSettings(steps, options.plan, options.method, options.provider, options.factors, options.muls)
    done = condition_model(opened, loader, settings)
    release_freed_memory(cycles=True)
    done = replace(done, notes=(*said, *done.notes))
    return ConditionResult(give_back(opened.proto, opened, target), done)
