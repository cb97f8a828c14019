# SPDX-License-Identifier: Apache-2.0
"""A cache as a script of Polygraphy and back: the same bits, read without running a line of it."""

from __future__ import annotations

import ast
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from qdqtool.cache.convert import parse, read_any, render
from qdqtool.cache.polygraphy_ranges import read_polygraphy
from qdqtool.cache.text import Cache
from qdqtool.cli.main import main
from qdqtool.emit import EmitJob
from qdqtool.emit.polygraphy_script import write_polygraphy_script
from qdqtool.errors import QdqError
from qdqtool.trtversion import TrtVersion
from tests.cache.test_convert import SMALL, bits, cache_of, float32, tables


class ScriptTensor:
    def __init__(self, name: str) -> None:
        self.name = name
        self.dynamic_range: tuple[float, float] | None = None


class ScriptNetwork:
    """As much of trt.INetworkDefinition as the script reads."""

    def __init__(self, inputs: list[ScriptTensor], layers: list[list[ScriptTensor]]) -> None:
        self.inputs, self.layers = inputs, layers
        self.num_inputs, self.num_layers = len(inputs), len(layers)

    def get_input(self, index: int) -> ScriptTensor:
        return self.inputs[index]

    def get_layer(self, index: int) -> Any:
        outputs = self.layers[index]
        return types.SimpleNamespace(num_outputs=len(outputs), get_output=lambda i: outputs[i])


def run_script(
    cache: Cache, version: str, monkeypatch: pytest.MonkeyPatch, network: ScriptNetwork, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", types.SimpleNamespace(__version__=version))  # type: ignore[arg-type]
    script = folder / "ranges.py"
    script.write_bytes(render(cache, "polygraphy-script"))
    loader = pytest.importorskip("polygraphy.backend.common")
    loader.InvokeFromScript(str(script), name="postprocess")(network=network)


def test_polygraphy_runs_our_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = [ScriptTensor(name) for name in ("input", "conv/Relu:0", "other")]
    run_script(SMALL, "10.3.0", monkeypatch, ScriptNetwork(tensors[:1], [tensors[1:]]), tmp_path)
    for tensor in tensors[:2]:
        amax = float(SMALL.entries[tensor.name]) * 127
        assert tensor.dynamic_range == (-amax, amax)
    assert tensors[2].dynamic_range is None
    assert re.search('1 of 3 ranges .* a, "b"', capsys.readouterr().err)


def test_the_script_refuses_tensorrt_11(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="no dynamic ranges"):
        run_script(SMALL, "11.4.1.106", monkeypatch, ScriptNetwork([], []), tmp_path)


@given(tables)
def test_names_in_the_script_are_data(table: dict[str, int]) -> None:
    tree = ast.parse(render(cache_of(table), "polygraphy-script"))
    ranges = next(node for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(ranges.value) == {name: float(float32(word)) * 127 for name, word in table.items()}
    kinds = [type(node) for node in tree.body]
    assert kinds == [ast.Expr, ast.Import, ast.Import, ast.Assign, ast.FunctionDef]


# ---------------------------------------------------------------- and back


def test_what_peel_emits_is_read_too() -> None:
    job = EmitJob("m.onnx", "m.cache", "m", "gpu", TrtVersion(10, 3, 0), (), dict(SMALL.entries))
    assert bits(parse(write_polygraphy_script(job).text.encode(), "polygraphy-script")) == bits(SMALL)


def test_it_is_read_and_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that would write a file when it is run, from the command line."""
    (tmp_path / "ranges.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nRANGES = {{'x': 127.0, 'y': 0.0}}\nraise SystemExit(9)\n"
    )
    words = ["--to", "trt", "--trt-version", "8502", "-o", str(tmp_path / "c.cache")]
    assert main(["cache", "convert", str(tmp_path / "ranges.py"), *words]) == 0
    assert "polygraphy-script -> trt, 1 scale" in capsys.readouterr().out
    assert (tmp_path / "c.cache").read_text() == "TRT-8502-EntropyCalibration2\nx: 3f800000\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.cache", "c.cache.json", "ranges.py"]
    assert read_any(tmp_path / "ranges.py")[0].dropped == (("y", "0.0", "zero"),)


def test_numbers_may_be_whole_and_backslashes_cause_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = read_polygraphy("WORD = '\\d'\nRANGES = {'x': 127}\n", "f")
    assert bits(cache) == {"x": 0x3F800000}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("X = {}\n", "has no RANGES at its top level"),
        ("def f():\n    RANGES = {}\n", "has no RANGES"),
        ("RANGES = {}\nRANGES = {}\n", "has several RANGES"),
        ("RANGES = {\n", "line 1: RANGES is not a dictionary"),
        ("x =\nRANGES = {}\n", "line 1: RANGES is not"),
        ("RANGES = dict(a=1)\n", "is not a dictionary of names and numbers"),
        ("RANGES = {1: 2}\n", "is not a dictionary of names and numbers"),
        ("RANGES = {**{'a': 1}}\n", "is not a dictionary of names and numbers"),
        ("RANGES = {'a': open('b')}\n", "is not a dictionary of names and numbers"),
        ("RANGES = {'a': " + "(" * 5000 + "1" + ")" * 5000 + "}\n", "is not a dictionary of names and numbers"),
        ("RANGES = {'a': 1, 'a': 2}\n", "'a' has two values"),
        ("RANGES = {'a': 'b'}\n", "not a number"),
        ("RANGES = {'a': True}\n", "not a number"),
        ("RANGES = {'a': -1}\n", "is negative"),
        ("RANGES = {'': 1}\n", "without the name"),
        ("RANGES = {}\0", "RANGES is not a dictionary"),
    ],
)
def test_scripts_without_ranges_are_refused(text: str, reason: str) -> None:
    with pytest.raises(QdqError, match=r"^f: ") as raised:
        read_polygraphy(text, "f")
    assert reason in raised.value.line()
    assert "\n" not in raised.value.line()
