# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning measured: gradients against PyTorch's, and what it wins on a detector.

A script, not a test: see README.md here. Heavy libraries are imported in the functions that use them (see cost.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from training_gradients import HEAD as GRADIENTS
from training_gradients import Pythons, gradient_rows, operator_lines
from training_recovery import HEAD as RECOVERY
from training_recovery import yolox_rows

PROJECT = Path(__file__).resolve().parents[2]
PARTS = ("yolox", "gradients")


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--ways", default="", help="of quantizing the detector, with commas; default all")
    parser.add_argument("--torch-python", type=Path, help="interpreter with torch, onnx and numpy")
    parser.add_argument("--train-python", type=Path, help="interpreter with onnxruntime-training")
    parser.add_argument("--work", type=Path, help="folder for models and figures, to go on from; default a temporary")
    parser.add_argument("--finetune", default="", help="further options of `finetune`, as one text")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the parts, a row printed as soon as it is there; 1 where gradients are off."""
    args = arguments(argv)
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    if not (shared / "corpus/models").is_dir():
        print(f"training: {shared / 'corpus/models'} is absent; set QDQTOOL_SHARED", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        return _run(args, shared / "corpus", (args.work or Path(folder)).absolute())


def _run(args: argparse.Namespace, corpus: Path, work: Path) -> int:
    work.mkdir(parents=True, exist_ok=True)
    pythons = Pythons(Path(sys.executable), args.torch_python, args.train_python)
    ways, more = [one for one in args.ways.split(",") if one], args.finetune.split()
    off = False
    for part in args.parts.split(","):
        if part == "yolox":
            _print(RECOVERY, yolox_rows(corpus, work, ways, more))
        elif part == "gradients":
            rows = list(gradient_rows(work, pythons))
            _print(GRADIENTS, iter([row.cells() for row in rows]))
            print(*operator_lines(work, pythons), sep="\n")
            off |= any(row.off for row in rows)
        else:
            print(f"training: no part {part!r}; there are {', '.join(PARTS)}", file=sys.stderr)
            return 2
    return int(off)


def _print(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> None:
    """A table of Markdown, each row as it comes."""
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
