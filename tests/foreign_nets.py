# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - a graph reads best on one line
"""Small detectors and classifiers with operators that onnx, onnxruntime or TensorRT lack, and what each verb says of them. No tests."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from qdqtool.cache.text import read_cache
from qdqtool.cli.main import main as qdqtool_main
from tests.graphs import model_of

SAMPLES = 3
_DOMAINS = ("com.microsoft", "onnx.brevitas", "custom")
_WEIGHTS = "float[8,3,3,3] w1, float[8] b1, float[8,8,3,3] w2, float[8,8,3,3] w3, float[12,8,1,1] w4"
_STEM = "c1 = Conv<pads=[1,1,1,1]>(x, w1, b1) r1 = Relu(c1) c2 = Conv<pads=[1,1,1,1]>(r1, w2) r2 = Relu(c2)"
_HEAD = "h = Conv(r2, w4) t = Transpose<perm=[0,2,3,1]>(h) m = Reshape(t, rows) box, score = Split<axis=2>(m, parts)"
_SHAPES = "int64[3] rows = {1,64,12}, int64[2] parts = {4,8}"
_NMS = 'n, nb, ns, nc = EfficientNMS_TRT<score_threshold=0.3, iou_threshold=0.5, max_output_boxes=10, background_class=-1, box_coding=1, score_activation=1, plugin_version="1">(box, score)'
_NMS_OUT = "int32[1,1] n, float[1,10,4] nb, float[1,10] ns, int32[1,10] nc"
_BATCHED = 'wide = Unsqueeze(box, two) num_detections, nmsed_boxes, nmsed_scores, nmsed_classes = BatchedNMSDynamic_TRT<numClasses=8, keepTopK=10, plugin_version="1">(wide, score)'
_BATCHED_OUT = (
    "int32[1,1] num_detections, float[1,10,4] nmsed_boxes, float[1,10] nmsed_scores, float[1,10] nmsed_classes"
)
_X = "float[1,3,8,8] x"

# name -> (opset, text). "at outputs" means that no float output is left that onnxruntime can compute.
NETS: dict[str, tuple[int, str]] = {
    "FusedConv": (
        17,
        f'g ({_X}) => (float[N,8,8,8] z) <{_WEIGHTS}> {{ {_STEM} f = com.microsoft.FusedConv<activation="Relu", pads=[1,1,1,1]>(r2, w3) a = Add(f, r2) r3 = Relu(a) z = Conv<pads=[1,1,1,1]>(r3, w3) }}',
    ),
    "Affine": (
        9,
        f"g ({_X}) => (float[1,8,8,8] z) <{_WEIGHTS}> {{ p = Affine<alpha=0.5, beta=0.1>(x) c1 = Conv<pads=[1,1,1,1]>(p, w1, b1) r1 = Relu(c1) c2 = Conv<pads=[1,1,1,1]>(r1, w2) z = Relu(c2) }}",
    ),
    "Crop": (
        9,
        f"g ({_X}) => (float[1,8,4,4] z) <{_WEIGHTS}> {{ {_STEM} p = Crop<border=[2,2,2,2]>(r2) c3 = Conv<pads=[1,1,1,1]>(p, w3) z = Relu(c3) }}",
    ),
    "Quant": (
        13,
        f'g ({_X}) => (float[1,8,8,8] z) <{_WEIGHTS}, float s = {{0.05}}, float o = {{0}}, float bits = {{8}}> {{ xq = onnx.brevitas.Quant<signed=1, narrow=0, rounding_mode="ROUND">(x, s, o, bits) c1 = Conv<pads=[1,1,1,1]>(xq, w1, b1) r1 = Relu(c1) r1q = onnx.brevitas.Quant<signed=1, narrow=0, rounding_mode="ROUND">(r1, s, o, bits) z = Conv<pads=[1,1,1,1]>(r1q, w2) }}',
    ),
    "ImageScaler": (
        9,
        f"g ({_X}) => (float[1,8,8,8] z) <{_WEIGHTS}> {{ p = ImageScaler<scale=0.5, bias=[0.1,0.2,0.3]>(x) c1 = Conv<pads=[1,1,1,1]>(p, w1, b1) r1 = Relu(c1) c2 = Conv<pads=[1,1,1,1]>(r1, w2) z = Relu(c2) }}",
    ),
    "EfficientNMS_TRT at the outputs": (
        13,
        f"g ({_X}) => ({_NMS_OUT}) <{_WEIGHTS}, {_SHAPES}> {{ {_STEM} {_HEAD} {_NMS} }}",
    ),
    "BatchedNMSDynamic_TRT at the outputs": (
        13,
        f"g ({_X}) => ({_BATCHED_OUT}) <{_WEIGHTS}, {_SHAPES}, int64[1] two = {{2}}> {{ {_STEM} {_HEAD} {_BATCHED} }}",
    ),
    "BatchedNMSDynamic_TRT and a further output": (
        13,
        f"g ({_X}) => ({_BATCHED_OUT}, float[1,8,8,8] r2) <{_WEIGHTS}, {_SHAPES}, int64[1] two = {{2}}> {{ {_STEM} {_HEAD} {_BATCHED} }}",
    ),
    "EfficientNMS_TRT in the middle": (
        13,
        f"g ({_X}) => (float[M,10,4] z) <{_WEIGHTS}, {_SHAPES}, float[1] size = {{8.0}}> {{ {_STEM} {_HEAD} {_NMS} up = Mul(nb, size) z = Clip(up) }}",
    ),
    "EfficientNMS_TRT before a convolution": (
        13,
        f"g ({_X}) => (float[M,8,3,3] z) <{_WEIGHTS}, {_SHAPES}> {{ {_STEM} {_HEAD} {_NMS} crops = ROIAlign_TRT<pooled_height=3, pooled_width=3>(r2, nb) q = Relu(crops) z = Conv<pads=[1,1,1,1]>(q, w3) }}",
    ),
    "an unknown domain": (
        17,
        f"g ({_X}) => (float[1,8,8,8] z) <{_WEIGHTS}> {{ {_STEM} u = custom.Sharpen<amount=2>(r2) v = Relu(u) c3 = Conv<pads=[1,1,1,1]>(v, w3) z = Relu(c3) }}",
    ),
    "nothing but unknown operators": (
        17,
        f"g ({_X}) => (float[1,3,8,8] z) {{ u = custom.Sharpen<amount=2>(x) z = custom.Blur<amount=1>(u) }}",
    ),
}


def foreign_net(name: str) -> onnx.ModelProto:
    """A net by its name in `NETS`; its weights are seeded."""
    opset, text = NETS[name]
    model = model_of(text, opset, 7 if opset < 13 else 8)
    for domain in _DOMAINS:
        model.opset_import.add(domain=domain, version=1)
    return model


def write_net(name: str, folder: Path) -> tuple[Path, Path]:
    """Files of a net and of data for it, in a folder."""
    model, data = folder / "m.onnx", folder / "d.npz"
    onnx.save(foreign_net(name), model)
    x = np.random.default_rng(0).normal(size=(SAMPLES, 3, 8, 8)).astype(np.float32)
    np.savez(data, x=x)
    return model, data


# What is asked of each net, in this order: `peel` takes what `insert --data` made, or else what `insert` made.
VERBS = {
    "insert": ("insert", "m.onnx", "-o", "plain.onnx"),
    "insert --data": ("insert", "m.onnx", "--data", "d.npz", "-o", "data.onnx"),
    "ptq --target gpu": ("ptq", "m.onnx", "--data", "d.npz", "--target", "gpu", "--trt-version", "8502", "--cache", "g.cache"),
    "ptq --target dla": ("ptq", "m.onnx", "--data", "d.npz", "--target", "dla", "--trt-version", "8502", "--cache", "d.cache"),
    "peel --target dla": ("peel", "Q", "--target", "dla", "--trt-version", "8502", "--allow-estimated", "-o", "p.onnx", "--cache", "p.cache"),
    "lint": ("lint", "m.onnx", "--trt-version", "8502", "--ignore", "Q016,Q018"),
    "sensitivity": ("sensitivity", "m.onnx", "--data", "d.npz", "--top", "1"),
    "condition": ("condition", "m.onnx", "--data", "d.npz", "-o", "c.onnx"),
    "compare": ("compare", "m.onnx", "m.onnx", "--data", "d.npz"),
}  # fmt: skip
_TELLING = ("qdqtool: error:", "qdqtool: warning:", "without a scale:", "Q033", "m.onnx: nothing found")


@dataclass(frozen=True)
class Answer:
    """What one verb said of one net."""

    code: int
    out: str
    err: str
    cache: frozenset[str] | None = None

    @property
    def line(self) -> str:
        """The line that tells most: an error, else a warning, else what has no scale, else nothing."""
        lines = (self.err + self.out).splitlines()
        for start in _TELLING:
            for index, line in enumerate(lines):
                if line.startswith(start):
                    return (lines[index + 1].strip() if start == "Q033" else line).removeprefix("qdqtool: ")
        return ""


def ask(name: str, folder: Path) -> dict[str, Answer]:
    """Every verb on one net, in a folder that is empty at first."""
    write_net(name, folder)
    answers = {}
    for verb, words in VERBS.items():
        placed = "data.onnx" if (folder / "data.onnx").exists() else "plain.onnx"
        if words[1] == "Q" and not (folder / placed).exists():
            continue
        out, err = io.StringIO(), io.StringIO()
        files = [str(folder / {"Q": placed}.get(word, word)) if _is_file(word) else word for word in words]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = qdqtool_main(files)
        made = next((folder / word for word in words if word.endswith(".cache")), None)
        cache = frozenset(read_cache(made).entries) if made is not None and made.exists() else None
        said = (text.getvalue().replace(f"{folder}/", "") for text in (out, err))
        answers[verb] = Answer(code, *said, cache)
    return answers


def lost(name: str, answer: Answer) -> list[str]:
    """Float tensors of a net that a cache for the DLA has no scale for, and that nothing is said of."""
    floats = set(tensors_of(name))
    return sorted(one for one in floats - (answer.cache or floats) if f"{one} (" not in answer.out)


def tensors_of(name: str) -> list[str]:
    """What a net feeds and makes, but the integers that its NMS plugin counts in and its tables of shapes."""
    graph = foreign_net(name).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    made = [graph.input[0].name, *(one for node in graph.node for one in node.output)]
    return [one for one in made if kinds.get(one, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT]


def _is_file(word: str) -> bool:
    return word == "Q" or word.endswith((".onnx", ".npz", ".cache"))
