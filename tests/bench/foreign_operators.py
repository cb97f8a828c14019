# SPDX-License-Identifier: Apache-2.0
"""What each verb says of graphs with foreign or unknown operators: exit code, and the line that tells.

A script: python tests/bench/foreign_operators.py [WORD ...] prints the table of `foreign_nets.NETS` (those whose names
hold a word), and fails on exit code 70 and on anything lost without a word. The suite asserts the same
(tests/cli/test_cli_foreign_operators.py).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.foreign_nets import NETS, ask, lost


def main(words: list[str]) -> int:
    """Print the table; the number of answers with exit code 70 or with a loss that nobody tells of."""
    faults = 0
    print("| graph | verb | exit | line |\n|---|---|---|---|")
    for name in NETS:
        if words and not any(word in name for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            answers = ask(name, Path(folder))
        for verb, answer in answers.items():
            silent = lost(name, answer) if verb.endswith("dla") and answer.code == 0 else []
            faults += (answer.code == 70) + bool(silent)
            note = f" LOST: {', '.join(silent)}" if silent else ""
            print(f"| {name} | {verb} | {answer.code} | {answer.line.replace('|', ' ')[:200]}{note} |")
    print(f"{faults} answers with exit code 70 or a silent loss")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
