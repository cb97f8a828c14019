# SPDX-License-Identifier: Apache-2.0
"""The published JSON schemas hold the keys that the code reads and writes, no more and no fewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from qdqtool import rule_files, scales
from qdqtool.cli import project
from qdqtool.cli.commands import Commands
from qdqtool.decisions import _KINDS, Decisions, PredictedNoise, Provenance
from qdqtool.formats import number_format
from qdqtool.limited_reading import FileKind, read_toml
from qdqtool.recipe import read_recipe
from qdqtool.scales import Scale, ScaleTable
from qdqtool.verbs.init import init_project
from tests.cli.command import check_output
from tests.recipe.recipes import RECIPE, write_recipe

jsonschema = pytest.importorskip("jsonschema")
FOLDER = Path(scales.__file__).parent / "schemas"
ANY = FileKind("a file", 1 << 24, "")


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text("utf-8"))
    return found


def check(name: str, document: object) -> None:
    jsonschema.Draft202012Validator(schema(name)).validate(document)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_each_is_a_schema_with_title_and_description(path: Path) -> None:
    document = json.loads(path.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["title"] and document["description"]


def test_scale_tables() -> None:
    some = Provenance(
        method="auto", samples=4, origins={"conv": 2}, backend="tensorrt", tensorrt="10.3", behind=("y",),
        predicted=PredictedNoise("mse", {"x": (1.0, 2.0)}), data={"left_out": ["a.png"], "preprocess": "yolov8"},
        shadow_samples=2, candidates={"x": {"mse": (1.0, 0.5)}}, model_sha256="00", other={"later": 1},
    )  # fmt: skip
    found = {
        "x": Scale.of(0.5, origin="ptq", method="mse", rule="r", samples=4),
        "w": Scale.of(np.array([0.5, 1], np.float32), axis=0, format=number_format("fp8")),
    }
    table = ScaleTable(
        found,
        {"z": "is all zero"},
        Decisions(("c",), {"n": "why"}, {"m": "why"}, {"y": ("fp8", "why")}),
        some,
        {"x": 3.0},
    )
    document = json.loads(table.to_json())
    check("scales", document)
    told = schema("scales")
    assert document.keys() == told["properties"].keys()
    assert set(told["properties"]["facts"]["properties"]) == set(_KINDS) == document["facts"].keys() - {"later"}
    entry = told["$defs"]["scale"]["properties"]
    assert entry["origin"]["enum"] == list(get_args(scales.Origin))
    assert entry.keys() == found["x"].to_json().keys() | found["w"].to_json().keys()
    for broken in ({}, {"schema": 2, "tensors": {}}, {"schema": 1, "tensors": {"x": {"scale": "zz"}}}):
        with pytest.raises(jsonschema.ValidationError):
            check("scales", broken)


def test_recipes(tmp_path: Path) -> None:
    read = read_recipe.read_recipe(write_recipe(tmp_path))
    written = tmp_path / "again.toml"
    written.write_text(read_recipe.recipe_text(read), "utf-8")
    for path in (tmp_path / "r.toml", written):
        check("recipe", read_toml(path, ANY))
    assert "[step.options]" in RECIPE
    told = schema("recipe")
    assert tuple(told["properties"]) == read_recipe._TOP and set(told["$defs"]["step"]["properties"]) == set(
        read_recipe._STEP
    )
    for broken in ({}, {"step": []}, {"step": [{"name": "a"}]}, {"model": "m.onnx", "steps": []}):
        with pytest.raises(jsonschema.ValidationError):
            check("recipe", broken)


def test_project_files(tmp_path: Path, models: Path) -> None:
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "d.npz", images=np.zeros((1, 1, 16, 16), np.float32))
    init_project(models / "tiny_classifier.onnx", tmp_path / "data", tmp_path / project.FILE)
    check("project", read_toml(tmp_path / project.FILE, ANY))
    assert tuple(schema("project")["properties"]) == project._KEYS


def test_rules_files() -> None:
    told = schema("rules")["properties"]
    assert {key for key, value in told.items() if value.get("type") == "array"} == rule_files._TABLES
    assert told["policy"]["properties"].keys() == rule_files._POLICY.keys()
    for name in ("common", "gpu", "gpu_layers", "dla", "rtx", "heads"):
        document = read_toml(rule_files.rules_folder() / f"{name}.toml", ANY)
        check("rules", document)
        for table in rule_files._TABLES & document.keys():
            for broken in ({"unknown": "x"}, {"status": "rumour"}, {"why": 1}):
                with pytest.raises(jsonschema.ValidationError):
                    check("rules", {"schema": 1, table: [{**document[table][0], **broken}]})


def test_the_output_of_every_verb_and_action_has_a_schema() -> None:
    """`tests.cli.command.run` checks with it what every test of the command line makes a verb print."""
    known = {" ".join(word for word in name.split() if not word.startswith("-")) for name in schema("output")["$defs"]}
    assert known - {"interval", "scale"} == set(Commands().verbs())
    with pytest.raises(jsonschema.ValidationError):
        check_output(["doctor", "--json"], {"schema": 1, "ok": True, "items": [], "more": 1})
