# SPDX-License-Identifier: Apache-2.0
"""The recipe as TOML: what is written is read back."""

from __future__ import annotations

import sys

from qdqtool.deploying.recipe import WrittenStep, recipe_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ODD = 'a "b" \\ c\té \U0001f600'


def test_what_is_written_is_read_back() -> None:
    options = {"data": ODD, "steps": 200, "rate": 0.5, "json": True, "heads": ["a", "b"]}
    steps = [
        WrittenStep("1-insert", "insert", "m.onnx", options=options),
        WrittenStep("2-peel", "peel", "p.onnx", "1-insert"),
    ]
    found = tomllib.loads(recipe_text("m.onnx", "again", steps, ["two\nlines"]))
    assert found["model"] == "m.onnx" and found["out"] == "again"
    assert found["step"][0] == {"name": "1-insert", "verb": "insert", "output": "m.onnx", "options": options}
    assert found["step"][1] == {"name": "2-peel", "verb": "peel", "model": "1-insert", "output": "p.onnx"}


def test_a_control_character_does_not_break_the_file() -> None:
    found = tomllib.loads(recipe_text("a\x00\x7f\x1fb", "out", []))
    assert found["model"] == "a\x00\x7f\x1fb"


def test_comments_stay_on_their_line() -> None:
    assert recipe_text("m", "o", [], ["one\nmodel = 2"]).splitlines()[0] == "# one model = 2"
