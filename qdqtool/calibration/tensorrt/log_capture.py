# SPDX-License-Identifier: Apache-2.0
"""What Polygraphy and TensorRT say: off our stdout, errors kept for our one line. Not what we say."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

_STDOUT, _STDERR = 1, 2


class Said(logging.Handler):
    """Keeps what Polygraphy logs, TensorRT's messages among it.

    Attributes:
        lines: messages of level WARNING and above, oldest first.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._errors: dict[int, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        text = record.getMessage().strip()
        self.lines.append(text)
        if record.levelno >= logging.ERROR:
            self._errors[record.levelno] = next(iter(text.splitlines()), "")

    @property
    def last(self) -> str:
        """The first line of TensorRT's last error, else of what Polygraphy gave up with, "" where there was neither."""
        return self._errors.get(logging.ERROR) or self._errors.get(logging.CRITICAL, "")

    def messages(self) -> RuntimeError:
        """All of it as the cause of our error, which -v shows."""
        return RuntimeError("\n".join(["messages of TensorRT and Polygraphy:", *self.lines]))


@contextlib.contextmanager
def quiet_polygraphy() -> Iterator[Said]:
    """Run a block of Polygraphy's and TensorRT's: nothing on stdout, nothing installed.

    Polygraphy logs INFO to stdout and may run pip by itself; for the block its messages go to the value of this
    context and POLYGRAPHY_AUTOINSTALL_DEPS holds 0. What C++ writes to stdout lands on stderr.
    """
    from polygraphy import config
    from polygraphy.logger import G_LOGGER

    said, logger = Said(), logging.getLogger("Polygraphy")
    logger.addHandler(said)
    try:
        with (
            _environment("POLYGRAPHY_AUTOINSTALL_DEPS", "0"),
            _holding(config, AUTOINSTALL_DEPS=False),
            _holding(G_LOGGER, use_python_logging_system=True, colors=False, letter=False),
            _holding(logger, propagate=False),
            G_LOGGER.verbosity(G_LOGGER.WARNING),
            stdout_on_stderr(),
        ):
            yield said
    finally:
        logger.removeHandler(said)


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Send what is written to stdout to stderr, by Python and by libraries below it."""
    saved = None
    with contextlib.suppress(OSError, ValueError):  # a process may have neither
        sys.stdout.flush()
        saved = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            with contextlib.suppress(OSError, TypeError, AttributeError):
                ctypes.CDLL(None).fflush(None)  # what C++ holds back must not come out later, on our stdout
            os.dup2(saved, _STDOUT)
            os.close(saved)


@contextlib.contextmanager
def _holding(owner: Any, **values: object) -> Iterator[None]:
    """Attributes of another's object at other values while the block runs."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
