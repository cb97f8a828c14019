# SPDX-License-Identifier: Apache-2.0
"""Small graphs in every number format through the verbs: each runs or is refused, and none is called INT8."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.main import main
from qdqtool.graph.order import read_names
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView

# "0 in INT8", "quantize to INT8" and "no Q/DQ where INT8 ..." speak of what is not there, or could be.
_CALLED_INT8 = re.compile(r"(?:through|reads|a regression head in) INT8|[1-9]\d* in INT8|INT8 weight|\d % INT8")
_VERBS = {
    "lint": ["lint", "{file}", "--target", "rtx"],
    "engine show": ["engine", "show", "{file}", "--predicted", "--target", "rtx"],
    "report": ["report", "{file}", "-o", "{out}.html"],
    "compare": ["compare", "{file}", "{file}", "--data", "{data}"],
    "simulate": ["simulate", "{file}", "--data", "{data}"],
    "evaluate": ["evaluate", "{file}", "--baseline", "{file}", "--data", "{data}", "--metric", "agreement"],
    "peel": [
        "peel",
        "{file}",
        "-o",
        "{out}.onnx",
        "--cache",
        "{out}.cache",
        "--trt-version",
        "8502",
        "--target",
        "gpu",
    ],
    "insert": ["insert", "{file}", "-o", "{out}.onnx", "--allow-empty", "--data", "{data}"],
    "prune": ["prune", "{file}", "-o", "{out}.onnx", "--data", "{data}"],
}


def has_int8(model: onnx.ModelProto) -> bool:
    """Whether a Q or DQ of the graph makes or reads INT8."""
    view = GraphView(model.graph)
    kinds = {
        tensor.data_type for node in view.every for name in read_names(node) if (tensor := view.constant_tensor(name))
    }
    return onnx.TensorProto.INT8 in kinds and any(node.op in (QUANTIZE, DEQUANTIZE) for node in view.every)


def data_of(model: onnx.ModelProto, file: Path) -> Path:
    """Two batches for every input, in the batch that the graph has."""
    rng, held = np.random.default_rng(0), {tensor.name for tensor in model.graph.initializer}
    arrays = {}
    for value in model.graph.input:
        if value.name not in held:
            kind = value.type.tensor_type
            shape = [dim.dim_value or 1 for dim in kind.shape.dim]
            arrays[value.name] = rng.standard_normal((2 * shape[0], *shape[1:])).astype(np.float32)
    np.savez(file, **arrays)
    return file


@pytest.mark.parametrize("nth", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", _VERBS)
def test_every_format_runs_or_is_refused_in_one_line(
    verb: str, nth: int, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {}
    for file in sorted((shared / "formats").glob("*.onnx"))[::nth]:
        model = onnx.load(file)
        words = {"file": file, "out": tmp_path / file.stem, "data": tmp_path / f"{file.stem}.npz"}
        data_of(model, words["data"])
        code = main([word.format(**words) for word in _VERBS[verb]])
        out, err = capsys.readouterr()
        if code not in (0, 1, 2) or "Traceback" in err:
            wrong[file.stem] = f"{code}: {err}"
        elif not has_int8(model) and (said := _CALLED_INT8.search(out + err)):
            wrong[file.stem] = said[0]
    assert wrong == {}


def test_insert_leaves_what_operators_of_tensorrt_quantize(shared: Path, tmp_path: Path) -> None:
    file = shared / "formats" / "NVFP4_W4A4_low_rank_FP16_branch_SVDQuant_shape_.onnx"
    given, written = onnx.load(file), tmp_path / "m.onnx"
    data = str(data_of(given, tmp_path / "d.npz"))
    words = ["--target", "rtx", "--float-heads", "none", "--data", data, "--batch", "64"]
    assert main(["insert", str(file), "-o", str(written), *words]) == 0
    nodes = onnx.load(written).graph.node
    kept = [node.op_type for node in given.graph.node]
    left = iter(node.op_type for node in nodes)
    assert all(op in left for op in kept)  # every operator in its order
    (quantize,) = (node for node in nodes if node.op_type == "TRT_FP4DynamicQuantize")
    assert quantize.input[0] == "x1"
    assert sum(node.op_type == "QuantizeLinear" for node in nodes) == 4  # both products of the branch, in INT8


@pytest.mark.parametrize("name", ["MXFP8_weight_only", "MXFP8_W8A8_FP16", "NVFP4_W4A4_FP16", "NVFP4_W4A4_BF16"])
def test_compare_runs_what_operators_of_tensorrt_quantize(
    name: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = shared / "formats" / f"{name}.onnx"
    data = data_of(onnx.load(file), tmp_path / "d.npz")
    assert main(["compare", str(file), str(file), "--data", str(data), "--tensors", "outputs"]) == 0
    assert "exact" in capsys.readouterr().out
