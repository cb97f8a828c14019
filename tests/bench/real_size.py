# SPDX-License-Identifier: Apache-2.0
"""What `insert --data` costs on transformers with random weights: CPU over plain inference, and memory. No test.

A script: python tests/bench/real_size.py [--layers 2,12] [--samples 16] [--checkouts PATH ...]. Each figure is of a
process of its own. Twelve layers are ViT-B's shape, 86 M weights: a run takes minutes, so the default has two.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from cost import measured, table

PROJECT = Path(__file__).resolve().parents[2]
WIDTH, HEADS, TOKENS, CLASSES, WORDS = 768, 12, 197, 1000, 4000
GATES = (4.0, 2.0)  # CPU of the default over plain inference, and over --keep-float 0


def make_vit(path: Path, layers: int, kind: str = "classifier") -> None:
    """Write a transformer of seeded weights, as the TorchScript exporter writes one; heavy-tailed norm gains.

    Args:
        path: where to.
        layers: how many; 12 are ViT-B's.
        kind: "classifier" of images, "detector" with a box and scores for each patch, or "text" of `TOKENS` words.
    """
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    nodes, weights = [], []

    def constant(name: str, value: object, kind: type = np.float32) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def linear(x: str, name: str, rows: int, columns: int) -> str:
        weight = constant(f"{name}_w", draw.normal(size=(rows, columns)) / rows**0.5)
        return node("Add", [node("MatMul", [x, weight], f"{name}_mm"), constant(f"{name}_b", np.zeros(columns))], name)

    def norm(x: str, name: str) -> str:
        gain = constant(f"{name}_g", 1 + 0.3 * draw.standard_t(3, size=WIDTH).clip(-8, 8))
        return node("LayerNormalization", [x, gain, constant(f"{name}_c", np.zeros(WIDTH))], name, axis=-1)

    def attention(x: str, layer: int) -> str:
        parts = []
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            split = node("Reshape", [linear(x, f"{name}{layer}", WIDTH, WIDTH), "heads"], f"{name}{layer}r")
            parts.append(node("Transpose", [split], f"{name}{layer}t", perm=perm))
        scores = node("Div", [node("MatMul", parts[:2], f"qk{layer}"), "root"], f"d{layer}")
        mixed = node("MatMul", [node("Softmax", [scores], f"sm{layer}", axis=-1), parts[2]], f"av{layer}")
        joined = node("Transpose", [mixed], f"avt{layer}", perm=[0, 2, 1, 3])
        return linear(node("Reshape", [joined, "joined"], f"avr{layer}"), f"o{layer}", WIDTH, WIDTH)

    def gelu(x: str, layer: int) -> str:
        erf = node("Erf", [node("Div", [x, "sqrt2"], f"u{layer}")], f"er{layer}")
        return node("Mul", [node("Mul", [x, "half"], f"h{layer}"), node("Add", [erf, "one"], f"e{layer}")], f"g{layer}")

    for name, value in (("heads", [0, 0, HEADS, WIDTH // HEADS]), ("joined", [0, 0, WIDTH]), ("first", 0)):
        constant(name, value, np.int64)
    for name, number in (("root", (WIDTH / HEADS) ** 0.5), ("sqrt2", 2**0.5), ("half", 0.5), ("one", 1.0)):
        constant(name, number)
    if kind == "text":
        x = node("Gather", [constant("words", draw.normal(size=(WORDS, WIDTH)) * 0.1), "x"], "w")
    else:
        patch = constant("patch", draw.normal(size=(WIDTH, 3, 16, 16)) * 0.03)
        x = node("Conv", ["x", patch], "p", kernel_shape=[16, 16], strides=[16, 16])
        x = node("Reshape", [x, constant("flat", [0, WIDTH, TOKENS - 1], np.int64)], "pr")
        x = node("Transpose", [x], "pt", perm=[0, 2, 1])
        x = node("Concat", [constant("class", draw.normal(size=(1, 1, WIDTH)) * 0.1), x], "cat", axis=1)
    x = node("Add", [x, constant("position", draw.normal(size=(1, TOKENS, WIDTH)) * 0.1)], "e")
    for layer in range(layers):
        x = node("Add", [x, attention(norm(x, f"n{layer}a"), layer)], f"r{layer}a")
        inner = gelu(linear(norm(x, f"n{layer}b"), f"f{layer}", WIDTH, 4 * WIDTH), layer)
        x = node("Add", [x, linear(inner, f"w{layer}", 4 * WIDTH, WIDTH)], f"r{layer}b")
    ends = {"y": [1, CLASSES]}
    if kind == "detector":
        last, ends = norm(x, "nf"), {"y": [1, TOKENS, CLASSES], "boxes": [1, TOKENS, 4]}
        node("Sigmoid", [linear(last, "logits", WIDTH, CLASSES)], "y")
        inner = node("Relu", [linear(last, "box_inner", WIDTH, WIDTH)], "box_relu")
        node("Sigmoid", [linear(inner, "box_linear", WIDTH, 4)], "boxes")
    else:
        linear(node("Gather", [norm(x, "nf"), "first"], "token", axis=1), "y", WIDTH, CLASSES)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])
    if kind == "text":
        given = helper.make_tensor_value_info("x", TensorProto.INT64, [1, TOKENS])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends.items()]
    graph = helper.make_graph(nodes, "vit", [given], outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


LOADER = """import numpy as np
def load_data():
    for index in range({count}):
        draw = np.random.default_rng(index)
        yield {{"x": (draw.normal(size=(1, 3, 224, 224)) * draw.uniform(0.5, 2)).astype("float32")}}
"""
PLAIN = """import runpy, sys, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
for batch in runpy.run_path(sys.argv[2])["load_data"]():
    session.run(None, batch)
"""


def rows_of(layers: int, samples: int, checkouts: list[Path], folder: Path) -> tuple[list[list[str]], bool]:
    """A row for plain inference and for each way to insert, and whether the last checkout keeps within the gates."""
    model, data = folder / f"vit{layers}.onnx", folder / "data.py"
    make_vit(model, layers)
    data.write_text(LOADER.format(count=samples))
    plain = measured([sys.executable, "-c", PLAIN, model, data])
    rows = [[f"{layers} layers", "plain inference", f"{plain.cpu_seconds:.1f}", "1.0", f"{plain.peak_mb:.0f}", ""]]
    held = True
    for checkout in checkouts:
        path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
        spent = {}
        for keep in ("0", "auto"):
            command = [sys.executable, "-m", "qdqtool", "insert", model, "--data", data, "--keep-float", keep]
            cost = measured([*command, "-q", "-o", folder / "out.onnx"], environment={"PYTHONPATH": path})
            spent[keep] = cost.cpu_seconds
            ratio = f"{cost.cpu_seconds / plain.cpu_seconds:.1f}"
            name = f"{checkout.name} --keep-float {keep}"
            failed = "" if cost.code == 0 else cost.said
            rows.append(["", name, f"{cost.cpu_seconds:.1f}", ratio, f"{cost.peak_mb:.0f}", failed])
        held = spent["auto"] <= GATES[0] * plain.cpu_seconds and spent["auto"] <= GATES[1] * spent["0"]
    return rows, held


def main() -> int:
    """Print the table; 1 where a model of twelve layers or more misses a gate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="2", help="numbers of layers; 12 is ViT-B")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument(
        "--checkouts", type=Path, nargs="+", default=[PROJECT], help="the last one is held to the gates"
    )
    args = parser.parse_args()
    every, missed = [], False
    with tempfile.TemporaryDirectory() as folder:
        for layers in map(int, args.layers.split(",")):
            rows, held = rows_of(layers, args.samples, [path.resolve() for path in args.checkouts], Path(folder))
            every += rows
            missed = missed or (layers >= 12 and not held)
    print(table(["model", "run", "CPU s", "/ plain", "peak MB", ""], every))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
