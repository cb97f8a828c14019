# SPDX-License-Identifier: Apache-2.0
"""What Gst-nvinfer makes of a model's outputs: the keys after those of the input, and the file of labels.

Keys and values: the Gst-nvinfer guide and gstnvinfer_property_parser.h. NvDsInferParseYolo is the parser of
marcoslucianops/DeepStream-Yolo: rows of x1, y1, x2, y2, score, class in pixels (nvdsparsebbox_Yolo.cpp). No other
parser is named here: a wrong one reads garbage, and network-type=100 hands the tensors to the application.
With that type nothing reads the labels (NvDsInferNetworkType_Other: "Output layers are not parsed"), but a missing
labelfile-path stops Gst-nvinfer (Postprocessor::allocateResource in nvdsinfer_context_impl.cpp), so it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ROW = 6  # x1, y1, x2, y2, score, class
_PARSER = "NvDsInferParseYolo"
_LIBRARY = "nvdsinfer_custom_impl_Yolo/libnvdsinfer_custom_impl_Yolo.so"
_YOLO = frozenset({"yolox", "yolov5", "yolov8", "rtdetr"})  # that DeepStream-Yolo exports in a form of its own
_SCORE = "0.25"  # as in the configurations of DeepStream-Yolo
_TO_APPLICATION = {"network-type": "100", "output-tensor-meta": "1"}


@dataclass(frozen=True)
class DeepStreamNetwork:
    """What a model finds, as far as Gst-nvinfer must know it.

    Attributes:
        kind: what the outputs are.
        family: of a detector's decoder, as `--decoder` names it; "" where none is known.
        names: the classes, in the model's order; empty where they are not known.
        rows: whether the only output is rows of corners in pixels, score and class, as NvDsInferParseYolo reads them.
        suppressed: whether overlapping boxes are gone already.
        iou: the overlap from which the family's own code drops a box.
        labels: the file of the class names beside the configuration; "" without one.
    """

    kind: Literal["detector", "classifier", "other"] = "other"
    family: str = ""
    names: tuple[str, ...] = ()
    rows: bool = False
    suppressed: bool = False
    iou: float = 0.45
    labels: str = ""


def label_file(network: DeepStreamNetwork) -> str:
    """The text of the file of labels: one class a line, of a classifier all in one line with semicolons between.

    A number without a class, as COCO's own numbers have them, is a dash.
    """
    names = [" ".join(name.split()) or "-" for name in network.names]
    return ";".join(names) + "\n" if network.kind == "classifier" else "".join(f"{name}\n" for name in names)


def network_lines(network: DeepStreamNetwork | None) -> str:
    """The keys and groups that say what is made of the outputs, each line ended; comments say what is left to do."""
    network = network or DeepStreamNetwork()
    label = {"labelfile-path": network.labels} if network.labels else {}
    if network.kind == "classifier":
        return _text(
            ["classifier-threshold is the least value of a class that is reported"], {"network-type": "1", **label}
        )
    if network.kind == "detector" and network.rows and network.names:
        return _detector(network, label)
    return _text(_why_no_parser(network), _TO_APPLICATION)


def with_network(text: str, network: DeepStreamNetwork) -> str:
    """A configuration that was written without knowing the outputs, with what is known of them now."""
    return text.removesuffix(network_lines(None)) + network_lines(network)


def _detector(network: DeepStreamNetwork, label: dict[str, str]) -> str:
    keys = {"network-type": "0", "num-detected-classes": str(len(network.names)), **label}
    keys |= {"cluster-mode": "4" if network.suppressed else "2"}  # 2: NMS, 4: none
    keys |= {"parse-bbox-func-name": _PARSER, "custom-lib-path": _LIBRARY}
    limits = {
        "pre-cluster-threshold": _SCORE,
        **({} if network.suppressed else {"nms-iou-threshold": f"{network.iou:g}"}),
    }
    lines = ["The library of marcoslucianops/DeepStream-Yolo, compiled for the DeepStream of the board."]
    return _text(lines, keys) + "\n[class-attrs-all]\n" + _text([], {**limits, "topk": "300"})


def _why_no_parser(network: DeepStreamNetwork) -> list[str]:
    """Why the application gets the tensors, and what else can be done."""
    if network.kind == "detector" and network.rows:
        return [
            f"num-detected-classes is not known, which {_PARSER} needs: give --names. The application gets the tensors."
        ]
    lines = ["No parser of Gst-nvinfer is known for these outputs: the application gets them as NvDsInferTensorMeta."]
    lines += [f"{network.labels} has the names of the classes, for the application."] if network.labels else []
    if network.family in _YOLO:
        lines += [
            f"{_PARSER} of marcoslucianops/DeepStream-Yolo reads one output, rows of x1 y1 x2 y2 score class: export",
            "the model by that project's utils/export_*.py and deploy what comes out, with --names, to have it here.",
        ]
    return lines


def _text(lines: list[str], keys: dict[str, str]) -> str:
    return "".join(f"# {line}\n" for line in lines) + "".join(f"{key}={value}\n" for key, value in keys.items())
