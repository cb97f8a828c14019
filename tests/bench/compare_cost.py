# SPDX-License-Identifier: Apache-2.0
"""What `compare` costs on models of real size: CPU seconds and memory of all tensors of a plain and a Q/DQ model.

A script: python tests/bench/compare_cost.py FOLDER --photos DIR --models a,b [--samples 2] [--other CHECKOUT]. FOLDER
holds what export_models.py wrote; the Q/DQ model has estimated scales. Each figure is of a process of its own, on one
thread. `--other` runs another checkout on the same files, and exits with 1 where the JSON differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cost import Cost, apart, measured, table
from real_models import LIMIT, ONE_THREAD, PROJECT, files_of, make_data

# From a folder where no other checkout lies.
TO_FILE = """import os, subprocess, sys
os.chdir(os.sep)
sys.exit(subprocess.call(sys.argv[2:], stdout=open(sys.argv[1], "wb")))"""


def run(checkout: Path, said: Path, *words: str | Path) -> Cost:
    """What a command of a checkout costs; its stdout goes to a file."""
    command = [sys.executable, "-c", TO_FILE, said, sys.executable, "-m", "qdqtool", *words]
    environment = {**ONE_THREAD, "PYTHONPATH": str(checkout.resolve())}
    return measured(command, limit_seconds=LIMIT, environment=environment)


def rows_of(model: Path, photos: Path, samples: int, checkouts: list[Path]) -> tuple[list[list[str]], bool]:
    """One model by each checkout, and whether all say the same."""
    with tempfile.TemporaryDirectory() as name:
        folder, rows, texts = Path(name), [], set[bytes]()
        said, pairs, data = (folder / file for file in ("said.json", "q.onnx", "calib.npz"))
        apart(make_data, model, photos, folder, samples)
        size = sum(path.stat().st_size for path in apart(files_of, model))
        made = run(PROJECT, said, "insert", model, "-q", "-o", pairs)
        for checkout in checkouts:
            cost = run(checkout, said, "compare", model, pairs, "--data", data, "--json")
            texts.add(said.read_bytes())
            code = f"insert: {made.code}" if made.code else str(cost.code)
            figures = f"{size / 1e6:.0f}", f"{cost.cpu_seconds:.1f}", f"{cost.peak_mb:.0f}"
            rows.append([model.stem, checkout.name, code, *figures])
        return rows, len(texts) == 1


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=Path, required=True, help="folder of .jpg")
    parser.add_argument("--models", required=True, help="beginnings of file names, with commas")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--other", type=Path, help="a checkout to run beside this one")
    args = parser.parse_args()
    every, alike = [], True
    starts = tuple(args.models.split(","))
    for model in sorted(path for path in args.folder.resolve().glob("*.onnx") if path.name.startswith(starts)):
        checkouts = [PROJECT] if args.other is None else [args.other, PROJECT]
        rows, same = rows_of(model, args.photos, args.samples, checkouts)
        every, alike = [*every, *rows], alike and same
    print(table(["model", "checkout", "exit", "MB of it", "CPU s", "peak MB"], every))
    return 0 if alike and all(row[2] == "0" for row in every) else 1


if __name__ == "__main__":
    sys.exit(main())
