# SPDX-License-Identifier: Apache-2.0
"""What the user can fix: one class, one form, one line. Anything else that is raised is our bug."""

from __future__ import annotations

import re

# What one line of output may hold. A message with six names of 200 letters has room; one name of 100 kB has not.
MAX_LINE = 2000
# An option of the command line, and what ends the text that speaks of options: a command that can be typed.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w-])")
_COMMAND = re.compile(r"\bqdqtool [a-z]|\bpip install ")
_PARAMETERS = {"for": "place, places or device", "max-data": "max_bytes"}  # whose names differ by more than the dashes


class QdqError(Exception):
    """A fault in the input or the request: where it is, what it is, what to do.

    The command line prints it as ``qdqtool: error: <where>: <reason>; <what to do>`` and exits with `exit_code`. In
    Python, `str` adds the parameters that are meant by the options in it.
    """

    exit_code = 2

    def __init__(self, where: object, reason: str, todo: str = "") -> None:
        self.where = str(where)
        self.reason = reason
        self.todo = todo
        super().__init__(self.line())

    @property
    def is_of_system(self) -> bool:
        """Whether a file or a device was at fault, as with a full disk, and not what was asked for."""
        cause = self.__cause__
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__
        return cause is not None

    def __str__(self) -> str:
        """The message, and what its options are called in Python."""
        parts = (_COMMAND.split(part)[0] for part in (self.where, self.reason, self.todo))
        options = dict.fromkeys(name for part in parts for name in _OPTION.findall(part))
        names = [_PARAMETERS.get(name, name.replace("-", "_")) for name in options]
        return self.line() + (f" (in Python: {', '.join(names)})" if names else "")

    def line(self) -> str:
        """The message on one line that a terminal can show: see `printable`; parts are cut where all are too long."""
        where, reason, todo = (printable(str(part)) for part in (self.where, self.reason, self.todo))
        if len(where) + len(reason) + len(todo) > MAX_LINE:
            where, todo = printable(where, MAX_LINE // 5), printable(todo, 2 * MAX_LINE // 5)
            reason = printable(reason, MAX_LINE - len(where) - len(todo))
        return f"{where}: {reason}" + (f"; {todo}" if todo else "")


class MissingPackageError(QdqError):
    """An optional package that the request needs is not installed."""

    exit_code = 3


def printable(text: str, longest: int | None = MAX_LINE) -> str:
    """Text of a model or a file as one line may show it: what a terminal would act on is escaped, what is long is cut.

    Line breaks, escape sequences, marks that turn the direction of writing and halves of surrogate pairs become
    backslash escapes.
    """
    text = _cut(text, longest)
    if text.isprintable():
        return text
    return _cut("".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text), longest)


def _cut(text: str, longest: int | None) -> str:
    if longest is None or len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
