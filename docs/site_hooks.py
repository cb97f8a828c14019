# SPDX-License-Identifier: Apache-2.0
"""What the site is given when it is built: pages of tables made from the code and the rules, and links that hold in it.

Read by mkdocs (`hooks` in mkdocs.yml); nothing of it is written into the folder of the pages.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
SCHEMAS = sorted((PROJECT / "qdqtool" / "schemas").glob("*.json"))
_RULES = re.compile(r"\]\((?:\.\./)+rules/(\w+)\.toml\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {"lint_codes.md": lint_codes(), "rule_tables.md": rule_tables(), "api.md": public_functions()}
    pages |= {"schemas.md": schemas()} | {f"schemas/{path.name}": path.read_text(encoding="utf-8") for path in SCHEMAS}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to rules files to their tables."""
    above = "../" * page.file.src_uri.count("/")
    return _RULES.sub(lambda match: f"]({above}rule_tables.md#{match[1]})", markdown)


def lint_codes() -> str:
    """Every code of `lint`: name, severity, where it holds, and what `lint --explain` says of it."""
    from qdqtool.linting.checks import checks_of

    parts = [
        "# Codes of lint",
        "",
        "Made from the checks themselves; `qdqtool lint --explain CODE` prints the same.",
        "",
    ]
    checks = checks_of((), ())
    parts += ["| code | name | severity | targets | TensorRT |", "|---|---|---|---|---|"]
    for one in checks:
        versions = one.trt or "all"
        cells = [
            f"[{one.code}](#{one.code.lower()})",
            one.name,
            one.severity,
            ", ".join(one.targets),
            _escaped(versions),
        ]
        parts.append(f"| {' | '.join(cells)} |")
    for one in checks:
        parts += ["", f"## {one.code}", "", f"**{one.name}**, {one.severity}. {_escaped(one.explanation)}"]
    return "\n".join(parts) + "\n"


def rule_tables() -> str:
    """The rules of each target, a row each."""
    import tomllib

    parts = ["# Rules", "", "Made from the files in `rules/`. What the columns mean: [rules](rules.md).", ""]
    for file in sorted((PROJECT / "rules").glob("*.toml")):
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        parts += [f"## {file.stem}", "", *_opening(file)]
        rows = [(kind, rule) for kind, rules in document.items() if isinstance(rules, list) for rule in rules]
        named = [(kind, rule) for kind, rule in rows if isinstance(rule, dict) and "name" in rule]
        if named:
            parts += ["", "| kind | name | versions | why | standing |", "|---|---|---|---|---|"]
            for kind, rule in named:
                versions, why = _escaped(str(rule.get("trt", "all"))), _escaped(rule.get("why", ""))
                parts.append(f"| {kind} | `{rule['name']}` | {versions} | {why} | {rule.get('status', '')} |")
        parts.append("")
    return "\n".join(parts)


def schemas() -> str:
    """The JSON schemas of the package, to download."""
    parts = [
        "# JSON schemas",
        "",
        "The package has them in the folder `schemas`. A change of one is a change of interface.",
        "",
    ]
    for path in SCHEMAS:
        schema = json.loads(path.read_text(encoding="utf-8"))
        parts.append(f"- [{schema['title']}](schemas/{path.name}): {_escaped(schema['description'])}")
    return "\n".join(parts) + "\n"


def _opening(file: Path) -> list[str]:
    """The first paragraph of the comment that a rules file begins with."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return [_escaped(" ".join(lines))]


def public_functions() -> str:
    """Every public function and class of the package, with its docstring."""
    import qdqtool

    parts = ["# Python API", "", "Made from the docstrings of everything in `qdqtool.__all__`.", ""]
    for name in qdqtool.__all__:
        one = getattr(qdqtool, name)
        parts += [f"## {name}", "", "```text", f"{name}{_signature(one)}", "", inspect.getdoc(one) or "", "```", ""]
    return "\n".join(parts)


def _signature(one: object) -> str:
    try:
        return re.sub(r"0x[0-9a-f]+", "...", str(inspect.signature(one)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def _escaped(text: str) -> str:
    """Text for a cell or a paragraph: no line break, no bar, no markup."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
