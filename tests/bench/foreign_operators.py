# SPDX-License-Identifier: Apache-2.0
"""What each verb says of graphs with foreign or unknown operators: exit code, and the line that tells.

A script: python tests/bench/foreign_operators.py [WORD ...] prints the table of `foreign_nets.NETS` (those whose names
hold a word), and fails on exit code 70 and on anything lost without a word. tests/cli/test_cli_foreign_operators.py asserts
the same in the suite.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onnx
from foreign_nets import NETS, write_net

from qdqtool.cache.text import read_cache
from qdqtool.cli.main import main as qdqtool_main

# What is asked of each net, in this order: `peel` takes what `insert --data` made, or else what `insert` made.
VERBS = {
    "insert": ("insert", "m.onnx", "-o", "plain.onnx"),
    "insert --data": ("insert", "m.onnx", "--data", "d.npz", "-o", "data.onnx"),
    "ptq --target gpu": ("ptq", "m.onnx", "--data", "d.npz", "--target", "gpu", "--trt-version", "8502", "--cache", "g.cache"),
    "ptq --target dla": ("ptq", "m.onnx", "--data", "d.npz", "--target", "dla", "--trt-version", "8502", "--cache", "d.cache"),
    "peel --target dla": ("peel", "Q", "--target", "dla", "--trt-version", "8502", "--allow-estimated", "-o", "p.onnx", "--cache", "p.cache"),
    "lint": ("lint", "m.onnx", "--trt-version", "8502", "--ignore", "Q016,Q018"),
    "sensitivity": ("sensitivity", "m.onnx", "--data", "d.npz", "--top", "1"),
    "condition": ("condition", "m.onnx", "--data", "d.npz", "-o", "c.onnx"),
    "compare": ("compare", "m.onnx", "m.onnx", "--data", "d.npz"),
}  # fmt: skip
_TELLING = ("qdqtool: error:", "qdqtool: warning:", "without a scale:", "Q033", "m.onnx: nothing found")


@dataclass(frozen=True)
class Answer:
    """What one verb said of one net."""

    code: int
    out: str
    err: str
    cache: frozenset[str] | None = None

    @property
    def line(self) -> str:
        """The line that tells most: an error, else a warning, else what has no scale, else nothing."""
        lines = (self.err + self.out).splitlines()
        for start in _TELLING:
            for index, line in enumerate(lines):
                if line.startswith(start):
                    return (lines[index + 1].strip() if start == "Q033" else line).removeprefix("qdqtool: ")
        return ""


def ask(name: str, folder: Path) -> dict[str, Answer]:
    """Every verb on one net, in a folder that is empty at first."""
    write_net(name, folder)
    answers = {}
    for verb, words in VERBS.items():
        placed = "data.onnx" if (folder / "data.onnx").exists() else "plain.onnx"
        if words[1] == "Q" and not (folder / placed).exists():
            continue
        out, err = io.StringIO(), io.StringIO()
        files = [str(folder / {"Q": placed}.get(word, word)) if _is_file(word) else word for word in words]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = qdqtool_main(files)
        made = next((folder / word for word in words if word.endswith(".cache")), None)
        cache = frozenset(read_cache(made).entries) if made is not None and made.exists() else None
        said = (text.getvalue().replace(f"{folder}/", "") for text in (out, err))
        answers[verb] = Answer(code, *said, cache)
    return answers


def lost(name: str, answer: Answer) -> list[str]:
    """Float tensors of a net that a cache for the DLA has no scale for, and that nothing is said of."""
    floats = set(tensors_of(name))
    return sorted(one for one in floats - (answer.cache or floats) if f"{one} (" not in answer.out)


def tensors_of(name: str) -> list[str]:
    """What a net feeds and makes, but the integers that its NMS plugin counts in and its tables of shapes."""
    from foreign_nets import foreign_net

    graph = foreign_net(name).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.output}
    made = [graph.input[0].name, *(one for node in graph.node for one in node.output)]
    return [one for one in made if kinds.get(one, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT]


def _is_file(word: str) -> bool:
    return word == "Q" or word.endswith((".onnx", ".npz", ".cache"))


def main(words: list[str]) -> int:
    """Print the table; the number of answers with exit code 70 or with a loss that nobody tells of."""
    faults = 0
    print("| graph | verb | exit | line |\n|---|---|---|---|")
    for name in NETS:
        if words and not any(word in name for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            answers = ask(name, Path(folder))
        for verb, answer in answers.items():
            silent = lost(name, answer) if verb.endswith("dla") and answer.code == 0 else []
            faults += (answer.code == 70) + bool(silent)
            note = f" LOST: {', '.join(silent)}" if silent else ""
            print(f"| {name} | {verb} | {answer.code} | {answer.line.replace('|', ' ')[:200]}{note} |")
    print(f"{faults} answers with exit code 70 or a silent loss")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
