# SPDX-License-Identifier: Apache-2.0
"""Whether a pruned model is its masked original: where operators sum over channels, those that went count as 0.

Both run with their activations' Q/DQ seen through: a sum in another order may tip a rounding, which is empty of
the edit. Weights keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtool.errors import QdqError
from qdqtool.graph.edit import Editor
from qdqtool.graph.model import Model
from qdqtool.graph.order import remove_dead
from qdqtool.graph.view import GraphView, Use
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.probe import Feed, ProbeRun, TensorFacts
from qdqtool.pruning.remove import remove_channels
from qdqtool.pruning.weight_axes import is_contraction
from qdqtool.rule_files import operator_set
from qdqtool.runtime.executor import Executor, out_of_reach

Array = npt.NDArray[Any]
TOLERANCE = 1e-5  # of the largest magnitude of an output
INSIDE = 1e-4  # of a tensor's inside the model: sums in another order; a wrong channel makes a difference like 1
_LAYERS = 4  # times what the last bit of the input does: every layer rounds anew
_BOUNDED = frozenset({"Sigmoid", "Softmax", "HardSigmoid", "Tanh"})


def masked_original(model: Model, cut: Cut, facts: TensorFacts) -> Model:
    """A copy in which what operators read of channels that go is multiplied by 0 before they sum over it."""
    copy = model.copy()
    view = copy.view
    editor = Editor(view)
    original = cut.channels.view
    for node in original.nodes:
        if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or not is_contraction(original, node):
            continue
        name, twin = node.inputs[0], view.every[node.index]
        axis = 1 if node.op in ("Conv", "ConvTranspose", "Gemm") else len(cut.shape(name)) - 1
        kept = cut.kept(name).get(axis)
        if kept is None:
            continue
        shape = cut.channels.atoms.shape(name) or ()
        mask = np.zeros([size or 1 if place == axis else 1 for place, size in enumerate(shape)], np.float32)
        mask[(slice(None),) * axis + (kept,)] = 1
        kind = facts.types.get(original.root(name), np.dtype(np.float32))
        stored = editor.add_initializer(editor.unique_name(f"{name}_mask"), mask.astype(kind))
        masked = editor.unique_name(f"{name}_masked")
        editor.add_node("Mul", [twin.inputs[0], stored], masked, beside=twin, after=False)
        editor.reroute(Use(twin, 0), masked)
    editor.commit()
    return copy


def without_activation_pairs(model: Model) -> Model:
    """A copy whose operators read what a pair on an activation reads; pairs on constants stay."""
    copy = model.copy()
    view = copy.view
    editor = Editor(view)
    for node in view.nodes:
        for index, name in enumerate(node.inputs):
            if name and not view.is_constant(name) and view.root(name) != name:
                editor.reroute(Use(node, index), view.root(name))
    editor.commit()
    remove_dead(copy.graph)
    copy.changed()
    return copy


@dataclass(frozen=True)
class Differences:
    """How far a pruned model lies from its masked original.

    Attributes:
        outputs: the largest at an output of the model, relative to that output's largest magnitude.
        inside: the same of what weighted operators make, by the channels that stay: outputs may be saturated.
        tensor: where the larger one in units of its tolerance is.
        noise: how far the outputs of the original move when its input moves by the last bit; 0 where it was not asked.
    """

    outputs: float
    inside: float
    tensor: str
    noise: float = 0.0

    @property
    def small(self) -> bool:
        """Whether both are within their tolerances; that of the outputs is not below what rounding alone does."""
        return self.outputs <= max(TOLERANCE, _LAYERS * self.noise) and self.inside <= INSIDE


def measure_differences(masked: Model, pruned: Model, cut: Cut, run: ProbeRun) -> Differences:
    """Run a masked original and a pruned model, and compare outputs and what weighted operators make.

    Raises:
        QdqError: onnxruntime refuses one of them.
    """
    channels = cut.channels
    lacking = out_of_reach(masked)
    outputs = [name for name in channels.view.outputs if name not in lacking]
    floors = {name: 1.0 if _is_bounded(channels.view, name) else 0.0 for name in outputs}
    both = [without_activation_pairs(model) for model in (masked, pruned)]
    read = {name for node in both[0].graph.node for name in node.output} - {*floors, *lacking}
    names = [
        *floors,
        *dict.fromkeys(axis.tensor for axis in channels.axes if axis.role == "made" and axis.tensor in read),
    ]
    one, other = (run.executor(model, names) for model in both)
    worst = {True: (0.0, ""), False: (0.0, "")}
    for feed in run.feeds:
        expected, got = one.run(feed), other.run(feed)
        for name, array in expected.items():
            for axis, kept in cut.kept(name).items():
                array = np.take(array, kept, axis)
            difference = relative_difference(array, got[name], floors.get(name, 0.0))
            if not difference <= worst[name in floors][0]:
                worst[name in floors] = difference, name
    (at_outputs, output), (inside, within) = worst[True], worst[False]
    noise = 0.0
    if not at_outputs <= TOLERANCE and inside <= INSIDE:
        noise = max(_noise(one, feed, floors) for feed in run.feeds)
    return Differences(at_outputs, inside, output if not at_outputs <= TOLERANCE or not within else within, noise)


def checked_difference(model: Model, pruned: Model, cut: Cut, facts: TensorFacts, run: ProbeRun) -> Differences:
    """The difference, where it is small; else the first group that makes one by itself is named.

    Raises:
        QdqError: it is not small.
    """
    found, fault = _differences(model, pruned, cut, facts, run)
    if found is not None and found.small:
        return found
    for group in cut.channels.groups:
        own = Cut(cut.channels, [one for one in group.classes.tolist() if cut.gone[one]])
        if own.gone.any():
            alone, said = _differences(model, remove_channels(model, own), own, facts, run)
            if alone is None or not alone.small:
                raise _refusal(run.where, f"group {group.name}", alone, said)
    raise _refusal(run.where, "the groups together", found, fault)


def _differences(
    model: Model, pruned: Model, cut: Cut, facts: TensorFacts, run: ProbeRun
) -> tuple[Differences | None, str]:
    masked = masked_original(model, cut, facts)
    try:
        return measure_differences(masked, pruned, cut, run), ""
    except QdqError as error:  # the pruned model does not run: as wrong as one that computes something else
        return None, error.reason


def _refusal(where: object, what: str, found: Differences | None, fault: str) -> QdqError:
    said = fault
    if found is not None:
        said = f"{found.tensor} differs by {max(found.outputs, found.inside):.1e} of its largest magnitude"
    reason = f"the pruned model differs from the masked original by {what} ({said}), so nothing was written"
    return QdqError(where, reason, "--exclude the operators of that group (--explain shows them), and report it")


def _noise(executor: Executor, feed: Feed, floors: Mapping[str, float]) -> float:
    """How far outputs move when every float of the input moves by its last bit, upward or downward."""
    exact, largest = executor.run(feed), 0.0
    for towards in (np.inf, -np.inf):
        moved = {
            name: np.nextafter(array, np.asarray(towards, array.dtype)) if array.dtype.kind == "f" else array
            for name, array in feed.items()
        }
        found = executor.run(moved)
        differences = [relative_difference(exact[name], found[name], floor) for name, floor in floors.items()]
        largest = max(largest, *(one for one in differences if np.isfinite(one)), 0.0)
    return largest


def _is_bounded(view: GraphView, name: str) -> bool:
    """Whether an output comes from an operator whose values lie within 1, through operators that move them."""
    seen, stack = set[str](), [name]
    moving = operator_set("rearranging") | operator_set("copying") | {"Cast"}
    while stack:
        node = view.producer(stack.pop())
        if node is None or node.key in seen:
            continue
        seen.add(node.key)
        if node.op in _BOUNDED:
            return True
        stack += node.inputs if node.op == "Concat" else node.inputs[:1] if node.op in moving else []
    return False


def relative_difference(expected: Any, got: Any, floor: float = 0.0) -> float:
    """The largest difference, in units of the largest finite magnitude of `expected`; inf for other shapes or NaN."""
    if isinstance(expected, dict):
        return relative_difference(list(expected.values()), list(got.values()), floor)
    if isinstance(expected, list):
        pairs = zip(expected, got, strict=False)
        return (
            max((relative_difference(*pair, floor) for pair in pairs), default=0.0)
            if len(expected) == len(got)
            else float("inf")
        )
    expected, got = np.asarray(expected), np.asarray(got)
    if expected.shape != got.shape:
        return float("inf")
    if expected.dtype.kind != "f" and expected.dtype.name != "bfloat16":
        return 0.0 if np.array_equal(expected, got) else float("inf")
    x, y = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(x)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
        return float("inf")
    whole = max(float(np.abs(x[finite]).max(initial=0.0)), floor)
    apart = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
    return apart / whole if whole > 0 else apart
