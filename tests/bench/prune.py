# SPDX-License-Identifier: Apache-2.0
"""How much of each model of a folder `prune` can remove: prunable channels, what is kept, how exact, how long.

    python tests/bench/prune.py FOLDER [--ratio 0.5] [--name TEXT] [--peers-python P] [--build]

One line for each ONNX file: the share of output channels that can go, parameters and multiply-adds kept, the largest
difference from the masked original at an output and inside, CPU seconds. With `--peers-python` the parameters that
onnxsim's pruner keeps stand beside, or why its model does not run; with `--build` whether TensorRT for RTX builds ours.
A model that is refused has its reason. Exit code 1 where a pruned model does not run as a user would run it.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qdqtool import BuildOptions, PruneOptions, build, prune
from qdqtool.errors import QdqError
from qdqtool.pruning.probe import seeded_input

_WIDTH = 100  # of what another program says


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ratio", type=float, default=0.5)
    parser.add_argument("--name", default="")
    parser.add_argument("--peers-python", metavar="P")
    parser.add_argument("--build", action="store_true")
    args = parser.parse_args()
    beside = f" {'onnxsim':>8}" if args.peers_python else ""
    print(f"{'model':32} {'prunable':>8} {'params':>7} {'macs':>6} {'output':>8} {'inside':>8} {'CPU s':>6}{beside}")
    failed = 0
    for path in sorted(args.folder.glob("*.onnx")):
        if args.name in path.name:
            failed += _line(path, args)
    return int(failed > 0)


def _line(path: Path, args: argparse.Namespace) -> int:
    """Print one line; 1 where the result does not run."""
    with tempfile.TemporaryDirectory() as folder:
        target, start = Path(folder) / "pruned.onnx", time.process_time()
        try:
            done = prune(path, options=PruneOptions(ratio=args.ratio), output=target).done
        except QdqError as error:
            print(f"{path.stem:32} {error.reason[:_WIDTH]}", flush=True)
            return 0
        seconds = time.process_time() - start
        assert done.difference is not None
        share = done.prunable / max(done.channels, 1)
        kept = [pair[1] / max(pair[0], 1) for pair in (done.parameters, done.multiply_adds)]
        apart = f"{done.difference.outputs:8.1e} {done.difference.inside:8.1e}"
        peer = _peer(path, Path(folder) / "peer.onnx", args) if args.peers_python else ""
        print(f"{path.stem:32} {share:8.1%} {kept[0]:7.1%} {kept[1]:6.1%} {apart} {seconds:6.1f}{peer}", flush=True)
        refused = _refused(target)
        if refused:
            print(f"{'':32} does not run: {refused}", flush=True)
        if args.build:
            print(f"{'':32} {_built(target, Path(folder) / 'engine')}", flush=True)
        return int(bool(refused))


def _peer(path: Path, target: Path, args: argparse.Namespace) -> str:
    """The parameters that the peer keeps, and what is wrong with its model."""
    script = Path(__file__).with_name("prune_peer.py")
    command = [args.peers_python, script, path, target, str(args.ratio)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not target.is_file():
        return f"  fails: {(done.stderr.strip().splitlines() or ['?'])[-1][:_WIDTH]}"
    kept = _stored(target) / max(_stored(path), 1)
    refused = _refused(target)
    return f" {kept:8.1%}{'  does not run: ' + refused if refused else ''}"


def _stored(path: Path) -> int:
    """Values of all initializers and Constant nodes, of a file that need not hold together."""
    import onnx

    graph = onnx.load(path).graph
    constants = [item.t for node in graph.node if node.op_type == "Constant" for item in node.attribute]
    return sum(math.prod(tensor.dims) for tensor in (*graph.initializer, *constants))


def _refused(path: Path) -> str:
    """What onnxruntime, with all its optimizations, has against a file; nothing where it runs."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        session.run(None, seeded_input(onnx.load(path).graph))
    except Exception as error:  # onnxruntime's exceptions share no base class but this
        return str(error).splitlines()[0][:_WIDTH]
    return ""


def _built(path: Path, target: Path) -> str:
    """What the compiler of TensorRT for RTX makes of a file."""
    start = time.perf_counter()
    try:
        build(path, target, BuildOptions(target="rtx"))
    except QdqError as error:
        return f"not built: {error.reason[:_WIDTH]}"
    return f"built, {target.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
