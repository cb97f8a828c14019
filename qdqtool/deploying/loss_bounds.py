# SPDX-License-Identifier: Apache-2.0
"""How much of a metric INT8 may lose before `deploy` warns, and before it keeps the model without INT8 by itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LossBounds:
    """Absolute points of a metric.

    Attributes:
        warned: a loss above it is told as a warning.
        useless: INT8 that loses more, with all of its interval, is not kept unless `--max-loss` allows it.
    """

    warned: float
    useless: float


# Agreement counts every answer that changes, also from wrong to right, and AP of boxes every pixel that they move: it
# says that something is lost long before it says how much. With 0.67 of agreement lost fastestdet_coco loses 0.04 of
# its mAP on a DLA (docs/deploy.md), so that INT8 is left only where nothing agrees. A loss of 0.1 of
# fidelity is an SQNR of 10 dB.
_LABELS = LossBounds(0.02, 0.1)
_BOUNDS = {
    "agreement": LossBounds(0.15, 0.9),
    "agreement1": LossBounds(0.05, 0.3),
    "fidelity": LossBounds(0.1, 0.9),
}


def loss_bounds(metric: str) -> LossBounds:
    """The bounds of a metric, by the name that `MeasuredModel` has for it; those of labels for any other."""
    return _BOUNDS.get(metric, _LABELS)


def loss_warning(metric: str, said: str, loss: float) -> str:
    """What is told where the kept model loses a lot and nobody said how much it may lose; "" where it does not."""
    most = loss_bounds(metric).warned
    if not loss > most:
        return ""
    told = "" if metric not in _BOUNDS else "; --labels gives the loss of the task"
    return f"INT8 loses a lot: {said}{told}; --max-loss {most:g} keeps INT8 only where it loses no more"


_NO_LABELS = {
    "agreement": (
        "agreement of boxes falls long before mAP does; --labels of --data gives mAP: COCO's .json, or a folder of VOC "
        ".xml or YOLO .txt files"
    ),
    "agreement1": (
        "agreement counts every answer that changes, also from wrong to right; --labels of --data gives top-1: "
        "the word filename, a .csv of file and class, or a .npy"
    ),
}


def agreement_note(metric: str) -> str:
    """How agreement without labels differs from the task's metric, and how to give labels; "" of other metrics."""
    note = _NO_LABELS.get(metric, "")
    return f"without labels: {note}" if note else ""
