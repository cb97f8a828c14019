# SPDX-License-Identifier: Apache-2.0
"""The line on a terminal while a verb is empty: shown, named after what runs, taken away before other words."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

from qdqtool.cli.heartbeat import doing, heartbeat
from qdqtool.progress import Heartbeat


class Terminal(io.StringIO):
    """A stream that passes for a terminal and tells when the line was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if text.endswith(" s"):
            self.shown.set()
        return count


def screen(text: str) -> list[str]:
    """The lines that a terminal shows of a text with carriage returns."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_a_silent_block_gets_a_line_that_goes_before_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, out = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", out)
    with heartbeat("insert", after=0.0, every=0.001):
        assert terminal.shown.wait(20), "no line came"
        sys.stderr.write("qdqtool: note: x\n")
        assert screen(terminal.getvalue())[0] == "qdqtool: note: x"
        terminal.shown.clear()
        assert terminal.shown.wait(20)
        assert sys.stderr.isatty() and sys.stdout.isatty()
    assert terminal.getvalue().startswith("insert: starting, 0 s")
    assert screen(terminal.getvalue()) == ["qdqtool: note: x", ""]
    assert sys.stderr is terminal and sys.stdout is out


def test_a_bar_that_closes_unseen_puts_off_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a bar writes "": taken for a word, it kept the line away for two seconds."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    cleared: list[str] = []
    monkeypatch.setattr(Heartbeat, "clear", lambda beat: cleared.append("cleared"))
    with heartbeat("insert", after=3600):
        sys.stderr.write("")
        assert not cleared
        sys.stderr.write("qdqtool: note: x\n")
        assert len(cleared) == 1


def test_nothing_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stream = sys.stderr
    with heartbeat("insert", after=0.0, every=0.001):
        assert sys.stderr is stream
    with heartbeat("", after=0.0):
        assert sys.stderr is stream
    assert capsys.readouterr() == ("", "")


def test_a_fault_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    count = threading.active_count()
    with pytest.raises(ValueError, match="x"), heartbeat("lint", after=0.0, every=0.001):
        raise ValueError("x")
    assert sys.stderr is terminal and threading.active_count() == count


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("qdqtool.measuring.float_search", "measuring the loss of operators"),
        ("qdqtool.conditioning.run", "searching weight edits"),
        ("qdqtool.conditioning", "searching weight edits"),
        ("qdqtool.conditioningother", "starting"),
        ("somebody.else", "starting"),
    ],
)
def test_the_packages_on_the_stack_say_what_is_done(module: str, words: str) -> None:
    space: dict[str, Any] = {"__name__": module, "sys": sys}
    exec("def frame():\n    return sys._getframe()", space)
    assert doing(space["frame"]()) == words
    assert doing(None) == "starting"


def test_a_module_that_is_being_imported_is_the_start() -> None:
    space: dict[str, Any] = {"__name__": "qdqtool.files", "sys": sys}
    exec("found = sys._getframe()", space)
    assert doing(space["found"]) == "starting"


def test_what_knows_how_far_it_is_says_so() -> None:
    space: dict[str, Any] = {"__name__": "qdqtool.training.loop", "sys": sys}
    exec(
        "class Run:\n    how_far = property(lambda self: 'step 3 of 9')\n"
        "    def frame(self):\n        return inner()\ndef inner():\n    return sys._getframe()",
        space,
    )
    assert doing(space["Run"]().frame()) == "training, step 3 of 9"


def test_every_package_that_is_named_is_there() -> None:
    import importlib

    from qdqtool.cli.heartbeat import _WORDS

    assert all(importlib.import_module(package) for package in _WORDS)
