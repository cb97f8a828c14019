# SPDX-License-Identifier: Apache-2.0
"""A folder with the little network, data and a recipe; a command line that copies. No tests here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qdqtool.cli.commands import Commands
from qdqtool.recipe.command_line import CommandShape
from tests.cli.command import write_net

RECIPE = """
model = "m.onnx"
[[step]]
name = "q"
verb = "insert"
[step.options]
data = "d.npz"
keep-float = 0
[[step]]
name = "cache"
verb = "peel"
output = "plain.onnx"
[step.options]
target = "gpu"
trt-version = "8502"
source = "m.onnx"
[[step]]
name = "check"
verb = "cache check"
model = "${step:cache:cache}"
arguments = "m.onnx"
"""


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    """The network, its data and the recipe."""
    write_net(folder)
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return path


@dataclass
class CopyingCommands:
    """Verbs as they are typed, whose outputs hold what was typed: nothing is computed. `fails` names a verb."""

    fails: str = ""
    code: int = 0
    real: Commands = field(default_factory=Commands)
    called: list[str] = field(default_factory=list)
    words: list[Sequence[str]] = field(default_factory=list)

    def verbs(self) -> Sequence[str]:
        return self.real.verbs()

    def shape(self, verb: str) -> CommandShape:
        return self.real.shape(verb)

    def check(self, words: Sequence[str]) -> None:
        self.real.check(words)

    def call(self, words: Sequence[str]) -> int:
        self.called.append(words[0])
        self.words.append(words)
        if words[0] == self.fails:
            if self.code:
                return self.code
            raise KeyboardInterrupt
        for option in ("--output", "--cache"):
            if option in words and "cache.cache" not in words[:3]:
                target = Path(words[list(words).index(option) + 1])
                target.write_bytes(Path(words[1]).read_bytes())
        sys.stdout.write(json.dumps({"verb": words[0]}))
        return 0
