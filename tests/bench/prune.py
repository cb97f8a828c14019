# SPDX-License-Identifier: Apache-2.0
"""How much of each model of a folder `prune` can remove: prunable channels, what is kept, how exact, how long.

    python tests/bench/prune.py FOLDER [--ratio 0.5] [--name TEXT]

One line for each ONNX file: the share of output channels that can go, parameters and multiply-adds kept, the largest
difference from the masked original at an output and inside, seconds. A model that is refused has its reason. Exit code
1 where a pruned model does not run in onnxruntime as a user would run it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from qdqtool.data.model_inputs import inputs_of
from qdqtool.errors import QdqError
from qdqtool.graph.io import open_model
from qdqtool.pruning.probe import seeded_input
from qdqtool.verbs import PruneOptions, prune


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ratio", type=float, default=0.5)
    parser.add_argument("--name", default="")
    args = parser.parse_args()
    print(f"{'model':36} {'prunable':>8} {'params':>7} {'macs':>6} {'output':>8} {'inside':>8} {'seconds':>7}")
    failed = 0
    for path in sorted(args.folder.glob("*.onnx")):
        if args.name in path.name:
            failed += _line(path, args.ratio)
    return int(failed > 0)


def _line(path: Path, ratio: float) -> int:
    """Print one line; 1 where the result does not run."""
    with tempfile.TemporaryDirectory() as folder:
        target, start = Path(folder) / "pruned.onnx", time.perf_counter()
        try:
            done = prune(path, options=PruneOptions(ratio=ratio), output=target).done
        except QdqError as error:
            print(f"{path.stem:36} {error.reason[:100]}")
            return 0
        seconds = time.perf_counter() - start
        assert done.difference is not None
        share = done.prunable / max(done.channels, 1)
        kept = [pair[1] / max(pair[0], 1) for pair in (done.parameters, done.multiply_adds)]
        apart = (done.difference.outputs, done.difference.inside)
        print(
            f"{path.stem:36} {share:8.1%} {kept[0]:7.1%} {kept[1]:6.1%} {apart[0]:8.1e} {apart[1]:8.1e} {seconds:7.1f}"
        )
        return _fails(target)


def _fails(path: Path) -> int:
    """1 where onnxruntime, with all its optimizations, does not run the file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        graph = open_model(path).proto.graph
        session.run(None, {one.name: seeded_input(graph)[one.name] for one in inputs_of(graph)})
    except Exception as error:  # onnxruntime's exceptions share no base class but this
        print(f"{'':36} does not run: {str(error).splitlines()[0][:100]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
