# SPDX-License-Identifier: Apache-2.0
"""Recipes to commands: models, references and paths, and all that is refused before anything runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from qdqtool.cli import main as cli
from qdqtool.cli.commands import Commands, _parsers
from qdqtool.errors import QdqError
from qdqtool.recipe.plan_steps import PlannedStep, plan_steps
from qdqtool.recipe.read_recipe import read_recipe
from qdqtool.recipe.verb_files import OUTPUTS, READ, READ_WHERE_THERE, REFUSED, WITHOUT_EFFECT, WRITTEN
from tests.recipe.recipes import RECIPE, write_recipe


def planned(folder: Path, text: str = RECIPE) -> tuple[PlannedStep, ...]:
    recipe = read_recipe(write_recipe(folder, text))
    return plan_steps(recipe, Commands(), recipe.folder)


def steps(*tables: str) -> str:
    return 'model = "m.onnx"\n' + "\n".join(f"[[step]]\n{table}" for table in tables)


def test_commands(tmp_path: Path) -> None:
    q, peel, check = planned(tmp_path)
    run = tmp_path / "r.run"
    data = ["--data", str(tmp_path / "d.npz"), "--keep-float", "0"]
    assert list(q.command) == ["insert", f"{tmp_path}/m.onnx", *data, "--output", f"{run}/q.onnx", "--json"]
    assert peel.command[:2] == ("peel", f"{run}/q.onnx")
    assert peel.command[-5:] == ("--output", f"{run}/plain.onnx", "--cache", f"{run}/plain.cache", "--json")
    assert check.command == ("cache", "check", f"{run}/plain.cache", f"{tmp_path}/m.onnx", "--json")
    assert (q.is_model, peel.is_model, check.outputs, check.report) == (True, True, {}, "check.json")


def test_words_say_what_they_read_wherever_the_recipe_lies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = planned(tmp_path / "a"), planned(tmp_path / "b")
    assert [word.written for step in one for word in step.words] == [
        word.written for step in other for word in step.words
    ]
    assert {path.name for word in one[0].words for path in word.reads} == {"m.onnx", "d.npz"}


def test_the_model_is_that_of_the_last_step_that_wrote_one(tmp_path: Path) -> None:
    text = steps(
        'name = "a"\nverb = "prune"\n[step.options]\nratio = 0.5',
        'name = "b"\nverb = "lint"',
        'name = "c"\nverb = "insert"',
        'name = "d"\nverb = "lint"\nmodel = "a"',
        'name = "e"\nverb = "compare"\nmodel = ["m.onnx", "c"]\n[step.options]\ndata = "d.npz"',
    )
    a, b, c, d, e = planned(tmp_path, text)
    made = tmp_path / "r.run"
    assert [one.models for one in (a, b, c, d)] == [
        (tmp_path / "m.onnx",),
        (made / "a.onnx",),
        (made / "a.onnx",),
        (made / "a.onnx",),
    ]
    assert e.models == (tmp_path / "m.onnx", made / "c.onnx")
    assert a.command[2:4] == ("--ratio", "0.5") and b.outputs == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("fold-bn = true", ["--fold-bn"]),
        ("fold-bn = false", []),
        ('heads = ["^a$", "^b$"]', ["--heads", "^a$", "--heads", "^b$"]),
        ('input-range = "-1:1"', ["--input-range=-1:1"]),
        ("max-output-loss = 0.01", ["--max-output-loss", "0.01"]),
    ],
)
def test_values(options: str, words: list[str], tmp_path: Path) -> None:
    (step,) = planned(tmp_path, steps(f'name = "a"\nverb = "insert"\n[step.options]\n{options}'))
    assert list(step.command[2:-3]) == words


def test_switches_and_options_that_may_have_a_value(tmp_path: Path) -> None:
    options = "[step.options]\nparser = false\nfix = true"
    (step,) = planned(tmp_path, steps(f'name = "a"\nverb = "lint"\n{options}'))
    assert step.command[2:4] == ("--no-parser", "--fix") and step.outputs == {"": "a.onnx"}


def test_what_no_result_follows_from_does_not_count(tmp_path: Path) -> None:
    options = '[step.options]\nworkers = "2"\ndata = "d.npz"'
    (step,) = planned(tmp_path, steps(f'name = "a"\nverb = "insert"\n{options}'))
    assert [word.typed for word in step.words if not word.counts] == ["--workers", "2"]


def test_a_log_is_written_by_the_verb_that_trains_and_read_by_the_one_that_reports(tmp_path: Path) -> None:
    (tmp_path / "before.jsonl").touch()
    text = steps(
        'name = "t"\nverb = "finetune"\n[step.options]\ndata = "d.npz"\nlog = "t.jsonl"',
        'name = "page"\nverb = "report"\n[step.options]\nlog = "before.jsonl"',
    )
    train, report = planned(tmp_path, text)
    assert f"{tmp_path}/r.run/t.jsonl" in train.command
    assert report.command[-5:] == (
        "--log", f"{tmp_path}/before.jsonl", "--output", f"{tmp_path}/r.run/page.report.html", "--json"
    )  # fmt: skip
    assert tmp_path / "before.jsonl" in {path for word in report.words for path in word.reads}


def test_a_step_that_can_do_without_a_model(tmp_path: Path) -> None:
    (step,) = planned(tmp_path, '[[step]]\nverb = "lint"\n[step.options]\nexplain = "Q001"')
    assert step.command == ("lint", "--explain", "Q001", "--json")


def test_patterns_and_scripts_are_files(tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text("def f(): ...")
    text = steps(
        'name = "a"\nverb = "insert"\n[step.options]\ndata = "load.py:f"',
        'name = "b"\nverb = "insert"\nmodel = "m.onnx"\n[step.options]\ndata = "*.npz"',
    )
    a, b = planned(tmp_path, text)
    assert next(word.reads for word in a.words if "load.py:f" in word.typed) == (tmp_path / "load.py",)
    assert next(word.reads for word in b.words if "*" in word.typed) == (tmp_path / "d.npz",)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (steps('verb = "isnert"'), "no such verb 'isnert', did you mean insert"),
        (steps('verb = "run"'), "run is not a step of a recipe"),
        (steps('verb = "doctor"'), "doctor is not a step of a recipe"),
        (steps('verb = "cache"'), "no such verb 'cache'"),
        (steps('verb = "insert"\n[step.options]\nkeep-flaot = 0'), "no option 'keep-flaot', did you mean keep-float"),
        (steps('verb = "insert"\n[step.options]\ndata = "nowhere"'), "data: "),
        (steps('verb = "insert"\n[step.options]\ndata = "no*.png"'), "does not exist"),
        (steps('verb = "insert"\n[step.options]\noutput = "x"'), "give the step's output = instead"),
        (steps('verb = "insert"\n[step.options]\ndata = true'), "option data takes a value, not true"),
        (steps('verb = "insert"\n[step.options]\nfold-bn = "yes"'), "option fold-bn is true or false, not 'yes'"),
        (steps('verb = "insert"\n[step.options]\nkeep-float = "1,2"'), "step1: "),
        (steps('verb = "insert"\n[step.options]\ndata = "${step:nobody}"'), "no step of that name comes before it"),
        (steps('verb = "insert"\nmodel = "b"', 'name = "b"\nverb = "insert"'), "which comes later"),
        (steps('verb = "insert"\nmodel = "gone.onnx"'), "gone.onnx does not exist"),
        (steps('verb = "lint"\noutput = "x.onnx"'), "lint writes no file"),
        (steps('verb = "lint"', 'verb = "lint"\nmodel = "step1"'), "step step1 (lint) writes no file"),
        (steps('verb = "peel"\n[step.options]\ntarget = "gpu"'), "required: --trt-version"),
        (steps('verb = "insert"\noutput = "x"', 'verb = "insert"\noutput = "x"'), "x is written by two steps"),
        (steps('verb = "insert"\noutput = "./x"', 'verb = "insert"\noutput = "x"'), "x is written by two steps"),
        (steps('verb = "insert"\noutput = "../x"'), "output '../x' is not in the run's folder"),
        (steps('verb = "insert"\noutput = "/x"'), "output '/x' is not in the run's folder"),
        (steps('verb = "insert"\noutput = "."'), "output '.' is not in the run's folder"),
        (steps('verb = "insert"\noutput = ".steps/step1.json"'), "or is a record of it"),
        (steps('verb = "finetune"\n[step.options]\ndata = "d.npz"\nlog = "../x"'), "option log '../x' is not in"),
        (steps('verb = " "'), "no such verb ''"),
        (steps('verb = "lint"\narguments = ["--data", "d.npz"]'), "argument '--data' is an option; write it"),
        *(
            (steps(f'verb = "insert"\narguments = "{word}"'), f"argument '{word}' is an option; write it below")
            for word in ("--report=/x.html", "--log=x", "-o/x", "--emit-dir=/x", "--", "-", "-x${step:a}")
        ),
        (steps('verb = "insert"\n[step.options]\no = "/x.onnx"'), "give the step's output = instead"),
        (
            steps('name = "a"\nverb = "insert"', 'verb = "finetune"\n[step.options]\nlog = "/x/${step:a}"'),
            "option log names an output",
        ),
        (
            steps('name = "a"\nverb = "insert"', 'verb = "lint"\nmodel = "--report=/x/${step:a}"'),
            "'--report=/x/${step:a}' is an option",
        ),
        (
            steps('name = "a"\nverb = "insert"', 'verb = "calibrate"\n[step.options]\nmerge = ["-o=/x/${step:a}"]'),
            "option merge: '-o=/x/${step:a}' is an option",
        ),
        ('[[step]]\nverb = "insert"', "has no model"),
    ],
)
def test_refusals(text: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(QdqError) as caught:
        planned(tmp_path, text)
    assert part in caught.value.line() and "\n" not in caught.value.line()
    assert not (tmp_path / "r.run").exists()


# Options with a free value that name no file.
WORDS = {
    "augment", "batch", "condition", "dask", "distill", "el", "emit", "exclude", "explain", "fail-under",
    "fix", "for", "format", "formats", "freeze", "heads", "ignore", "input-range", "keep-float", "keep-fp32",
    "loss-scale", "max-batch", "method", "not-heads", "optimizer", "part", "preprocess", "rename", "schedule",
    "select", "shapes", "shard", "sm", "steps", "tensors", "trt-version", "workspace",
}  # fmt: skip


def test_every_option_with_a_free_value_is_known_to_name_a_file_or_not() -> None:
    """A new option stands in `verb_files.py` where it names a file, else in the list above."""
    unknown = set()
    for verb in (one for one in cli.VERBS if one not in REFUSED):
        actions = [action for parser in _parsers(verb).values() for action in parser._actions if action.option_strings]
        for action in actions:
            free = action.nargs != 0 and not action.choices and action.type not in (int, float)
            names = {text.lstrip("-") for text in action.option_strings if text != "-o"}
            if free and not isinstance(action, argparse._HelpAction) and not names & _CLASSED:
                unknown |= names
    assert unknown == set()


_CLASSED = WORDS | READ | READ_WHERE_THERE | WRITTEN | WITHOUT_EFFECT | {"cache"}


def test_outputs_are_of_verbs_and_options_that_there_are() -> None:
    commands = Commands()
    for verb, output in OUTPUTS.items():
        options = commands.shape(verb).options
        assert {output.option, *(name for name, _ in output.beside)} <= set(options), verb
