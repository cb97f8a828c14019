# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md names what there is: every package and module of the project, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "qdqtool"
PAGE = (PROJECT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_package_and_module_is_named() -> None:
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    modules = {file.name for file in PACKAGE.glob("*.py") if not file.name.startswith("__")}
    missing = {name for name in packages if f"`{name}/`" not in PAGE} | {name for name in modules if name not in PAGE}
    assert not missing


@pytest.mark.parametrize("word", sorted(set(re.findall(r"`([a-z_/]+\.(?:py|toml|md))`", PAGE))))
def test_every_file_is_there(word: str) -> None:
    assert any((folder / word).is_file() for folder in (PROJECT, PACKAGE, *PACKAGE.iterdir()) if folder.is_dir())


def test_the_contract_has_a_row_for_each_package() -> None:
    rows = re.findall(
        r'"qdqtool\.(\w+)"', (PROJECT / "pyproject.toml").read_text(encoding="utf-8").split("layers = [")[1]
    )
    packages = [folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()]
    assert sorted(rows) == sorted(set(rows)) and set(packages) <= set(rows)


# Files of the user's in examples, and a module of Polygraphy's.
OTHERS = {"loader.py", "script.py", "FILE.py", "THIS.py", "json.py"}


def test_every_file_that_the_code_names_is_there() -> None:
    files = [f"/{file.relative_to(PROJECT).as_posix()}" for file in PROJECT.glob("*/**/*.py")] + ["/setup.py"]
    for file in PACKAGE.rglob("*.py"):
        named = set(re.findall(r"(?<![\w.*<])[\w/]+\.py\b(?!:)", file.read_text(encoding="utf-8"))) - OTHERS
        gone = [name for name in named if not any(one.endswith(f"/{name}") for one in files)]
        assert not gone, f"{file.relative_to(PROJECT)} names {gone}"
