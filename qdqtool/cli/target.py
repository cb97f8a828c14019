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


_MOST_BATCH = 1 << 16


def max_batch(word: str) -> int:
    """The number behind `--max-batch`; argparse's one-line error for what is no number of samples."""
    if not word.isdecimal() or len(word) > len(str(_MOST_BATCH)) or not 1 <= int(word) <= _MOST_BATCH:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of samples, 1 to {_MOST_BATCH}")
    return int(word)
