# SPDX-License-Identifier: Apache-2.0
"""The register of checks, looked up by code, and the run of those that are asked for. Not what any of them looks at.

A check is a function with `@check` in a module whose name begins with `check_`; its code is one more than the highest.
Its docstring is what `lint --explain CODE` prints.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from qdqtool import linting
from qdqtool.errors import QdqError
from qdqtool.linting.finding import Finding, Severity
from qdqtool.linting.lint_context import LintContext
from qdqtool.trtversion import in_range

# The modules of checks are those whose name begins so; each fills the register when it is imported.
_CHECK_MODULES = "check_"


@dataclass(frozen=True)
class CheckFault:
    """What a check says of one place; the rest of the finding is the check's own.

    Attributes:
        where: tensor or node.
        message: one sentence without the place.
        fix: what to do.
        fixable: whether `--fix` repairs this one.
        severity: where it is not the check's own.
    """

    where: str
    message: str
    fix: str
    fixable: bool = False
    severity: Severity | None = None


Look = Callable[[LintContext], Iterable[CheckFault]]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        code: Q001 and so on.
        name: two or three words joined by hyphens.
        severity: of most of its findings.
        look: what it does; its docstring explains it.
        targets: for which it is asked.
        trt: the range of versions for which it is asked; "" for all.
    """

    code: str
    name: str
    severity: Severity
    look: Look
    targets: tuple[str, ...] = ("gpu", "rtx", "dla")
    trt: str = ""

    @property
    def explanation(self) -> str:
        """The whole docstring."""
        return inspect.cleandoc(self.look.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first sentence of it."""
        return " ".join(self.explanation.partition("\n\n")[0].split())

    def findings(self, context: LintContext) -> list[Finding]:
        """What it finds, each place once; nothing where it does not hold for the target or version."""
        if context.target not in self.targets or (self.trt and not in_range(context.version, self.trt)):
            return []
        found: dict[tuple[str, str], Finding] = {}
        for fault in self.look(context):
            severity = fault.severity or self.severity
            finding = Finding(
                self.code, severity, fault.where, fault.message, fault.fix, fault.fixable, self.targets, self.trt
            )
            found.setdefault((fault.where, fault.message), finding)
        return list(found.values())


_CHECKS: dict[str, Check] = {}


def check(
    code: str, name: str, severity: Severity, *, targets: tuple[str, ...] = ("gpu", "rtx", "dla"), trt: str = ""
) -> Callable[[Look], Look]:
    """Make a function known as the check of a code."""

    def register(look: Look) -> Look:
        _CHECKS[code] = Check(code, name, severity, look, targets, trt)
        return look

    return register


def all_checks() -> dict[str, Check]:
    """Every check by its code, in order of the codes."""
    for module in pkgutil.iter_modules(linting.__path__):
        if module.name.startswith(_CHECK_MODULES):
            importlib.import_module(f"{linting.__name__}.{module.name}")
    return {code: _CHECKS[code] for code in sorted(_CHECKS)}


def checks_of(select: Collection[str] = (), ignore: Collection[str] = ()) -> list[Check]:
    """The checks that are asked for: all, or the selected ones, less those to ignore.

    Raises:
        QdqError: a code that no check has; the nearest is named.
    """
    known = all_checks()
    for code in (*select, *ignore):
        check_named(code)
    return [one for code, one in known.items() if (not select or code in select) and code not in ignore]


def check_named(code: str) -> Check:
    """The check of a code.

    Raises:
        QdqError: there is none.
    """
    known = all_checks()
    if code in known:
        return known[code]
    near = difflib.get_close_matches(code.upper(), known, 1)
    hint = f", did you mean {near[0]}" if near else ""
    raise QdqError(code or "''", f"no check has this code{hint}", f"codes are {min(known)} to {max(known)}")


def run_checks(context: LintContext, checks: Iterable[Check]) -> list[Finding]:
    """What the checks find in a model, by code and then in the order of the graph."""
    return [finding for one in checks for finding in one.findings(context)]
