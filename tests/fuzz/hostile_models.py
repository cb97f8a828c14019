# SPDX-License-Identifier: Apache-2.0
"""Files that crash native code, do not end or ask for 50 GB, run with `--untrusted`: each must be one line and exit 2.

    python -m tests.fuzz.hostile_models [--seconds 30] [--only NAME ...] [--without]
    python -m tests.fuzz.hostile_models --cost

prints a row for each file: seconds, memory, the line. `--seconds` is the CPU time that the shell allows (`ulimit -t`),
0 for qdqtool's own limit. `--without` leaves out `--untrusted`: the shell allows the same CPU time, and 16 GiB.
`--cost` runs insert on yolox_nano five times with `--untrusted` and five times without, in turn.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.bench.cost import measured
from tests.bench.shared_material import SHARED
from tests.fuzz.heavy_models import folding_bomb, nested_functions

node = helper.make_node
_GIB = 1 << 30


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit code, lines on stderr, seconds, CPU seconds, MB resident at most, files left."""

    code: int
    lines: tuple[str, ...]
    seconds: float
    cpu_seconds: float
    peak_mb: float
    left: tuple[str, ...]


def small_net(
    nodes: Sequence[onnx.NodeProto] = (),
    constants: dict[str, np.ndarray] | None = None,
    added: str = "",
    domains: Sequence[tuple[str, int]] = (),
) -> onnx.ModelProto:
    """Two convolutions; the tensor `added`, if any, is added to the output, so that nothing removes what makes it."""
    held = {"w": np.ones((4, 3, 3, 3), np.float32), "u": np.ones((4, 4, 3, 3), np.float32), **(constants or {})}
    last = [node("Add", ["d", added], ["y"])] if added else [node("Identity", ["d"], ["y"])]
    first = [node("Conv", ["x", "w"], ["e"]), node("Relu", ["e"], ["c"]), node("Conv", ["c", "u"], ["d"])]
    graph = helper.make_graph(
        [*first, *nodes, *last],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    versions = [helper.make_opsetid(domain, number) for domain, number in [("", 17), *domains]]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def at_run_time(kind: str, **attributes: object) -> onnx.ModelProto:
    """50 GB by one operator, with a size that depends on the input, so that nothing can be folded."""
    zeros = [
        node("ReduceMax", ["c"], ["m"], keepdims=0),
        node("Mul", ["m", "none"], ["z"]),
        node("Cast", ["z"], ["k"], to=TensorProto.INT64),
        node("Add", ["sizes", "k"], ["n"]),
    ]
    sizes = np.array({"OneHot": 13 << 30, "Range": 13 << 30}.get(kind, [13 << 10, 1 << 10, 1 << 10]), np.int64)
    one, five = np.array(1, np.float32), np.array([[[1]]], np.float32)
    constants = {"none": np.array(0, np.float32), "sizes": sizes, "one": one, "unit": five, "axes": np.arange(1)}
    made = {
        "ConstantOfShape": [node(kind, ["n"], ["big"])],
        "Expand": [node(kind, ["unit", "n"], ["big"])],
        "Tile": [node(kind, ["unit", "n"], ["big"])],
        "Range": [
            node("Cast", ["n"], ["stop"], to=TensorProto.FLOAT),
            node("Mul", ["stop", "none"], ["start"]),
            node("Range", ["start", "stop", "one"], ["big"]),
        ],
        "OneHot": [node(kind, ["axes", "n", "pair"], ["big"])],
    }[kind]
    if kind == "OneHot":
        constants["pair"] = np.array([0, 1], np.float32)
    return small_net([*zeros, *made, node("ReduceMax", ["big"], ["top"], keepdims=0)], constants, "top")


def endless_loop(grows: bool = False) -> onnx.ModelProto:
    """A Loop of 2^62 rounds; with `grows` each round's value is kept."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", ["on"], ["go"]), node("Mul", ["v", "v"], ["next"]), node("Identity", ["big"], ["kept"])],
        "body",
        [info("i", TensorProto.INT64, []), info("on", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, None)],
        [info("go", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, None)]
        + ([info("kept", TensorProto.FLOAT, None)] if grows else []),
        [numpy_helper.from_array(np.ones(1 << 18, np.float32), "big")],
    )
    if not grows:
        del body.node[2]
    loop = node("Loop", ["rounds", "true", "one"], ["r", "all"] if grows else ["r"], body=body)
    constants = {"rounds": np.array(1 << 62), "true": np.array(True), "one": np.array(1, np.float32)}
    return small_net([loop], constants, "r")


def smallest_by_minus_one() -> onnx.ModelProto:
    """-2^63 / -1 in INT64: onnxruntime ends with SIGFPE."""
    constants = {"a": np.array([-(2**63)]), "b": np.array([-1])}
    steps = [node("Div", ["a", "b"], ["q"]), node("Cast", ["q"], ["f"], to=TensorProto.FLOAT)]
    return small_net(steps, constants, "f")


def division_by_zero(kind: str) -> onnx.ModelProto:
    """An integer division by a zero that is computed."""
    steps = [
        node("ReduceMax", ["c"], ["m"], keepdims=0),
        node("Mul", ["m", "none"], ["z"]),
        node("Cast", ["z"], ["k"], to=TensorProto.INT64),
        node(kind, ["a", "k"], ["q"]),
        node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
    ]
    return small_net(steps, {"none": np.array(0, np.float32), "a": np.array([7])}, "f")


def deep_tree(nodes: int = 400_000) -> onnx.ModelProto:
    """A decision tree of 200,000 levels: onnxruntime recurses and ends with SIGSEGV."""
    inner = [number % 2 == 0 and number < nodes - 2 for number in range(nodes)]
    tree = node(
        "TreeEnsembleRegressor", ["flat"], ["t"], domain="ai.onnx.ml", n_targets=1,
        nodes_nodeids=list(range(nodes)), nodes_treeids=[0] * nodes, nodes_featureids=[0] * nodes,
        nodes_modes=["BRANCH_LEQ" if one else "LEAF" for one in inner], nodes_values=[1.0] * nodes,
        nodes_hitrates=[1.0] * nodes, nodes_truenodeids=[i + 2 if one else 0 for i, one in enumerate(inner)],
        nodes_falsenodeids=[i + 1 if one else 0 for i, one in enumerate(inner)],
        target_ids=[0], target_nodeids=[1], target_treeids=[0], target_weights=[1.0],
    )  # fmt: skip
    return small_net([node("Flatten", ["x"], ["flat"]), tree], {}, "t", [("ai.onnx.ml", 3)])


def function_chain(depth: int = 20_000) -> onnx.ModelProto:
    """Functions that call the next one, 20,000 deep."""
    model = small_net([node("f0", ["c"], ["o"], domain="own")], {}, "o", [("own", 1)])
    for level in range(depth):
        kind, domain = ("Relu", "") if level + 1 == depth else (f"f{level + 1}", "own")
        step = node(kind, ["u"], ["v"], domain=domain)
        model.functions.append(helper.make_function("own", f"f{level}", ["u"], ["v"], [step], model.opset_import))
    return model


def wide_matmul() -> onnx.ModelProto:
    """A product of 60,000 x 16 by 16 x 60,000 and its square: small weights, 14 GB and days."""
    steps = [
        node("ReduceMax", ["c"], ["m"], keepdims=0),
        node("Add", ["left", "m"], ["a"]),
        node("MatMul", ["a", "right"], ["big"]),
        node("MatMul", ["big", "big"], ["square"]),
        node("ReduceMax", ["square"], ["top"], keepdims=0),
    ]
    held = {"left": np.ones((60_000, 16), np.float32), "right": np.ones((16, 60_000), np.float32)}
    return small_net(steps, held, "top")


def slow_convolution() -> onnx.ModelProto:
    """Forty convolutions of 64 channels on an image that is resized to 640 x 640 at run time."""
    grown = [node("Resize", ["x", "", "scales"], ["l"]), node("Conv", ["l", "v0"], ["s0"])]
    steps = [node("Conv", [f"s{i}", "v"], [f"s{i + 1}"], pads=[1, 1, 1, 1]) for i in range(40)]
    held = {
        "v": np.ones((64, 64, 3, 3), np.float32), 
        "scales": np.array([1, 1, 40, 40], np.float32), "v0": np.ones((64, 3, 1, 1), np.float32),
    }  # fmt: skip
    return small_net([*grown, *steps, node("ReduceMax", ["s40"], ["top"], keepdims=0)], held, "top")


def deep_protobuf() -> bytes:
    """2000 graphs in graphs, as bytes; each is an attribute of a node of the one around it."""
    inside = b""
    for _ in range(2000):
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            inside = tag + _varint(len(inside)) + inside
    return small_net().SerializeToString() + b"\x3a" + _varint(len(inside)) + inside


def _varint(size: int) -> bytes:
    found = b""
    while size > 127:
        found += bytes([size & 127 | 128])
        size >>= 7
    return found + bytes([size])


def _model(make: Callable[[], onnx.ModelProto | bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        made = make()
        (folder / "model.onnx").write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
        np.savez(folder / "data.npz", x=np.ones((2, 3, 16, 16), np.float32))

    return write


def _zip_bomb(folder: Path) -> None:
    """An array of 50 GB by its header, of which the archive has 256 MB."""
    _model(small_net)(folder)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (16 << 20, 3, 16, 16)}
    )
    with (
        zipfile.ZipFile(folder / "data.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(256):
            file.write(bytes(1 << 20))


def _picture_bomb(folder: Path) -> None:
    """A PNG of 30,000 x 30,000: 2.7 GB decoded, 21 GB as floating point numbers."""
    from PIL import Image

    _model(small_net)(folder)
    (folder / "data.npz").unlink()
    (folder / "data.npz").mkdir()
    Image.new("1", (30_000, 30_000)).save(folder / "data.npz" / "a.png")


CALIBRATE = "calibrate model.onnx --data data.npz -o out.json"
INSERT = "insert model.onnx --data data.npz --float-heads none -o out.onnx"
COMPARE = "compare model.onnx model.onnx --data data.npz"
LINT = "lint model.onnx"

# Name -> what writes the files, the command. The word before the dash: what happens without limits.
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "crash-smallest-by-minus-one": (_model(smallest_by_minus_one), INSERT),
    "crash-deep-tree": (_model(deep_tree), CALIBRATE),
    "division-by-zero": (_model(lambda: division_by_zero("Div")), INSERT),
    "remainder-by-zero": (_model(lambda: division_by_zero("Mod")), COMPARE),
    "endless-loop": (_model(endless_loop), INSERT),
    "endless-loop-calibrate": (_model(endless_loop), CALIBRATE),
    "endless-loop-compare": (_model(endless_loop), COMPARE),
    "slow-convolution": (_model(slow_convolution), INSERT),
    "memory-growing-loop": (_model(lambda: endless_loop(True)), INSERT),
    "memory-constant-of-shape": (_model(lambda: at_run_time("ConstantOfShape")), INSERT),
    "memory-expand": (_model(lambda: at_run_time("Expand")), CALIBRATE),
    "memory-tile": (_model(lambda: at_run_time("Tile")), COMPARE),
    "memory-range": (_model(lambda: at_run_time("Range")), INSERT),
    "memory-one-hot": (_model(lambda: at_run_time("OneHot")), CALIBRATE),
    "memory-product": (_model(wide_matmul), INSERT),
    "memory-folded-weight": (_model(folding_bomb), INSERT),
    "memory-zip": (_zip_bomb, INSERT),
    "memory-picture": (_picture_bomb, f"{INSERT} --preprocess imagenet"),
    "depth-functions": (_model(function_chain), INSERT),
    "depth-calls": (_model(nested_functions), INSERT),
    "depth-protobuf": (_model(deep_protobuf), LINT),
}


def attack(name: str, folder: Path, words: Sequence[str], seconds: int, memory: int = 0) -> Outcome:
    """Write the files of a case and run its command on them.

    Args:
        name: of CASES.
        folder: an empty one.
        words: further words of the command.
        seconds: CPU time that the shell allows each process, 0 for no limit.
        memory: bytes that the shell allows, 0 for no limit.
    """
    write, command = CASES[name]
    if not (writer := os.fork()):  # else the memory that it takes counts as that of the command
        write(folder)
        os._exit(0)
    if os.waitpid(writer, 0)[1]:
        raise RuntimeError(f"{name} cannot be written")
    before = set(folder.iterdir())

    def allow() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_DATA, memory)):
            if most:
                resource.setrlimit(kind, (most, most))

    command_line = [sys.executable, "-m", "qdqtool", *command.split(), *words]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    started = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command_line, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=allow
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        lines = tuple(errors.read().decode(errors="replace").splitlines())
    left = tuple(sorted(path.name for path in set(folder.iterdir()) - before))
    cpu = usage.ru_utime + usage.ru_stime
    return Outcome(child.returncode, lines, time.monotonic() - started, cpu, usage.ru_maxrss * 1024 / 1e6, left)


def cost() -> None:
    """Print the median CPU and wall seconds of insert on yolox_nano, with and without limits."""
    model, data = SHARED / "corpus/models/yolox_nano_coco.onnx", SHARED / "corpus/datasets/coco_calib48"
    spent: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        words = ["insert", model, "--data", data, "--preprocess", "yolox", "-o", Path(folder) / "out.onnx"]
        for turn in range(10):
            limited = turn % 2 == 1
            run = measured([sys.executable, "-m", "qdqtool", *words, *(["--untrusted"] if limited else [])])
            if run.code:
                raise RuntimeError(run.tail)
            spent[limited].append((run.cpu_seconds, run.wall_seconds))
    for limited, figures in spent.items():
        cpu, wall = np.median(np.array(figures), axis=0)
        print(f"{'with' if limited else 'without'} --untrusted: {cpu:.2f} CPU s, {wall:.2f} s")


def main() -> int:
    """Run the cases and print a table; 1 where one is not one line and exit code 2, or left a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--cost", action="store_true")
    args = parser.parse_args()
    if args.cost:
        cost()
        return 0
    wrong = 0
    print("| file | verb | exit | s | CPU s | MB | line |\n|---|---|---|---|---|---|---|")
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            words = [] if args.without else ["--untrusted"]
            ended = attack(name, Path(folder), words, args.seconds, 16 * _GIB if args.without else 0)
        said = [line for line in ended.lines if not line.startswith("qdqtool: note: ")]
        line = said[-1].removeprefix("qdqtool: error: ").replace("|", "\\|") if said else ""
        verb = CASES[name][1].split()[0]
        figures = f"{ended.code} | {ended.seconds:.1f} | {ended.cpu_seconds:.1f} | {ended.peak_mb:.0f}"
        print(f"| {name} | {verb} | {figures} | {line[:160]} |", flush=True)
        good = ended.code == 2 and len(said) == 1 and not ended.left
        if not good:
            print(f"  wrong: {len(said)} lines, left {ended.left}", file=sys.stderr, flush=True)
        wrong += not good
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
