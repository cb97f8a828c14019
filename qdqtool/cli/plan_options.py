# SPDX-License-Identifier: Apache-2.0
"""The options of every verb that asks where pairs stand, as `insert` will be asked. No verb of its own."""

from __future__ import annotations

import argparse

from qdqtool.cli.declared import add_options, options_from
from qdqtool.match.options import PlanOptions

PLACEMENT = ("trt_version", "rules", "float_heads", "heads", "not_heads", "keep_float")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where pairs will stand."""
    group = parser.add_argument_group("placement of pairs (give the same options to insert)")
    add_options(group, PlanOptions, only=PLACEMENT)


def plan_options_from(args: argparse.Namespace) -> PlanOptions:
    """What `add_plan_arguments` declared."""
    return options_from(PlanOptions, args, only=PLACEMENT)
