# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: changes one operator, constant or condition of the code at a time; a test of the suite must fail.

    pip install coverage
    python -m coverage run --data-file=out/tests.data -m pytest -n 0 tests/match tests/passes tests/verbs
    python -m tests.fuzz.code_mutants out/tests.data [--count 400] [--seed 0] [--packages match,passes]

Each mutant runs, in a forked process, the tests that reach its line by the coverage data, those of its own file first,
until one fails. Printed: a line for each survivor, and the share that was killed.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import io
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import coverage
import hypothesis  # noqa: F401 - what tests import is there before the fork
import numpy as np  # noqa: F401
import onnx.version_converter  # noqa: F401
import onnxruntime  # noqa: F401
import pytest

PROJECT = Path(__file__).resolve().parents[2]
_SECONDS = 150  # of CPU time; a mutant that takes longer is killed, in both senses
_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class CodeMutant:
    """A change of a file: its n-th node of code, and which of the changes of that node."""

    path: Path
    line: int
    said: str
    at: tuple[int, int]

    def tree(self) -> ast.Module:
        """The changed file."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        node = list(_code_of(tree))[self.at[0]]
        list(_changes(node))[self.at[1]][1](node)
        return ast.fix_missing_locations(tree)


def mutants_of(path: Path) -> Iterator[CodeMutant]:
    """Every mutant of a file, in order. Annotations, docstrings and other texts are left alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for index, node in enumerate(_code_of(tree)):
        for number, (said, _) in enumerate(_changes(node)):
            yield CodeMutant(path, node.lineno, f"{said}: {ast.unparse(node)[:90]}", (index, number))


def _code_of(node: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if hasattr(child, "lineno"):
                    yield child
                yield from _code_of(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], object]]]:
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            if type(op) in _SWAPS:
                yield (
                    f"{type(op).__name__} swapped",
                    lambda one, at=at: one.ops.__setitem__(at, _SWAPS[type(one.ops[at])]()),
                )
    elif isinstance(node, (ast.BoolOp, ast.BinOp, ast.AugAssign)):
        if type(node.op) in _SWAPS:
            yield f"{type(node.op).__name__} swapped", lambda one: setattr(one, "op", _SWAPS[type(one.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not removed", lambda one: setattr(one, "operand", ast.UnaryOp(ast.Not(), one.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant negated", lambda one: setattr(one, "value", not one.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield "constant plus 1", lambda one: setattr(one, "value", one.value + 1)
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "condition negated", lambda one: setattr(one, "test", ast.UnaryOp(ast.Not(), one.test))
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)) and node.generators[0].ifs:
        yield "filter removed", lambda one: setattr(one.generators[0], "ifs", [])
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "returns None", lambda one: setattr(one, "value", ast.Constant(None))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, name: str, mutant: CodeMutant) -> None:
        self._name, self._mutant = name, mutant

    def find_spec(self, fullname: str, path: object, target: object = None) -> object:
        """Only the changed module is ours."""
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._mutant.path, loader=self)

    def create_module(self, spec: object) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed code."""
        exec(compile(self._mutant.tree(), str(self._mutant.path), "exec"), module.__dict__)


def tests_of(mutant: CodeMutant, data: coverage.CoverageData) -> list[str]:
    """Node ids of the tests that reach a line, or the file of one that runs on import; those of its package first."""
    lines = data.contexts_by_lineno(str(mutant.path))
    found: set[str] = set(lines.get(mutant.line, ()))
    if found == {""}:
        found.update(*lines.values())
    ids = []
    for name in sorted(filter(None, found)):
        parts = name.split(".")
        at = next((i for i, part in enumerate(parts) if part.startswith("test_")), None)
        if at is not None and (PROJECT / "/".join(parts[: at + 1])).with_suffix(".py").exists():
            ids.append("::".join(["/".join(parts[: at + 1]) + ".py", *parts[at + 1 :]]))
    own, file = f"tests/{mutant.path.parent.name}/", f"test_{mutant.path.stem}.py"
    return sorted(ids, key=lambda one: (file not in one, not one.startswith(own), one))


def is_killed(mutant: CodeMutant, tests: Sequence[str]) -> bool:
    """Whether a test fails, or does not end."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS + 2))
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        sys.stdout = sys.stderr = io.StringIO()
        name = ".".join(mutant.path.relative_to(PROJECT).with_suffix("").parts)
        sys.meta_path.insert(0, _Finder(name, mutant))
        code = 1
        try:
            words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "", "--assert", "plain"]
            code = int(pytest.main([*words, *tests]))
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] != 0


def main() -> None:
    """Draw, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="coverage data with contexts")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", default="match,passes")
    args = parser.parse_args()
    data = coverage.CoverageData(args.data)
    data.read()
    files = [p for name in args.packages.split(",") for p in sorted((PROJECT / "qdqtool" / name).rglob("*.py"))]
    found = [mutant for path in files for mutant in mutants_of(path)]
    drawn = random.Random(args.seed).sample(found, args.count)
    print(f"{len(found)} mutants of {len(files)} files, {args.count} drawn with seed {args.seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    killed = tried = 0
    try:
        for mutant in drawn:
            start, tests = time.monotonic(), tests_of(mutant, data)
            dead = bool(tests) and is_killed(mutant, tests)
            tried, killed = tried + 1, killed + dead
            if not dead:
                place = f"{mutant.path.relative_to(PROJECT)}:{mutant.line}"
                print(f"{place}: {mutant.said} ({len(tests)} tests, {time.monotonic() - start:.0f} s)", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    print(f"{killed} of {tried} killed: {killed / max(tried, 1):.3f}")


if __name__ == "__main__":
    main()
