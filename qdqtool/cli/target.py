# SPDX-License-Identifier: Apache-2.0
"""The word behind `--target` for verbs that work with calibration caches: rtx is refused with its reason."""

from __future__ import annotations

import argparse


def cache_target(word: str) -> str:
    """The word itself; argparse's one-line error for rtx, which has no caches."""
    from qdqtool.rtxversion import NO_CACHES, RTX_TARGET

    if word == RTX_TARGET:
        raise argparse.ArgumentTypeError(f"rtx: {NO_CACHES}")
    return word
