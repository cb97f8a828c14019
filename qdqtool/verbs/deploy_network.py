# SPDX-License-Identifier: Apache-2.0
"""What `deploy` knows of a model's outputs, as Gst-nvinfer must be told: of the task that models are judged by."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.emit.deepstream_network import DeepStreamNetwork
from qdqtool.emit.job import Tensor
from qdqtool.evaluation.coco_names import shown_names
from qdqtool.evaluation.decode.head import HeadDecoder
from qdqtool.evaluation.tasks import BoxAgreement, ClassAgreement, JudgingTask, LabeledBoxes, LabeledClasses

_ROW = 6  # x1, y1, x2, y2, score, class


def network_of(task: JudgingTask, names: str | None, outputs: Sequence[Tensor], labels: str) -> DeepStreamNetwork:
    """What Gst-nvinfer makes of the outputs.

    Args:
        task: what the model is judged by.
        names: its classes, as `--names` gives them; None for none.
        outputs: the model's.
        labels: what the file of class names is called, where there is one.
    """
    if isinstance(task, (LabeledClasses, ClassAgreement)):
        shown = shown_names(names)
        return DeepStreamNetwork("classifier", names=shown, labels=labels if shown else "")
    decoder = task.decoder if isinstance(task, (LabeledBoxes, BoxAgreement)) else None
    if not isinstance(decoder, HeadDecoder):
        shown = shown_names(names)
        return DeepStreamNetwork(names=shown, labels=labels if shown else "")
    shown = shown_names(names, decoder.head.classes)
    shapes = [tensor.shape for tensor in outputs]
    rows = decoder.family == "nms" and len(shapes) == 1 and shapes[0] is not None and shapes[0][-1] == _ROW
    return DeepStreamNetwork(
        "detector",
        decoder.family,
        shown,
        rows=rows,
        suppressed=decoder.family == "nms",
        iou=decoder.head.iou,
        labels=labels if shown else "",
    )
