# SPDX-License-Identifier: Apache-2.0
"""Broken models given to every verb that reads one, and to other tools: one line, or a traceback, or a bad file.

    python tests/bench/broken_inputs.py [--peers-python peers/bin/python] [--only truncated,cycle] [--json FILE]

The peers are nvidia-modelopt, onnxruntime's `quantize_static`, `polygraphy surgeon sanitize` and onnxslim, as their
command lines. Printed: a row for each tool, and what qdqtool did that is a fault. Exit code 1 where it did any: another
exit code than 2, more than one line, a traceback, a file after a failure, an invalid model, an input that changed.
Exit code 1 of lint is no failure: it has findings. An operator that ONNX lacks may be a plugin, and stays.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from cost import table
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
_SECONDS = 120
_SHAPE = [1, 3, 16, 16]
CONTROL = "not broken"
ENDS = (
    "one line", "several lines", "traceback", "signal or no end", "works, invalid model", "works",
)  # fmt: skip
VERBS = {
    "insert": "insert {m} -o {out}.onnx",
    "insert --data": "insert {m} --data {d} -o {out}.onnx",
    "insert --format fp8": "insert {m} --data {d} --format fp8 -o {out}.onnx",
    "calibrate": "calibrate {m} --data {d} -o {out}.scales.json",
    "condition": "condition {m} --data {d} -o {out}.onnx",
    "ptq": "ptq {m} --data {d} --target gpu --trt-version 8502 --cache {out}.cache",
    "peel": "peel {m} --target gpu --trt-version 8502 -o {out}.onnx --cache {out}.cache",
    "lint": "lint {m} --no-parser",
    "lint --fix": "lint {m} --no-parser --fix -o {out}.onnx",
    "amp": "amp {m} --data {d} -o {out}.onnx",
    "prune": "prune {m} --ratio 0.5 -o {out}.onnx",
    "report": "report {m} --no-parser -o {out}.html",
    "engine show": "engine show {m} --predicted",
    "forecast": "forecast {m} --for orin-nx:jp6.1",
    "simulate": "simulate {m} --data {d} -o {out}.npz",
    "sensitivity": "sensitivity {m} --data {d}",
    "compare": "compare {m} {m} --data {d}",
    "evaluate": "evaluate {m} --baseline {m} --data {d}",
    "infer": "infer {m} --data {d} -o {out}.pictures",
    "finetune": "finetune {m} --teacher {m} --data {d} --steps 1 -o {out}.onnx",
    "bench": "bench {m} --runs 1 --warm-up 0",
    "improve": "improve {m} --data {d} --effort fast -o {out}.onnx",
    "deploy": "deploy {m} --data {d} --for 8.6.1 --effort fast -o {out}",
    "init": "init {m} {d}",
    "build": "build {m} -o {out}.plan",
}


def good() -> onnx.ModelProto:
    """Two convolutions with a Relu between, and a sum with a constant."""
    values = np.random.default_rng(0)
    node = helper.make_node
    held = {"w": values.normal(size=(8, 3, 3, 3)), "u": values.normal(size=(8, 8, 3, 3)), "b": np.ones((1, 8, 1, 1))}
    graph = helper.make_graph(
        [
            node("Conv", ["x", "w"], ["c"], "first"),
            node("Relu", ["c"], ["r"], "relu"),
            node("Conv", ["r", "u"], ["d"], "second"),
            node("Add", ["d", "b"], ["y"], "sum"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, _SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 12, 12])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _edited(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = good()
    change(model)
    return model.SerializeToString()


def _outside(model: onnx.ModelProto, location: str) -> None:
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)


def _not_a_number(model: onnx.ModelProto) -> None:
    value = numpy_helper.to_array(model.graph.initializer[0]).copy()
    value[0, 0, 0, 0] = np.nan
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(value, "w"))


def _itself(model: onnx.ModelProto) -> None:
    """A function that calls itself."""
    call = helper.make_node("F", ["a"], ["z"], domain="own")
    model.functions.append(helper.make_function("own", "F", ["a"], ["z"], [call], [helper.make_opsetid("own", 1)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[1].CopyFrom(helper.make_node("F", ["c"], ["r"], domain="own"))


def cases() -> dict[str, bytes]:
    """Name -> the bytes of a broken model."""
    whole = good().SerializeToString()

    def weight(model: onnx.ModelProto) -> onnx.TensorProto:
        return model.graph.initializer[0]

    return {
        CONTROL: whole,
        "empty": b"",
        "a web page": b"<!doctype html><html><body>404: Not Found</body></html>",
        "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "a zip archive": b"PK\x03\x04" + bytes(range(64)),
        "random bytes": np.random.default_rng(1).bytes(2000),
        "half of a file": whole[: len(whole) // 2],
        "the last byte is missing": whole[:-1],
        "weights in a file that is missing": _edited(lambda model: _outside(model, "gone.bin")),
        "weights outside the folder": _edited(lambda model: _outside(model, "../../etc/hostname")),
        "a weight is NaN": _edited(_not_a_number),
        "a weight has too few bytes": _edited(lambda m: setattr(weight(m), "raw_data", weight(m).raw_data[:8])),
        "a weight of a type that is none": _edited(lambda m: setattr(weight(m), "data_type", 99)),
        "a weight with a negative size": _edited(lambda m: weight(m).dims.__setitem__(0, -8)),
        "two weights of one name": _edited(lambda m: m.graph.initializer.add().CopyFrom(weight(m))),
        "an input that nobody makes": _edited(lambda m: m.graph.node[2].input.__setitem__(0, "nobody")),
        "an output that nobody makes": _edited(lambda m: setattr(m.graph.output[0], "name", "nobody")),
        "a cycle": _edited(lambda m: m.graph.node[0].input.__setitem__(0, "d")),
        "two nodes make one tensor": _edited(lambda m: m.graph.node.add().CopyFrom(m.graph.node[1])),
        "an operator that ONNX lacks": _edited(lambda m: setattr(m.graph.node[1], "op_type", "Rellu")),
        "a domain without a version": _edited(lambda m: setattr(m.graph.node[1], "domain", "com.example")),
        "an opset of the future": _edited(lambda m: setattr(m.opset_import[0], "version", 999)),
        "no opset": _edited(lambda m: m.ClearField("opset_import")),
        "a function that calls itself": _edited(_itself),
        "channels that do not fit": _edited(lambda m: m.graph.node[2].input.__setitem__(1, "w")),
        "an input without a type": _edited(lambda m: m.graph.input[0].ClearField("type")),
        "no nodes": _edited(lambda m: m.graph.ClearField("node")),
    }  # fmt: skip


def peers(python: Path) -> dict[str, list[str]]:
    """Name -> the command line of another tool."""
    place = python.parent
    lines = {
        "nvidia-modelopt": f"{python} -m modelopt.onnx.quantization --onnx_path={{m}} --quantize_mode=int8 "
        "--calibration_data_path={d} --output_path={out}.onnx",
        "onnxruntime": f"{python} {HERE / 'accuracy_peers.py'} onnxruntime MinMax {{m}} {{d}} {{out}}.onnx",
        "polygraphy": f"{place / 'polygraphy'} surgeon sanitize {{m}} --fold-constants -o {{out}}.onnx",
        "onnxslim": f"{place / 'onnxslim'} {{m}} {{out}}.onnx",
    }
    return {name: line.split() for name, line in lines.items()}


def outcome(words: Sequence[str], model: bytes, samples: Path) -> tuple[str, list[str], str]:
    """Run a command on a broken model: how it ended, one of ENDS; what else is wrong; its last line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "m.onnx").write_bytes(model)
        (folder / "d.npz").write_bytes(samples.read_bytes())
        before = {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir()}
        places = {"m": "m.onnx", "d": "d.npz", "out": "out"}
        try:
            done = subprocess.run(
                [word.format(**places) for word in words],
                cwd=folder, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "signal or no end", [], f"no end in {_SECONDS} s"
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        wrong = []
        if any(not path.exists() or hashlib.sha256(path.read_bytes()).digest() != was for path, was in before.items()):
            wrong.append("changed its input")
        made = [path for path in folder.rglob("*") if path.is_file() and path not in before]
        failed = done.returncode not in ((0, 1) if "lint" in words else (0,))
        if done.returncode < 0 or done.returncode > 128:
            end = "signal or no end"
        elif not failed:
            end = "works" if all(map(_valid, made)) else "works, invalid model"
        elif "Traceback" in done.stderr + done.stdout:
            end = "traceback"
        else:
            end = "several lines" if len(said) > 1 else "one line"
        if failed and made:
            wrong.append("left " + ", ".join(sorted(path.name for path in made)))
        return end, wrong, said[-1][:160] if said else ""


def _valid(path: Path) -> bool:
    """Whether a model that was written is one; operators that may be plugins are not asked."""
    if path.suffix != ".onnx":
        return True
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        return any(text in str(error) for text in ("No Op registered for Rellu", "No opset import for domain"))
    return True


def rows(args: argparse.Namespace, samples: Path) -> Iterator[tuple[str, str, tuple[str, list[str], str]]]:
    """Tool, case and outcome of each run."""
    ours = {f"qdqtool {verb}": [sys.executable, "-m", "qdqtool", *words.split()] for verb, words in VERBS.items()}
    others = peers(args.peers_python.absolute()) if args.peers_python else {}
    chosen = {name: data for name, data in cases().items() if not args.only or name in (CONTROL, *args.only.split(","))}
    for tool, words in {**ours, **others}.items():
        print(f"{tool} ...", file=sys.stderr)
        for case, data in chosen.items():
            yield tool, case, outcome(words, data, samples)


def main() -> int:
    """Run all, and print the tables; 1 where qdqtool did what it must not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers-python", type=Path, help="the interpreter of an environment that has the peers")
    parser.add_argument("--only", default="", help="cases, with commas between")
    parser.add_argument("--json", type=Path, help="write all outcomes here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        samples = Path(name, "d.npz")
        np.savez(samples, x=np.random.default_rng(2).normal(size=(4, *_SHAPE[1:])).astype(np.float32))
        done = list(rows(args, samples))
    lines, faults = [], []
    control = {tool: end for tool, case, (end, _, _) in done if case == CONTROL}
    for tool in control:
        ends = Counter(end for one, case, (end, _, _) in done if one == tool and case != CONTROL)
        wrong = [(case, text) for one, case, (_, texts, _) in done if one == tool for text in texts]
        inputs, left = (sum(text.startswith(word) for _, text in wrong) for word in ("changed", "left"))
        lines.append([tool, *(str(ends[end]) for end in ENDS), str(inputs), str(left)])
        if tool.startswith("qdqtool"):
            faults += [f"{tool}, {case}: {text}" for case, text in wrong]
            faults += [
                f"{tool}, {case}: {end}: {line}"
                for one, case, (end, _, line) in done
                if one == tool and end in ENDS[1:5]
            ]
    print(table(["tool", *ENDS, "inputs changed", "files after a failure"], lines))
    taken = [(tool, case, line) for tool, case, (end, _, line) in done if end == ENDS[5] and case != CONTROL]
    print("taken as whole:", *[f"{tool}, {case}: {line}" for tool, case, line in taken], sep="\n")
    print(f"{len(faults)} faults", *faults, sep="\n")
    if args.json:
        args.json.write_text(json.dumps(done, indent=1) + "\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
