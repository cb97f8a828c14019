# SPDX-License-Identifier: Apache-2.0
"""What the user can fix: one class, one form, one line. Anything else that is raised is our bug."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class QdqError(Exception):
    """A fault in the input or the request: where it is, what it is, what to do.

    The command line prints it as ``qdqtool: error: <where>: <reason>; <what to do>`` and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(self, where: object, reason: str, todo: str = "") -> None:
        self.where = str(where)
        self.reason = reason
        self.todo = todo
        super().__init__(self.line())

    def line(self) -> str:
        """The message on one line, control characters replaced."""
        text = f"{self.where}: {self.reason}" + (f"; {self.todo}" if self.todo else "")
        return _CONTROL.sub(" ", text)


class MissingPackageError(QdqError):
    """An optional package that the request needs is not installed."""

    exit_code = 3
