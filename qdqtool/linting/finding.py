# SPDX-License-Identifier: Apache-2.0
"""What lint says: a finding, how grave it is, and the order in which findings are listed. Not how one is found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from qdqtool.display import Displayed, counted

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, repr=False)
class Finding(Displayed):
    """One thing that is wrong, or good to know, at one place.

    Attributes:
        code: of the check that found it, such as Q001.
        severity: error where TensorRT refuses the model or its numbers are broken, warning where speed or accuracy
            is lost, note for what is good to know.
        where: the tensor or node, by its name in the model.
        message: one sentence without the place.
        fix: what to do; the command of qdqtool where there is one.
        fixable: whether `lint --fix` repairs it.
        targets: the targets it holds for.
        trt: the range of TensorRT versions it holds for, such as ">=8.0,<9"; "" for all.
    """

    code: str
    severity: Severity
    where: str
    message: str
    fix: str = ""
    fixable: bool = False
    targets: tuple[str, ...] = ("gpu", "rtx", "dla")
    trt: str = ""

    def headline(self) -> str:
        """Code, severity, place and message."""
        return f"{self.code} {self.severity}: {self.where}: {self.message}"

    def summary(self) -> list[str]:
        """The headline, and what to do."""
        return [self.headline()] + ([f"  to do: {self.fix}"] if self.fix else [])

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same finding in another version of the model: its code and place."""
        return self.code, self.where

    def to_json(self) -> dict[str, object]:
        """Its fields as JSON values."""
        return {
            "code": self.code,
            "severity": self.severity,
            "where": self.where,
            "message": self.message,
            "fix": self.fix,
            "fixable": self.fixable,
            "targets": list(self.targets),
            "trt": self.trt,
        }


def at_least(findings: Iterable[Finding], level: Severity) -> list[Finding]:
    """The findings of a level or graver."""
    grave = SEVERITIES[: SEVERITIES.index(level) + 1]
    return [finding for finding in findings if finding.severity in grave]


def by_code(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """The findings of each code in their order; the codes with the gravest findings first, then by name."""
    table: dict[str, list[Finding]] = {}
    for finding in findings:
        table.setdefault(finding.code, []).append(finding)
    rank = {code: min(SEVERITIES.index(one.severity) for one in found) for code, found in table.items()}
    return {code: table[code] for code in sorted(table, key=lambda code: (rank[code], code))}


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Severity -> how many findings have it, the gravest first."""
    listed = list(findings)
    return {severity: sum(one.severity == severity for one in listed) for severity in SEVERITIES}


def format_counts(findings: Iterable[Finding]) -> str:
    """`1 error, 2 warnings`; empty where there are none."""
    return ", ".join(counted(number, severity) for severity, number in counts(findings).items() if number)
