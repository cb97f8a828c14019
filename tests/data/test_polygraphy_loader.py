# SPDX-License-Identifier: Apache-2.0
"""Loader scripts and Polygraphy's JSON: what they give, that they are run anew, and how their faults are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdqtool.data.polygraphy_loader import items_of, load_script, read_json, split_script
from qdqtool.errors import QdqError


def script(tmp_path: Path, text: str, name: str = "loader.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_path_and_function_are_distinguished() -> None:
    assert split_script("a/b.py") == (Path("a/b.py"), "load_data")
    assert split_script("a/b.py:calib") == (Path("a/b.py"), "calib")
    assert split_script("C:/x/b.py:f") == (Path("C:/x/b.py"), "f")
    assert split_script("a.npz") is None


def test_generator_starts_anew_each_time(tmp_path: Path) -> None:
    path = script(tmp_path, "def load_data():\n for k in range(3): yield {'x': [float(k)]}\n")
    make = load_script(path, "load_data")
    for _ in range(2):
        assert [float(item["x"][0]) for item in items_of(path, make)] == [0, 1, 2]


def test_a_list_will_do_and_another_name(tmp_path: Path) -> None:
    path = script(tmp_path, "import numpy as np\ncalib = [{'x': np.ones(2)}] * 4\n")
    assert len(list(items_of(path, load_script(path, "calib")))) == 4


def test_script_named_as_a_library_module_is_itself(tmp_path: Path) -> None:
    path = script(tmp_path, "def load_data():\n yield {'mine': [1]}\n", "json.py")
    assert list(next(iter(items_of(path, load_script(path, "load_data"))))) == ["mine"]
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("def load_data(: pass", "fails when it is loaded"),
        ("import no_such_module", "no_such_module"),
        ("def loaddata(): pass", "did you mean loaddata"),
    ],
)
def test_scripts_that_do_not_load(tmp_path: Path, text: str, part: str) -> None:
    path = script(tmp_path, text)
    with pytest.raises(QdqError, match=part) as caught:
        load_script(path, "load_data")
    assert caught.value.where == str(path)


def test_missing_script(tmp_path: Path) -> None:
    with pytest.raises(QdqError, match="does not exist"):
        load_script(tmp_path / "no.py", "load_data")


@pytest.mark.parametrize(
    ("item", "part"),
    [
        ([1.0], "is a list, not"),
        ({"x": "text"}, "not an array of numbers"),
        ({"x": [object()]}, "not an array of numbers"),
    ],
)
def test_samples_that_are_none(item: Any, part: str) -> None:
    with pytest.raises(QdqError, match=part):
        list(items_of("data", lambda: [item]))


def test_a_fault_in_the_loader_tells_where(tmp_path: Path) -> None:
    path = script(tmp_path, "def load_data():\n yield {'x': [1.0]}\n raise ValueError('disk\\ngone')\n")
    with pytest.raises(QdqError, match=r"fails at sample 1 \(ValueError: disk\)") as caught:
        list(items_of(path, load_script(path, "load_data")))
    assert isinstance(caught.value.__cause__, ValueError)


def test_json_that_polygraphy_wrote_reads_back(tmp_path: Path) -> None:
    polygraphy = pytest.importorskip("polygraphy.json")
    want = [{"x": np.random.default_rng(k).normal(size=(1, 3)).astype(np.float32), "n": np.array(k)} for k in range(2)]
    polygraphy.save_json(want, str(tmp_path / "in.json"))
    got = read_json(tmp_path / "in.json", 1 << 20)
    assert len(got) == 2
    for one, other in zip(got, want, strict=True):
        assert one["x"].tobytes() == other["x"].tobytes()
        assert one["n"] == other["n"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not Polygraphy's JSON"),
        ("3", "sample 0 is a int"),
        ('{"schema": 1, "tensors": {}}', "'tensors' of sample 0 is not an array"),
        ('{"lst": [], "polygraphy_class": "RunResults"}', "holds a 'RunResults'"),
        ('[{"x": {"polygraphy_class": "Tensor", "array": ""}}]', "holds a 'Tensor'"),
        ('[{"x": {"polygraphy_class": "ndarray", "array": "?"}}]', "not base64"),
        ('[{"x": {"polygraphy_class": "ndarray", "array": "aGVsbG8="}}]', "cannot be read as arrays"),
        ("[" * 100_000, "not Polygraphy's JSON"),
    ],
)
def test_json_of_another_kind(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "in.json"
    path.write_text(text)
    with pytest.raises(QdqError, match=part) as caught:
        read_json(path, 1 << 20)
    assert caught.value.where == str(path)


def test_json_larger_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("[" + " " * 100 + "]")
    with pytest.raises(QdqError, match="raise --max-data"):
        read_json(tmp_path / "in.json", 50)
