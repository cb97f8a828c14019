# SPDX-License-Identifier: Apache-2.0
"""The face detector's images, its decoding, and the judgment of an INT8 model against FP32. Not how one is made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

    Floats = npt.NDArray[np.floating[Any]]

CALIBRATION_IMAGES = 16
WIDTH, HEIGHT = 320, 240
FACE_SCORE, NMS_IOU, MATCH_IOU = 0.7, 0.3, 0.5
ANCHORS = ((8, (10, 16, 24)), (16, (32, 48)), (32, (64, 96)), (64, (128, 192, 256)))
CENTER_VARIANCE, SIZE_VARIANCE = 0.1, 0.2


@dataclass(frozen=True)
class Verdict:
    """An INT8 model against FP32: SQNR in dB over all evaluation samples, faces matched one to one at IoU >= 0.5."""

    scores_db: float
    boxes_db: float
    recall: float
    precision: float
    mean_iou: float
    faces: int
    activation_pairs: int
    objections: str


# The data: the split by number in the file name is the one that has the published 290 faces.


def prepare(images: Path, work: Path) -> None:
    """Write the calibration samples (npz, npy, and reversed) and the evaluation samples, float32 [n, 3, 240, 320]."""
    import cv2
    import numpy as np

    files = sorted(images.glob("*.jpg"), key=lambda path: int(path.stem))
    samples = np.stack([_sample(cv2.imread(str(path))) for path in files])
    calibration = samples[:CALIBRATION_IMAGES]
    for order, batch in (("forward", calibration), ("reversed", calibration[::-1].copy())):
        (work / order).mkdir()
        np.savez(work / order / "samples.npz", input=batch)
        np.save(work / order / "samples.npy", batch)
    np.save(work / "evaluation.npy", samples[CALIBRATION_IMAGES:])


def _sample(image: Any) -> Floats:
    import cv2
    import numpy as np

    rgb = cv2.resize(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), (WIDTH, HEIGHT)).astype(np.float32)
    return np.ascontiguousarray(((rgb - 127) / 128).transpose(2, 0, 1))


# The detector after its last layer, and how two sets of faces are compared.


def priors() -> Floats:
    """SSD priors as [4420, 4]: center x, center y, width, height, as fractions of the image."""
    import numpy as np

    rows = [
        ((x + 0.5) * stride / WIDTH, (y + 0.5) * stride / HEIGHT, size / WIDTH, size / HEIGHT)
        for stride, sizes in ANCHORS
        for y in range(math.ceil(HEIGHT / stride))
        for x in range(math.ceil(WIDTH / stride))
        for size in sizes
    ]
    anchors: Floats = np.clip(np.array(rows), 0, 1)
    return anchors


def decode(offsets: Floats, anchors: Floats) -> Floats:
    """Corners x0, y0, x1, y1 from a head's raw offsets, both [n, 4]."""
    import numpy as np

    center = offsets[:, :2] * CENTER_VARIANCE * anchors[:, 2:] + anchors[:, :2]
    size = np.exp(offsets[:, 2:] * SIZE_VARIANCE) * anchors[:, 2:]
    return np.concatenate((center - size / 2, center + size / 2), axis=1)


def iou(box: Floats, boxes: Floats) -> Floats:
    """Intersection over union of one box [4] with many [n, 4]."""
    import numpy as np

    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    shared: Floats = np.clip(sides, 0, None).prod(axis=1)
    area: Floats = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    union: Floats = (box[2:] - box[:2]).prod() + area - shared
    return shared / union


def faces(scores: Floats, offsets: Floats, anchors: Floats | None) -> Floats:
    """Boxes [n, 4] of the faces of one image after non-maximum suppression, highest score first.

    Without anchors the offsets are boxes already: the graph decodes them.
    """
    import numpy as np

    certain = np.flatnonzero(scores[:, 1] > FACE_SCORE)
    boxes: Floats = offsets[certain] if anchors is None else decode(offsets[certain], anchors[certain])
    left, kept = np.argsort(-scores[certain, 1], kind="stable"), []
    while len(left):
        kept.append(left[0])
        left = left[1:][iou(boxes[left[0]], boxes[left[1:]]) <= NMS_IOU]
    return boxes[kept]


def matches(found: Floats, truth: Floats) -> list[float]:
    """IoU of each found face with the best free true one, highest score first; only those of MATCH_IOU and more."""
    import numpy as np

    free, overlaps = np.ones(len(truth), bool), []
    for box in found:
        candidates = np.where(free, iou(box, truth), -1.0)
        if len(truth) and candidates.max() >= MATCH_IOU:
            free[candidates.argmax()] = False
            overlaps.append(float(candidates.max()))
    return overlaps


def outputs(model: Path, samples: Floats) -> tuple[Floats, Floats]:
    """Scores [n, 4420, 2] and boxes [n, 4420, 4] by the reference executor for Q/DQ models."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.log_severity_level = 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    answers = [session.run(["scores", "boxes"], {"input": sample[None]}) for sample in samples]
    return np.concatenate([a[0] for a in answers]), np.concatenate([a[1] for a in answers])


def sqnr(reference: Floats, found: Floats) -> float:
    """10 log10(sum ref^2 / sum (ref - x)^2), in double precision."""
    import numpy as np

    ref = reference.astype(np.float64)
    return float(10 * np.log10((ref**2).sum() / ((ref - found) ** 2).sum()))


def judge(model: Path, plain: Path, evaluation: Path, *, decoded: bool = False) -> Verdict:
    """The verdict on a Q/DQ model, with the plain model's answers as the truth; `decoded` where it gives boxes."""
    import numpy as np
    import onnx

    samples, anchors = np.load(evaluation), None if decoded else priors()
    reference, answers = outputs(plain, samples), outputs(model, samples)
    truth = [faces(s, b, anchors) for s, b in zip(*reference, strict=True)]
    found = [faces(s, b, anchors) for s, b in zip(*answers, strict=True)]
    overlaps = [value for f, t in zip(found, truth, strict=True) for value in matches(f, t)]
    graph = onnx.load(str(model)).graph
    return Verdict(
        scores_db=sqnr(reference[0], answers[0]),
        boxes_db=sqnr(reference[1], answers[1]),
        recall=len(overlaps) / sum(map(len, truth)),
        precision=len(overlaps) / max(1, sum(map(len, found))),
        mean_iou=float(np.mean(overlaps)) if overlaps else 0.0,
        faces=sum(map(len, truth)),
        activation_pairs=len(list(_activation_quantizers(graph))),
        objections=", ".join(_objections(graph)),
    )


def _activation_quantizers(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """QuantizeLinear nodes whose input is computed, neither a constant nor a constant's shadow."""
    constant = {value.name for value in graph.initializer}
    constant.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    return (node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] not in constant)


def _objections(graph: onnx.GraphProto) -> Iterator[str]:
    """What a TensorRT GPU build has against the pairs: uint8, zero points, int32 biases, a pair inside Conv-BN-act."""
    from onnx import TensorProto, numpy_helper

    constants = {value.name: value for value in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    linear = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    zeros = [constants[node.input[2]] for node in linear if len(node.input) > 2]
    counts = {
        "uint8": sum(zero.data_type == TensorProto.UINT8 for zero in zeros),
        "int32": sum(zero.data_type == TensorProto.INT32 for zero in zeros),
        "zero point": sum(bool(numpy_helper.to_array(zero).any()) for zero in zeros),
        "Q inside Conv-BN-Relu": _splits(graph),
    }
    return (f"{count} {what}" for what, count in counts.items() if count)


def _splits(graph: onnx.GraphProto) -> int:
    """Quantizers that read a Conv or BatchNormalization whose pair is read by BatchNormalization or Relu."""
    maker = {name: node.op_type for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def behind(quantizer: onnx.NodeProto) -> Iterator[str]:
        for dequantizer in readers.get(quantizer.output[0], []):
            yield from (node.op_type for node in readers.get(dequantizer.output[0], []))

    heads = (q for q in _activation_quantizers(graph) if maker.get(q.input[0]) in ("Conv", "BatchNormalization"))
    return sum(any(op in ("BatchNormalization", "Relu") for op in behind(q)) for q in heads)


def scales_of(model: Path) -> dict[str, bytes]:
    """The bytes of each quantizer's scale, by the name of the tensor it reads."""
    import onnx

    graph = onnx.load(str(model)).graph
    values = {value.name: onnx.numpy_helper.to_array(value).tobytes() for value in graph.initializer}
    return {node.input[0]: values[node.input[1]] for node in graph.node if node.op_type == "QuantizeLinear"}
