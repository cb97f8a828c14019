# SPDX-License-Identifier: Apache-2.0
"""What of the package outlives a call: named here, each with its reason. Everything else is passed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import qdqtool

ROOT = Path(qdqtool.__file__).parent
STATE = {
    "amax/histogram.py SCRATCH",  # working memory of a thread; no value outlives a call
    "dla/node_context.py _CHECKS",  # filled by a decorator at import, then read; so are the next two
    "linting/checks.py _CHECKS",
    "match/constraints.py _CONSTRAINTS",
    "graph/model_file.py _OPENED",  # a TensorProto holds only the name of the file that its bytes were left in
    "progress.py _OPEN",  # there is one terminal
    "runtime/shared_arena.py ARENA",  # onnxruntime has one for the process
}


def module_state(tree: ast.Module) -> Iterator[str]:
    """Module variables that begin empty, or as an object of a class of the module that is not frozen."""
    classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
    for one in tree.body:
        if not isinstance(one, ast.Assign | ast.AnnAssign) or one.value is None:
            continue
        target, value = (one.targets[0] if isinstance(one, ast.Assign) else one.target), one.value
        empty = not (value.keys if isinstance(value, ast.Dict) else value.elts if isinstance(value, ast.List) else [1])
        made = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
        kept = made in classes and not any("frozen=True" in ast.unparse(by) for by in classes[made].decorator_list)
        if empty or kept or made in ("dict", "list", "set", "defaultdict", "Counter"):
            yield ast.unparse(target)


@pytest.mark.slow
def test_only_what_is_named_here_outlives_a_call() -> None:
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        found |= {f"{path.relative_to(ROOT).as_posix()} {name}" for name in module_state(tree)}
        assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), f"{path} changes a module variable"
    assert found == STATE
