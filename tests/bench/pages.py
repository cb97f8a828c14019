# SPDX-License-Identifier: Apache-2.0
"""What scripts write into pages: the lines between two comments that name the script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def rewrite(page: Path, script: str, lines: Sequence[str]) -> None:
    """Put lines between a page's comments ``<!-- tests/bench/SCRIPT: begin -->`` and ``... end -->``.

    Raises:
        SystemExit: a comment is missing; the page stays as it is.
    """
    begin, end = (f"<!-- tests/bench/{script}: {word} -->" for word in ("begin", "end"))
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} has no {begin} ... {end}")
    page.write_text("\n".join([f"{before}{begin}", "", *lines, "", f"{end}{after}"]), encoding="utf-8")
