# SPDX-License-Identifier: Apache-2.0
"""What qdqtool asks of other packages: names, extras, version clauses. Not whether they are there (doctor.py)."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qdqtool.trtversion import COMPARE

_SPELLED = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?", re.S)
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")
_EXTRA = re.compile(r"\bextra\s*==\s*['\"]([\w-]+)['\"]")
_PYTHON = re.compile(r"\bpython_version\s*(>=|<=|==|!=|>|<)\s*['\"](\d+(?:\.\d+)*)['\"]")
_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Requirement:
    """One package that is asked for.

    Attributes:
        name: the distribution, in lower case with hyphens.
        clauses: comparisons that its version must pass all, such as (">=", "1.26").
        extra: the extra that asks for it; "" for what is always needed.
        python: comparisons that Python's version must pass for it to be asked for at all.
    """

    name: str
    clauses: tuple[tuple[str, str], ...] = ()
    extra: str = ""
    python: tuple[tuple[str, str], ...] = ()

    @property
    def spelled(self) -> str:
        """As pip takes it: `onnx>=1.22`."""
        return self.name + ",".join(f"{sign}{version}" for sign, version in self.clauses)

    def allows(self, version: str) -> bool:
        """Whether a version passes; suffixes (rc1, +cu12, .post1) count for nothing."""
        return all(_holds(version, sign, bound) for sign, bound in self.clauses)

    @property
    def applies(self) -> bool:
        """Whether this Python is one that the package is asked for on."""
        running = ".".join(map(str, sys.version_info[:2]))
        return all(_holds(running, sign, bound) for sign, bound in self.python)


def own_requirements() -> tuple[Requirement, ...]:
    """What qdqtool asks for: by its pyproject.toml where it runs from a checkout, else by what pip has recorded.

    A checkout may run beside another version that is installed, so its own file comes first.
    """
    return _from_checkout(Path(__file__).resolve().parent.parent) or _from_installation()


def parse_requirement(text: str, extra: str = "") -> Requirement:
    """One line of a list of dependencies."""
    match = _SPELLED.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read the requirement {text!r}")
    name, clauses, marker = match[1], match[2], match[3] or ""
    found = _EXTRA.search(marker)
    return Requirement(
        normal_name(name),
        tuple((m[1], m[2]) for m in _CLAUSE.finditer(clauses)),
        found[1] if found else extra,
        tuple((m[1], m[2]) for m in _PYTHON.finditer(marker)),
    )


def normal_name(name: str) -> str:
    """A distribution's name as packages compare it: `onnx_graphsurgeon` is `onnx-graphsurgeon`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _from_checkout(folder: Path) -> tuple[Requirement, ...]:
    """The dependencies in a checkout's pyproject.toml; nothing where there is none of ours."""
    path = folder / "pyproject.toml"
    try:
        project = _read_toml(path).get("project", {})
    except (OSError, ValueError, ImportError):
        return ()
    if not isinstance(project, dict) or project.get("name") != "qdqtool":
        return ()
    base = [parse_requirement(text) for text in project["dependencies"]]
    extras = project["optional-dependencies"].items()
    return (*base, *(parse_requirement(text, extra) for extra, texts in extras for text in texts))


def _read_toml(path: Path) -> dict[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _from_installation() -> tuple[Requirement, ...]:
    try:
        lines: Iterable[str] = importlib.metadata.requires("qdqtool") or ()
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(parse_requirement(line) for line in lines)


def _holds(version: str, sign: str, bound: str) -> bool:
    """Compare releases, the shorter filled up with zeros; what cannot be read passes."""
    match = _RELEASE.match(version)
    if match is None:
        return True
    left, right = ([int(part) for part in text.split(".")] for text in (match[1], bound))
    width = max(len(left), len(right))
    filled = [tuple(parts + [0] * (width - len(parts))) for parts in (left, right)]
    return COMPARE[sign](filled[0], filled[1])
