# SPDX-License-Identifier: Apache-2.0
"""The site: every page is in its menu; generated pages say what the code says. `make docs` builds it."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import qdqtool
from qdqtool.cli.main import GROUPS, VERBS
from qdqtool.linting.checks import checks_of
from qdqtool.rulebook import load_rules
from tests.docs.pages import DOCS, PROJECT

MENU = re.findall(r"([\w/]+\.md)$", (PROJECT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
GENERATED = {"lint_codes.md", "rule_tables.md", "schemas.md", "api.md"}


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", PROJECT / "docs" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_menu_has_every_page_once() -> None:
    pages = {page.relative_to(PROJECT / "docs").as_posix() for page in DOCS}
    assert sorted(MENU) == sorted(pages | GENERATED)


def test_the_menu_has_the_verbs_in_the_order_of_the_help() -> None:
    verbs = [page.removesuffix(".md") for page in MENU if page.removesuffix(".md") in VERBS]
    assert verbs == list(VERBS)
    text = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8")
    for title, group in GROUPS.items():
        assert f'"{title.partition(":")[0].capitalize()}: {next(iter(group))}"' in text


def test_every_code_of_lint_has_its_row_and_its_text(hooks: ModuleType) -> None:
    text = hooks.lint_codes()
    for check in checks_of((), ()):
        assert f"| [{check.code}](#{check.code.lower()}) | {check.name} |" in text
        assert f"## {check.code}\n" in text
        assert check.explanation.split(".")[0].split("\n")[0][:40] in text


def test_every_rule_has_its_row(hooks: ModuleType) -> None:
    text = hooks.rule_tables()
    for target in ("gpu", "rtx", "dla"):
        assert f"## {target}\n" in text
    for fusion in load_rules("gpu").fusions:
        assert f"| `{fusion.name}` |" in text


def test_every_public_name_is_in_the_reference(hooks: ModuleType) -> None:
    text = hooks.public_functions()
    assert [name for name in qdqtool.__all__ if f"## {name}\n" not in text] == []
    assert "0x" not in text, "no address of an object"


def test_links_to_rules_lead_to_their_tables(hooks: ModuleType) -> None:
    class Page:
        class file:  # noqa: N801 - as mkdocs names it
            src_uri = "howto/x.md"

    assert hooks.on_page_markdown("[a](../../rules/gpu.toml)", Page) == "[a](../rule_tables.md#gpu)"
