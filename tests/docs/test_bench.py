# SPDX-License-Identifier: Apache-2.0
"""A script of tests/bench stays while a document cites it or while it guards a limit; its page names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PROJECT, first_cells

BENCH = PROJECT / "tests" / "bench"
SCRIPTS = {file.stem: file.read_text(encoding="utf-8") for file in BENCH.glob("*.py")}
_PAGES = [*DOCS, *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "models/README.md"))]
CITING = [*_PAGES, *(PROJECT / "rules").glob("*.toml"), *(PROJECT / "qdqtool").rglob("*.py")]
PAGE = BENCH / "README.md"


def parts_of(stem: str) -> set[str]:
    """A script and the files that it imports or names, and those that these do."""
    found, left = {stem}, [stem]
    while left:
        text = SCRIPTS[left.pop()]
        named = {
            other for other in SCRIPTS if re.search(rf"\b(from (tests\.bench\.)?{other} import|{other}\.py)", text)
        }
        left += named - found
        found |= named
    return found


@pytest.mark.slow
def test_every_file_is_cited_or_guards_a_limit_or_is_part_of_one() -> None:
    cited = {stem for file in CITING for stem in re.findall(r"tests[./]bench[./](\w+)", file.read_text("utf-8"))}
    limits = {Path(name).stem for name in first_cells(PAGE, "script | limit that it guards")}
    kept = {part for stem in (cited | limits) & set(SCRIPTS) for part in parts_of(stem)}
    assert sorted(set(SCRIPTS) - kept) == []


def test_every_script_that_documents_name_is_there() -> None:
    for file in [*CITING, PAGE, PROJECT / "Makefile"]:
        named = re.findall(r"tests[./]bench[./]([a-z_]+)(?![\w.]*md)", file.read_text(encoding="utf-8"))
        assert [stem for stem in named if stem not in SCRIPTS] == [], file


def test_the_page_of_the_benches_names_what_is_there() -> None:
    rows = [*first_cells(PAGE, "script | cited in"), *first_cells(PAGE, "script | limit that it guards")]
    assert [name for name in rows if not (BENCH / name).is_file()] == []
