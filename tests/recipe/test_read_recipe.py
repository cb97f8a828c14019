# SPDX-License-Identifier: Apache-2.0
"""Recipes read and written: what they may hold, and that writing gives back what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.errors import QdqError
from qdqtool.recipe.read_recipe import read_recipe, recipe_text
from qdqtool.recipe.values import Recipe, RecipeStep
from tests.recipe.recipes import RECIPE


def written(folder: Path, text: str) -> Path:
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, RECIPE))
    assert (recipe.model, recipe.out, recipe.folder) == ("m.onnx", None, tmp_path / "r.run")
    assert [(step.name, step.verb) for step in recipe.steps] == [
        ("q", "insert"),
        ("cache", "peel"),
        ("check", "cache check"),
    ]
    assert recipe.steps[0].options == {"data": "d.npz", "keep-float": 0}
    assert recipe.steps[2].models == ("${step:cache:cache}",) and recipe.steps[2].arguments == ("m.onnx",)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    odd = 'a "b"\\ü \t\U0001f600\x7f\x1f'
    options = {
        "data": odd,
        "macs": 0.5,
        "limit": 3,
        "fold-bn": True,
        "heads": ("x", "y"),
        "odd key": False,
        "\U0001f600": 1,
    }
    steps = (
        RecipeStep("one", "prune", ("m.onnx",), options=options),
        RecipeStep("two", "compare", ("one", "m.onnx"), ("x",), "o.onnx"),
    )
    recipe = Recipe(tmp_path / "r.toml", steps, "m.onnx", "results", "rtx4090")
    assert read_recipe(written(tmp_path, recipe_text(recipe))) == recipe
    head = 'model = "m.onnx"\nout = "results"\ndevice = "rtx4090"\n\n[[step]]\nname = "one"\n'
    assert recipe_text(recipe).startswith(head)


def test_comments_stay_on_their_line(tmp_path: Path) -> None:
    recipe = Recipe(tmp_path / "r.toml", (RecipeStep("one", "lint"),), "m.onnx")
    text = recipe_text(recipe, ["two\nmodel = 2", "three"])
    assert text.splitlines()[:3] == ["# two model = 2", "# three", 'model = "m.onnx"']
    assert read_recipe(written(tmp_path, text)) == recipe


def test_a_model_alone_is_a_recipe_without_steps(tmp_path: Path) -> None:
    """`deploy` writes it where it keeps the model as it is."""
    assert read_recipe(written(tmp_path, recipe_text(Recipe(tmp_path / "r.toml", (), "m.onnx")))).steps == ()


def test_a_step_without_a_name_has_its_number(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path, '[[step]]\nverb = "insert"\n[[step]]\nverb = "lint"'))
    assert [step.name for step in recipe.steps] == ["step1", "step2"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "has no [[step]]"),
        ("step = 3", "has no [[step]]"),
        ("model = ", "not TOML"),
        ('modle = "m"\n[[step]]\nverb = "insert"', "unknown key 'modle', did you mean 'model'"),
        ('[[step]]\nname = "a"', "step a has no verb"),
        ('[[step]]\nname = "../a"\nverb = "insert"', "step 1 is called '../a'"),
        ('[[step]]\nname = "a"\nverb = "insert"\noptoins = 1', "unknown key 'optoins', did you mean 'options'"),
        ('[[step]]\nname = "a"\nverb = "insert"\noptions = 1', "options is not a table"),
        ('[[step]]\nname = "a"\nverb = "insert"\n[step.options]\ndata = {}', "option data is {}"),
        ('[[step]]\nname = "a"\nverb = "insert"\n[step.options]\nheads = []', "option heads is []"),
        ('[[step]]\nname = "a"\nverb = "insert"\nmodel = [1]', "neither a text nor a list"),
        ('[[step]]\nname = "a"\nverb = "insert"\n[[step]]\nname = "a"\nverb = "lint"', "two steps are called a"),
        ('[[step]]\nverb = "insert"\n[step.options]\n--data = "a"\ndata = "b"', "option data is given twice"),
        ('[[step]]\nverb = "insert"\n[step.options]\nday = 2020-01-01', "give a text, a number, true, false or a list"),
        ('[[step]]\nverb = "in\\u0000sert"', "is 'in\\x00sert', no text"),
        ('out = "."\n[[step]]\nverb = "insert"', "out is the recipe's own folder"),
    ],
)
def test_refusals(text: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(QdqError) as caught:
        read_recipe(written(tmp_path, text))
    assert part in caught.value.line() and "\n" not in caught.value.line()
