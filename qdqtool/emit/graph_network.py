# SPDX-License-Identifier: Apache-2.0
"""What a model finds, of its graph and its class names alone, for the file of Gst-nvinfer. No model is run here.

`deploy` knows more: there the values of the outputs tell a detector's family (`workflows/deploy_network.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.emit.deepstream_network import ROW, DeepStreamNetwork
from qdqtool.emit.job import Tensor
from qdqtool.evaluation.coco_names import shown_names
from qdqtool.graph.class_rows import class_rows
from qdqtool.graph.view import GraphView


def network_of_graph(
    view: GraphView, outputs: Sequence[Tensor], names: str | None, labels: str
) -> DeepStreamNetwork | None:
    """What Gst-nvinfer makes of the outputs; None without names, which its parsers need.

    Raises:
        QdqError: names that cannot be read.
    """
    if names is None:
        return None
    shown = shown_names(names)
    (shape,) = (one.shape for one in outputs) if len(outputs) == 1 else (None,)
    rows = class_rows(view).get(outputs[0].name) if shape is not None and len(shape) == 3 and shape[2] == ROW else None
    if rows is not None:
        family = "rows" if rows == "dense" else "nms"
        return DeepStreamNetwork("detector", family, shown, rows=True, suppressed=rows == "picked", labels=labels)
    if shape is not None and shape[1:2] == (len(shown),) and all(side == 1 for side in shape[2:]):
        return DeepStreamNetwork("classifier", names=shown, labels=labels)
    return DeepStreamNetwork(names=shown, labels=labels)
