# SPDX-License-Identifier: Apache-2.0
"""What a mutation run found: a table of its commands, and the faults in groups. Text and JSON."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.fork_server import Ended
from tests.fuzz.verdict import Fault

_KEPT = 2  # runs of one group of faults whose files are kept
_CODES = (0, 1, 2, 3)


@dataclass
class FaultGroup:
    """Runs with the same fault: how many, in which commands, and the one with the smallest inputs."""

    count: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    smallest: int = 0
    example: str = ""
    done: str = ""

    def add(self, task: str, size: int, done: str) -> None:
        self.count += 1
        self.commands[task.partition(":")[0]] += 1
        if not self.example or size < self.smallest:
            self.smallest, self.example, self.done = size, task, done


@dataclass
class Report:
    """What has been found so far; files of faulty runs are kept below `keep`, a few of each group."""

    keep: Path | None = None
    codes: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak_mb: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    groups: dict[Fault, FaultGroup] = field(default_factory=lambda: defaultdict(FaultGroup))

    def add(self, ended: Ended, faults: list[Fault]) -> None:
        """Count one run."""
        name = ended.task.id.partition(":")[0]
        self.codes[name][ended.code] += 1
        self.seconds[name] += ended.cpu_seconds
        self.peak_mb[name] = max(self.peak_mb[name], ended.peak_mb)
        self.wrong[name] += bool(faults)
        for fault in faults:
            group, job = self.groups[fault], ended.folder / "job.json"
            facts = json.loads(job.read_text()) if job.exists() else {}
            size = sum(path.stat().st_size for path in (ended.folder / "run").rglob("*") if path.is_file())
            group.add(ended.task.id, size, facts.get("done", ""))
            if self.keep and group.count <= _KEPT:
                self._keep(ended, fault, facts)

    def _keep(self, ended: Ended, fault: Fault, facts: dict[str, Any]) -> None:
        assert self.keep is not None
        place = self.keep / f"{fault.kind}-{ended.task.id.replace(':', '-')}"
        shutil.copytree(ended.folder, place, dirs_exist_ok=True, symlinks=True)
        (place / "facts.json").write_text(json.dumps({"fault": [fault.kind, fault.what], **facts}, indent=1))

    @property
    def runs(self) -> int:
        """All runs."""
        return sum(sum(codes.values()) for codes in self.codes.values())

    @property
    def faulty(self) -> int:
        """Runs with at least one fault."""
        return sum(self.wrong.values())

    def table(self) -> str:
        """A line for each command."""
        head = ["command", "runs", *(f"exit {code}" for code in _CODES), "other", "faults", "CPU s", "peak MB"]
        rows = [head, *([name, *self._figures(name)] for name in sorted(self.codes))]
        totals = [sum(int(row[column]) for row in rows[1:]) for column in range(1, 8)]
        total = f"{sum(self.seconds.values()):.0f}", f"{max(self.peak_mb.values(), default=0):.0f}"
        rows.append(["all", *map(str, totals), *total])
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )

    def _figures(self, name: str) -> list[str]:
        codes = self.codes[name]
        runs = sum(codes.values())
        counts = [runs, *(codes[code] for code in _CODES), runs - sum(codes[code] for code in _CODES), self.wrong[name]]
        return [*map(str, counts), f"{self.seconds[name]:.1f}", f"{self.peak_mb[name]:.0f}"]

    def faults(self) -> str:
        """A line for each group of faults, the most frequent of each kind first."""
        ordered = sorted(self.groups.items(), key=lambda item: (item[0].kind, -item[1].count, item[0].what))
        lines = []
        for fault, group in ordered:
            commands = ", ".join(name for name, _ in group.commands.most_common(4))
            lines.append(f"{fault.kind:<8} {group.count:>5}  {fault.what}")
            lines.append(f"{'':<16}{group.example} ({group.smallest} bytes; {ascii(group.done)[1:200]}) in {commands}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same, for programs."""
        commands = {
            name: {
                "runs": sum(codes.values()),
                "codes": {str(code): count for code, count in sorted(codes.items())},
                "faulty": self.wrong[name],
                "cpu_seconds": round(self.seconds[name], 2),
                "peak_mb": round(self.peak_mb[name]),
            }
            for name, codes in sorted(self.codes.items())
        }
        groups = [
            {
                "kind": fault.kind,
                "what": fault.what,
                "count": g.count,
                "example": g.example,
                "commands": dict(g.commands),
            }
            for fault, g in sorted(self.groups.items())
        ]
        return {"runs": self.runs, "faulty": self.faulty, "commands": commands, "groups": groups}
