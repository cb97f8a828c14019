# SPDX-License-Identifier: Apache-2.0
"""`qdqtool init`: a model and a folder to the project file of this folder. Parses arguments and prints results."""

from __future__ import annotations

import argparse

from qdqtool.cli.output import print_json, print_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.add_argument("model", metavar="MODEL", help="the FP32 ONNX model")
    parser.add_argument("folder", metavar="FOLDER", help="folder of images, and of labels if there are any; or a .npz")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Look for what the file can say, write it, say what it lacks."""
    from qdqtool.verbs.init import init_project

    project = init_project(args.model, args.folder)
    if args.json:
        print_json(project.to_json())
    else:
        print_lines(project.summary(), args)
    return 0
