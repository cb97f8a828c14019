# SPDX-License-Identifier: Apache-2.0
"""`qdqtool ptq --compare-backends`: what the two back ends say differently, as a table or JSON. Nothing is computed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.cli.show import print_json, print_lines

if TYPE_CHECKING:
    from qdqtool.verbs.ptq_compare import BackendComparison


def show(comparison: BackendComparison, args: argparse.Namespace) -> None:
    """Print a comparison: what was asked for, so --quiet does not hide it."""
    if args.json:
        print_json({"schema": 1, "model": str(args.model), **comparison.to_json()})
    else:
        print_lines(comparison.summary(every=args.verbose), args, asked=True)
