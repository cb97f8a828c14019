# SPDX-License-Identifier: Apache-2.0
"""`qdqtool demo`: the main verbs on the bundled classifier of digits, each run and shown as a command."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from qdqtool.cli.output import print_json, print_lines
from qdqtool.errors import QdqError

# Name in the folder of the demo -> bundled file.
FILES = {"model.onnx": "tiny_classifier.onnx", "calib.npz": "digits8_calib.npz", "test.npz": "digits8_test.npz"}
STEPS = (
    (
        "Place Q/DQ where TensorRT fuses, with scales from 128 calibration images.",
        "insert model.onnx --data calib.npz -o model.qdq.onnx",
    ),
    (
        "Measure what INT8 costs, on 450 other images with labels.",
        "evaluate model.qdq.onnx --baseline model.onnx --data test.npz",
    ),
    (
        "Show layers, types and losses on a page. Open report.html in a browser.",
        "report model.qdq.onnx --model model.onnx --data test.npz --limit 16 -o report.html",
    ),
    (
        "Take the scales out again: the plain model and a calibration cache, here for JetPack 5.1.",
        "peel model.qdq.onnx --target gpu --trt-version jp5.1 --source model.onnx -o peeled.onnx --cache gpu.cache",
    ),
    (
        "TensorRT 11 reads no caches. Put the cache back into the plain model as Q/DQ.",
        "graft model.onnx --cache gpu.cache -o grafted.qdq.onnx",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", default="qdqtool-demo", help="a new folder (default qdqtool-demo)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; the output of the commands goes to stderr")


def run(args: argparse.Namespace) -> int:
    """Copy model and data into the folder, and run each command there; the exit code of the first that fails.

    Raises:
        QdqError: the folder holds files; the example is missing.
    """
    folder = Path(args.output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise QdqError(folder, "is there and not an empty folder", "name another folder with -o")
    package = Path(__file__).resolve().parents[1]
    places = (package / "example", package.parent / "models")  # installed; in the source tree
    examples = next((place for place in places if (place / FILES["model.onnx"]).is_file()), None)
    if examples is None:
        raise QdqError(package, "the example is missing from this installation", "install qdqtool again")
    folder.mkdir(parents=True, exist_ok=True)
    for name, bundled in FILES.items():
        shutil.copyfile(examples / bundled, folder / name)
    for number, (text, command) in enumerate(STEPS, 1):
        if not args.json:
            print_lines([f"{number}. {text}", "", f"$ qdqtool {command}"], args)
        sys.stdout.flush()
        words = [sys.executable, "-m", "qdqtool", *shlex.split(command), *(["--quiet"] if args.quiet else [])]
        done = subprocess.run(words, cwd=folder, stdout=sys.stderr if args.json else None, check=False)
        if done.returncode:
            return done.returncode if done.returncode > 0 else 128 - done.returncode
        if not args.json:
            print_lines([""], args)
    if (folder / "peeled.onnx").read_bytes() != (folder / "model.onnx").read_bytes():
        raise RuntimeError("peel did not give the model back byte for byte")
    if args.json:
        files = sorted(path.name for path in folder.iterdir())
        commands = [f"qdqtool {command}" for _, command in STEPS]
        print_json({"folder": str(folder), "files": files, "commands": commands})
    else:
        print_lines([f"peeled.onnx is model.onnx, byte for byte. All files are in {folder}."], args, asked=True)
        print_lines(["with your own model: qdqtool insert YOUR.onnx --data IMAGES"], args)
    return 0
