# SPDX-License-Identifier: Apache-2.0
"""A message is one line of bounded length that does nothing to a terminal, whatever names a file brings."""

from __future__ import annotations

import pytest

from qdqtool.errors import MAX_LINE, QdqError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1/weight:0", "conv1/weight:0"),
        ("Gewicht é 重み", "Gewicht é 重み"),
        ("a\nqdqtool: error: forged", "a\\nqdqtool: error: forged"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b2J", "\\x9b2J"),
        ("left\u202eright", "left\\u202eright"),
        ("half \udcff", "half \\udcff"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown and printable(text).isprintable()


def test_long_text_is_cut_in_the_middle() -> None:
    text = "begin" + "x" * 100_000 + "end"
    shown = printable(text)
    assert len(shown) < MAX_LINE + 60 and shown.startswith("begin") and shown.endswith("end")
    assert f"[... {len(text) - MAX_LINE} characters ...]" in shown
    assert printable(text, None) == text


def test_every_part_of_an_error_is_bounded_and_escaped() -> None:
    name = "\x1b[2J" + "n" * 100_000
    line = QdqError(name, f"reads {name}", f"rename {name}").line()
    assert line.isprintable() and len(line) < MAX_LINE + 200
    assert len(QdqError("m.onnx", "\x1b" * 1900, "\u202e" * 1900).line()) < MAX_LINE + 200, (
        "an escape takes four, or six"
    )


def test_the_parts_share_a_line() -> None:
    """What is short is kept whole: the command of the next step, above all."""
    line = QdqError("m.onnx", "r" * 5000, "qdqtool lint m.onnx").line()
    assert line.startswith("m.onnx: rrr") and line.endswith("; qdqtool lint m.onnx") and len(line) < MAX_LINE + 60


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (("--max-loss", "is -1", "give 0 or more"), " (in Python: max_loss)"),
        (("--for nowhere", "is no board", "leave --dla out"), " (in Python: place, places or device, dla)"),
        (("m.onnx", "has Q/DQ already", "run qdqtool insert m.onnx --requantize"), ""),
        (("m.onnx", "has no --layerPrecisions", ""), ""),
    ],
)
def test_python_is_told_the_parameters_that_options_stand_for(parts: tuple[str, str, str], names: str) -> None:
    error = QdqError(*parts)
    assert str(error) == error.line() + names


def test_an_error_that_a_file_caused_is_of_the_system() -> None:
    full = QdqError("a.onnx", "cannot be written")
    full.__cause__ = OSError(28, "No space left on device")
    step = QdqError("step a", "failed")
    step.__cause__ = full
    assert full.is_of_system and step.is_of_system and not QdqError("a.onnx", "has no nodes").is_of_system
