# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq --compare-backends`: what the two back ends say differently, as a table or JSON. Nothing is computed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qdqtool.cli.show import counted, print_json, print_lines

if TYPE_CHECKING:
    from qdqtool.verbs.ptq_compare import BackendComparison

_SHOWN = 40


def show(comparison: BackendComparison, args: argparse.Namespace) -> None:
    """Print a comparison: what was asked for, so --quiet does not hide it."""
    if args.json:
        print_json({"schema": 1, "model": str(args.model), **comparison.to_json()})
    else:
        print_lines(_lines(comparison, every=args.verbose), args, asked=True)


def _lines(comparison: BackendComparison, *, every: bool) -> Iterator[str]:
    """The scales that differ, most first, then the counts."""
    pairs = [*comparison.different, *comparison.near]
    shown = pairs if every else pairs[:_SHOWN]
    if pairs:
        width = max(6, *(len(pair.name) for pair in shown))
        yield f"{'tensor':<{width}}  {'embedded':<13}  {'tensorrt':<13}  ratio"
        for pair in shown:
            yield f"{pair.name:<{width}}  {pair.embedded:<13.7g}  {pair.tensorrt:<13.7g}  {pair.ratio:.7g}"
        if len(pairs) > len(shown):
            yield f"and {len(pairs) - len(shown)} more (all of them with -v)"
    for side, names in (("embedded", comparison.only_embedded), ("tensorrt", comparison.only_tensorrt)):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"in {side} alone: {', '.join(names[:_SHOWN])}{more}"
    yield (
        f"{len(comparison.equal)} equal, {len(comparison.near)} within 1 ulp, {len(comparison.different)} different;"
        f" method {comparison.method}, {counted(comparison.samples, 'sample')}, TensorRT {comparison.tensorrt};"
        " nothing written"
    )
