# SPDX-License-Identifier: Apache-2.0
"""Prints what `insert` and `peel` do to every trained model of the corpus, law by law. A script, not a test.

PYTHONPATH=.:tests python tests/laws/corpus_table.py [--heads] [MODEL ...]
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx

import qdqtool as verbs
from qdqtool.graph.io import open_model, save_model
from qdqtool.graph.normalize import normalize
from qdqtool.match.plan import Plan
from tests.conftest import shared_folder
from tests.laws import law_checks as laws

COLUMNS = (
    "model",
    "operators",
    "groups",
    "act",
    "wgt",
    "float",
    "heads",
    "lifted",
    "L0",
    "L1",
    "L2",
    "L7",
    "L9",
    "L10",
)


def main(words: list[str]) -> int:
    """Print the table; with --heads each terminal operator, too. The number of laws that do not hold."""
    shared = shared_folder()
    default = sorted((shared / "corpus" / "models").glob("*.onnx")) if shared else []
    files = [Path(word) for word in words if not word.startswith("-")] or default
    broken, heads = 0, []
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            row, plan = _row(file, Path(folder))
        broken += sum(cell.startswith("NO") for cell in row)
        print("| " + " | ".join(row) + " |", flush=True)
        heads += [f"| {file.stem} | {h.name} | {h.label} | {h.evidence} |" for h in plan.heads]
    if "--heads" in words:
        print("\n| model | terminal operator | label | evidence |\n|---|---|---|---|\n" + "\n".join(heads))
    return broken


def _row(file: Path, folder: Path) -> tuple[list[str], Plan]:
    opened = open_model(file)
    operators = len(opened.proto.graph.node)
    lifted_from = normalize(opened).lifted_from
    table = laws.table_for(verbs.plan(file))
    done = verbs.insert(file, scales=table, output=folder / "q.onnx")
    plain, quantized, plan = laws.lifted(file), onnx.load(done.model), done.plan
    kinds = Counter(head.label for head in plan.heads)
    inside = laws.pairs_inside_groups(quantized) + laws.wrong_pairs(quantized)
    cells = [
        file.stem,
        str(operators),
        str(len(plan.groups)),
        str(len(plan.activations)) + (f" ({len(inside)} misplaced)" if inside else ""),
        str(len(plan.weights)),
        str(len(plan.refusals)),
        ", ".join(f"{count} {label}" for label, count in sorted(kinds.items())) or "none",
        f"from {lifted_from}" if lifted_from else "no",
        _holds(lambda: _check_bytes(file, folder)),
        _holds(lambda: laws.check_peel_undoes_insert(file, done, folder)),
        _holds(lambda: laws.check_insert_is_idempotent(done, table, folder)),
        _holds(lambda: laws.check_order_of_nodes_is_nothing(plain, file.parent, (1, 2, 3))),
        _holds(lambda: laws.check_no_new_complaint(file, done.model)),
        _holds(lambda: laws.check_nothing_but_rounding(plain, quantized)),
    ]
    return cells, plan


def _holds(check: Callable[[], object]) -> str:
    try:
        check()
    except Exception as error:
        return f"NO: {str(error).splitlines()[0] if str(error) else type(error).__name__}"[:80]
    return "yes"


def _check_bytes(file: Path, folder: Path) -> None:
    opened = open_model(file)
    copy = save_model(opened.proto, folder / "copy.onnx", folder=opened.folder)
    assert copy.read_bytes() == file.read_bytes()


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
