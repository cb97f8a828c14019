# SPDX-License-Identifier: Apache-2.0
"""`qdqtool engine show` and `engine diff`: the layers of built engines. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from qdqtool.cli.actions import Actions, add_action
from qdqtool.cli.declared import add_options, options_from
from qdqtool.cli.output import print_json, print_lines
from qdqtool.errors import QdqError
from qdqtool.verbs.build_options import BuildOptions

if TYPE_CHECKING:
    from qdqtool.verbs.show_engine import ShowEngineOptions

_BUILDING = ("sm", "shapes")  # of a model, which is built first
_FILE = "OUT.layers.json of build, the JSON of trtexec --exportLayerInfo or --exportProfile, or a verbose build log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="show|diff", required=True)
    _add_show(actions)
    _add_diff(actions)


def _add_show(actions: Actions[argparse.ArgumentParser]) -> None:
    show = add_action(actions, "show", "print the layers of an engine, and how they differ from the predicted ones")
    show.add_argument(
        "source", metavar="FILE|MODEL", help=f"{_FILE}; or a model, which is built first (TensorRT for RTX, on a CPU)"
    )
    show.add_argument("--model", metavar="M", help="the engine's model: shows predicted layers beside built ones")
    show.add_argument("--profile", metavar="P", help="the time of each layer: JSON of trtexec --exportProfile")
    show.add_argument(
        "--predicted", action="store_true", help="of a model: show the layers that the rules predict, without a build"
    )
    show.add_argument(
        "--target", choices=("gpu", "rtx"), default="gpu", help="with --predicted: whose layers (default gpu)"
    )
    add_options(show, BuildOptions, only=_BUILDING)
    show.add_argument("--trt-version", metavar="V", help="whose rules predict (default: the newest known)")


def _add_diff(actions: Actions[argparse.ArgumentParser]) -> None:
    diff = add_action(actions, "diff", "compare the layers of two engines of one model")
    diff.add_argument("a", metavar="A", help=_FILE)
    diff.add_argument("b", metavar="B", help="the other engine or model; models are built first")
    add_options(diff, BuildOptions, only=_BUILDING)
    diff.add_argument("--all", action="store_true", help="print the layers that are the same, too")


def run(args: argparse.Namespace) -> int:
    """Read, compare, print; faults are raised as QdqError."""
    return _show(args) if args.action == "show" else _diff(args)


def _show(args: argparse.Namespace) -> int:
    from qdqtool.engine.predicted_text import layers_json
    from qdqtool.verbs.show_engine import is_model, predicted_layers, show_engine

    if args.predicted:
        if not is_model(args.source):
            raise QdqError("--predicted", f"{args.source} is no .onnx model", "give the model, or leave it out")
        found = predicted_layers(args.source, args.trt_version, target=args.target, shapes=_options(args).shapes)
        facts = {"model": args.source, **layers_json(found.layers, found.ends, found.forecast)}
        return _print(facts, found.lines(), args)
    shown = show_engine(args.source, _options(args))
    return _print(shown.to_json(), shown.lines(), args)


def _diff(args: argparse.Namespace) -> int:
    from qdqtool.verbs.show_engine import diff_engines

    found = diff_engines(args.a, args.b, _options(args))
    return _print(found.to_json(), found.lines(in_full=args.all), args)


def _options(args: argparse.Namespace) -> ShowEngineOptions:
    from qdqtool.verbs.show_engine import ShowEngineOptions

    built = options_from(BuildOptions, args, only=_BUILDING)
    if args.action == "diff":
        return ShowEngineOptions(sm=built.sm, shapes=built.shapes)
    return ShowEngineOptions(args.model, args.profile, args.trt_version, built.sm, built.shapes)


def _print(facts: Mapping[str, object], lines: Sequence[str], args: argparse.Namespace) -> int:
    if args.json:
        print_json(facts)
    else:
        print_lines(lines, args, asked=True)
    return 0
