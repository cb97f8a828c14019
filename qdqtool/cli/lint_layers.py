# SPDX-License-Identifier: Apache-2.0
"""`qdqtool lint --layers` and `--layer-info`: words to calls and back. The verb's other options are in `lint.py`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.verbs.lint_layers import LayersResult


def add_layer_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what asks for layers."""
    parser.add_argument("--layers", action="store_true", help="print the layers that TensorRT would build (gpu)")
    parser.add_argument(
        "--layer-info",
        metavar="FILE",
        help="compare them with an engine's: JSON of trtexec --exportLayerInfo, or a verbose log",
    )


def predicted(args: argparse.Namespace) -> LayersResult | None:
    """The layers where they are asked for; faults are raised as QdqError."""
    if not args.layers and args.layer_info is None:
        return None
    if args.format == "sarif":
        raise QdqError("--format sarif", "holds findings, no layers", "use --format text or json with --layers")
    from qdqtool.verbs.lint_layers import lint_layers

    return lint_layers(args.model, args.trt_version, args.layer_info, target=args.target)


def layer_text(result: LayersResult | None, args: argparse.Namespace) -> list[str]:
    """What is printed behind the findings."""
    if result is None:
        return []
    return [*(result.lines() if args.layers else ()), *result.differences()]


def layer_facts(result: LayersResult | None) -> dict[str, object]:
    """What `--json` has more where layers are asked for."""
    if result is None:
        return {}
    from qdqtool.engine.text import comparison_json, layers_json

    facts: dict[str, object] = dict(layers_json(result.layers, result.forecast))
    if result.info is not None and result.comparison is not None:
        facts["engine"] = comparison_json(result.comparison, result.info)
    return facts
