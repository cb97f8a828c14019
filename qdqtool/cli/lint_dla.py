# SPDX-License-Identifier: Apache-2.0
"""`qdqtool lint --target dla`: where each node would run, after the findings. Words to calls and back, no more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtool.display import counted
from qdqtool.errors import QdqError

if TYPE_CHECKING:
    from qdqtool.dla.assignment import DlaAssignment, DlaReport


def check_dla_arguments(args: argparse.Namespace) -> None:
    """Refuse what would do nothing."""
    if args.platform is not None and args.target != "dla":
        raise QdqError("--platform", "says whose DLA, and the target is another", "add --target dla")


def dla_text(report: DlaReport | None, args: argparse.Namespace) -> list[str]:
    """What is printed after the findings: the counts, and on request a line for each node that has a layer."""
    if report is None:
        return []
    parts = len(report.subgraphs.members)
    limit = "" if report.most is None else f" of at most {report.most.most}"
    whose = f"DLA of {report.platform.capitalize()}, TensorRT {report.version.text}"
    split = f"{counted(len(report.on_dla), 'node')} on the DLA, {len(report.fallbacks)} on the GPU"
    lines = [f"{whose}: {split}, {counted(parts, 'DLA subgraph')}{limit}"]
    if report.guessed:
        lines.append(f"{report.guesses()}; the log of a build on the board says it")
    if report.free_batch:
        lines.append("its batch is dynamic, and 1 was assumed: give one shape for minimum, optimum and maximum")
    if report.subgraphs.untried:
        lines.append(
            f"{counted(report.subgraphs.untried, 'group')} of fallback nodes not checked for the subgraphs that "
            "they split"
        )
    if not (args.all or args.verbose):
        return [*lines, "where each node runs: --all shows it"]
    for one in report.verdicts:
        if one.device == "dla":
            lines.append(f"  {one.name}: {one.op}, DLA subgraph {one.subgraph}{_by_guess(one)}")
        elif one.device == "gpu":
            why = "; ".join(reason.text for reason in one.reasons)
            lines.append(f"  {one.name}: {one.op}, GPU because {why}{_by_guess(one)}")
    return lines


def _by_guess(one: DlaAssignment) -> str:
    """What is said after a verdict that rests on guesses."""
    return f" (by a guess: rule {', '.join(one.guessed_rules)})" if one.guessed_rules else ""


def dla_facts(report: DlaReport | None) -> dict[str, object]:
    """What `--json` has more for the DLA."""
    return {} if report is None else {"dla": report.to_json()}
