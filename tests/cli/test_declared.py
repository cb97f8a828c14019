# SPDX-License-Identifier: Apache-2.0
"""Options that dataclasses declare: on a parser, and back; what `-h` says of defaults; what `-h` imports."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import MISSING, dataclass
from pathlib import Path

import pytest

from qdqtool.cli.declared import add_options, defaults_of, options_from
from qdqtool.cli.main import VERBS
from qdqtool.options import Option, TextOption, option
from qdqtool.trtversion import TrtVersion, parse
from tests.docs.pages import options_of


@dataclass(frozen=True)
class Baking:
    minutes: int = option(10, "--minutes", "how long (default %(default)s)", metavar="N", read=int)
    crust: bool = option(False, "--crust", "with a crust")
    salted: bool = option(True, "--no-salt", "without salt", group="taste")
    herbs: tuple[str, ...] = option((), "-e --herb", "an herb", metavar="H", repeated=True)
    oven: Path | None = option(None, "--oven", "which", metavar="F", convert=Path)
    version: TextOption[TrtVersion] = TextOption(TrtVersion, parse, Option("--trt-version", "a version", metavar="V"))
    hidden: bool = option(False, "--hidden", None)
    sliced: bool | None = option(None, "--sliced", "sliced (default: as the oven says)")
    silent: bool = False
    trays: list[str] = option(
        MISSING, "--trays", "which", metavar="T", convert=str.split, default_factory=lambda: ["top"]
    )


@dataclass(frozen=True)
class Seasoning:
    salt: bool = option(False, "--salt", "with salt", group="taste", one_of="seasoning")
    sugar: bool = option(False, "--sugar", "with sugar", group="taste", one_of="seasoning")


def parsed(options: object, *words: str, **how: tuple[str, ...]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, options, **how)
    return parser.parse_args(words)


def test_what_is_not_given_is_the_default_of_the_field() -> None:
    assert options_from(Baking, parsed(Baking)) == Baking()


def test_what_is_given() -> None:
    words = "--minutes 5 --crust --no-salt -e thyme --herb sage --oven big --trt-version 8502 --hidden"
    made = options_from(Baking, parsed(Baking, *words.split(), "--no-sliced"), silent=True)
    assert made == Baking(5, True, False, ("thyme", "sage"), Path("big"), parse("8502"), True, False, True)
    assert options_from(Baking, parsed(Baking, "--sliced")) == Baking(sliced=True)
    assert options_from(Baking, parsed(Baking, "--trays", "low top")) == Baking(trays=["low", "top"])


def test_an_instance_has_the_defaults() -> None:
    args = parsed(Baking(minutes=7, herbs=("dill",)))
    assert (args.minutes, args.herb) == (7, ["dill"])


def test_one_of_a_set(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Seasoning)
    assert parser.parse_args(["--salt"]).salt
    with pytest.raises(SystemExit):
        parser.parse_args(["--salt", "--sugar"])
    assert "--sugar: not allowed with argument --salt" in capsys.readouterr().err
    assert parser.format_usage().endswith("[--salt | --sugar]\n")


def test_some_fields_alone() -> None:
    args = parsed(Baking, "--crust", only=("crust", "minutes"))
    assert vars(args) == {"crust": True, "minutes": 10}
    assert options_from(Baking, args, only=("crust", "minutes"), salted=False) == Baking(crust=True, salted=False)
    assert "oven" not in vars(parsed(Baking, without=("oven",)))


def test_defaults_by_the_names_of_argparse() -> None:
    assert vars(parsed(Baking)) == defaults_of(Baking)


def test_help_has_groups_and_defaults_and_no_hidden_option() -> None:
    parser = argparse.ArgumentParser(prog="bake")
    add_options(parser, Baking)
    said = parser.format_help()
    assert "how long (default 10)" in said and "--hidden" not in said
    assert said.index("taste:") < said.index("without salt") and said.index("--crust") < said.index("taste:")


@pytest.mark.parametrize("verb", VERBS)
def test_a_default_that_help_names_is_the_default(verb: str) -> None:
    """`a (default)`, `(default a)`: of options with a few words to choose from, or numbers."""
    for action in options_of(verb).values():
        if action.choices and isinstance(action.default, str) and action.help is not None:
            text = action.help.replace("%(default)s", action.default)
            named = re.findall(r"\(default:? ([\w-]+)[ ,):]|([\w-]+) \(default\)", text)
            words = {first or second for first, second in named} & set(action.choices)
            assert words <= {action.default}, f"{verb} {action.option_strings}: {text}"
        elif action.type in (int, float) and action.default is not None and action.help is not None:
            numbers = re.findall(r"\(default ([\d.e-]+)\)", action.help)
            assert {float(number) for number in numbers} <= {action.default}, f"{verb} {action.option_strings}"


def test_help_of_every_verb_imports_no_library() -> None:
    code = (
        "import sys; from qdqtool.cli.main import VERBS, parser_of\n"
        "for verb in VERBS: parser_of(verb)[0].format_help()\n"
        "print({'numpy', 'onnx', 'onnxruntime', 'qdqtool.rulebook'} & set(sys.modules) or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
