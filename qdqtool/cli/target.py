# SPDX-License-Identifier: Apache-2.0
"""`--max-batch` of the verbs that build engines. No verb of its own."""

from __future__ import annotations

import argparse

from qdqtool.cli.declared import add_option
from qdqtool.target_options import MAX_BATCH


def add_max_batch(parser: argparse.ArgumentParser) -> None:
    """Declare `--max-batch`."""
    add_option(parser, MAX_BATCH["option"])
