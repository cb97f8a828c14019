# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md shows what there is: the layers of the import contract in their order, and no file that is gone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "qdqtool"
FILE = PROJECT / "ARCHITECTURE.md"
PAGE = FILE.read_text(encoding="utf-8")


def layers() -> list[str]:
    """The layers of the contract "Imports point down", packages with a slash after them."""
    document = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = document["tool"]["importlinter"]["contracts"]
    names = [layer.removeprefix("qdqtool.") for layer in contract["layers"]]
    return [f"{name}/" if (PACKAGE / name).is_dir() else name for name in names]


def picture() -> list[tuple[str, str]]:
    """The lines of the picture: a layer, and what it owns."""
    lines = PAGE.split("```")[1].splitlines()
    return [(name, owns.strip()) for name, _, owns in (line.partition(" ") for line in lines if line) if name != "#"]


def test_the_picture_is_the_contract() -> None:
    assert [name for name, _ in picture()] == layers()


def test_every_layer_of_the_picture_says_what_it_owns() -> None:
    texts = [owns for _, owns in picture()]
    assert all(texts) and len(set(texts)) == len(texts)


def test_the_contract_has_a_layer_for_each_package_and_module() -> None:
    packages = [f"{folder.name}/" for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()]
    modules = [file.stem for file in PACKAGE.glob("*.py") if file.name != "__init__.py"]
    assert sorted(layers()) == sorted([*packages, *modules])


@pytest.mark.parametrize("word", sorted(set(re.findall(r"`([a-z_/]+(?:/|\.(?:py|toml|md)))`", PAGE))))
def test_every_file_is_there(word: str) -> None:
    assert any((folder / word).exists() for folder in (PROJECT, PACKAGE))


def test_every_name_is_defined() -> None:
    """The classes, constants, functions and fields that the page names."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    defined = {
        name for found in re.findall(r"^ *(?:class|def) (\w+)|^ *(\w+)(?:: .+)? = ", text, re.M) for name in found
    }
    named = set(re.findall(r"`([A-Z]\w+|[a-z]+_[a-z_]+)`", PAGE))
    assert named and named - defined == set()


def test_there_is_a_row_for_what_is_added_most() -> None:
    rows = " ".join(re.findall(r"^\| (.+?) \|", PAGE.partition("## Where to add")[2].partition("\n## ")[0], re.M))
    asked = "fusion, gradient, lint check, data source, verb, option, target, number format, board, calibration method"
    assert [word for word in asked.split(", ") if word not in rows] == []


def test_the_glossary_names_each_term_once() -> None:
    text = PAGE.partition("## Glossary")[2]
    terms = [term for cell in re.findall(r"^\| (.+?) \|", text, re.M)[2:] for term in cell.split(", ")]
    assert terms and len(terms) == len(set(terms))


# Files of the user's in examples, and a module of Polygraphy's.
OTHERS = {"loader.py", "script.py", "FILE.py", "THIS.py", "json.py"}


def test_every_file_that_the_code_names_is_there() -> None:
    files = [f"/{file.relative_to(PROJECT).as_posix()}" for file in PROJECT.glob("*/**/*.py")] + ["/setup.py"]
    for file in PACKAGE.rglob("*.py"):
        named = set(re.findall(r"(?<![\w.*<])[\w/]+\.py\b(?!:)", file.read_text(encoding="utf-8"))) - OTHERS
        gone = [name for name in named if not any(one.endswith(f"/{name}") for one in files)]
        assert not gone, f"{file.relative_to(PROJECT)} names {gone}"
