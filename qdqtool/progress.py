# SPDX-License-Identifier: Apache-2.0
"""Whether progress is shown: one answer for every bar. What a bar counts, its owner knows."""

from __future__ import annotations

import sys


def is_shown(progress: bool | None) -> bool:
    """What was asked for; where nothing was, whether stderr is a terminal."""
    return sys.stderr.isatty() if progress is None else progress
