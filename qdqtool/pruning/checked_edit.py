# SPDX-License-Identifier: Apache-2.0
"""An edit held against the masked original: it differs little, or the group that is at fault is named."""

from __future__ import annotations

from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.pruning.check import Differences, masked_original, measure_differences
from qdqtool.pruning.cut import Cut
from qdqtool.pruning.probe import ProbeRun, TensorFacts
from qdqtool.pruning.remove import remove_channels


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
