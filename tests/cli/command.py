# SPDX-License-Identifier: Apache-2.0
"""One command run in this process, and what a folder held before and after. No tests here."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.cli.main import main
from tests.graphs import SMALL_NET, model_of

NET = SMALL_NET
SCHEMA = Path(qdqtool.__file__).parent / "schemas" / "output.schema.json"
LINE = re.compile(r"qdqtool: error: [^\n]+: [^\n]+\n")


@dataclass(frozen=True)
class CommandOutput:
    """What a command gave: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *words: object) -> CommandOutput:
    """Run `qdqtool WORDS...` and take what it wrote; what --json prints must fit the published schema."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    said = CommandOutput(code, *capsys.readouterr())
    if "--json" in words and said.out.startswith("{"):
        check_output([str(word) for word in words], json.loads(said.out))
    return said


def check_output(words: list[str], document: dict[str, Any]) -> None:
    """Compare what a command printed with qdqtool/schemas/output.schema.json; nothing where jsonschema is missing."""
    if importlib.util.find_spec("jsonschema") is None or "$schema" in document:  # SARIF names its own
        return
    import jsonschema

    schema = json.loads(SCHEMA.read_text("utf-8"))
    verb = " ".join(words[:2]) if " ".join(words[:2]) in schema["$defs"] else words[0]
    kind = next((f"{verb} {word}" for word in words if f"{verb} {word}" in schema["$defs"]), verb)
    jsonschema.Draft202012Validator({**schema, "$ref": f"#/$defs/{kind.replace(' ', '%20')}"}).validate(document)


def log_of(folder: Path, *words: str) -> list[str]:
    """The lines of `qdqtool WORDS... > log 2>&1` in a folder, where stdout is buffered."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command, path = [sys.executable, "-m", "qdqtool", *words], folder / "log"
    with path.open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=False, cwd=folder, env=environment)
    return path.read_text("utf-8").splitlines()


def refused(said: CommandOutput, *parts: str, code: int = 2) -> None:
    """The command ended with one line on stderr, in the one form, that holds all the parts."""
    assert said.code == code, said.err
    assert LINE.fullmatch(said.err), said.err
    assert said.out == ""
    for part in parts:
        assert part in said.err


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder; links and folders by their kind."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[str(path.relative_to(folder))] = kind
    return found


def write_net(folder: Path, opset: int = 13, **changes: Any) -> Path:
    """The little network as `folder/m.onnx`, with seeded data for it as `folder/d.npz`."""
    model = model_of(NET, opset, ir=changes.get("ir", 8))
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    np.savez(folder / "d.npz", x=np.random.default_rng(3).normal(size=(6, 4, 8, 8)).astype(np.float32))
    return path


def pairs_of(path: Path) -> list[str]:
    """Tensors that a QuantizeLinear of the model reads, constants left out."""
    graph = onnx.load(path).graph
    stored = {tensor.name for tensor in graph.initializer}
    return [n.input[0] for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in stored]
