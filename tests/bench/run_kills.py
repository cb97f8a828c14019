# SPDX-License-Identifier: Apache-2.0
"""Kill `qdqtool run` at random moments, take it up again, and compare the bytes with those of an unbroken run.

    python tests/bench/run_kills.py MODEL DATA [--kills 20] [--seed 0] [--limit 16]

The recipe has five steps: condition, insert, peel, lint and cache check. Each round starts in an empty folder of the
same name, is killed (SIGKILL) after a random part of the time that an unbroken run took, and is then run to its end.
Printed: the step in which each kill fell, and whether every file but the records is the same. Exit code 1 where one is
not.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_STEPS = """model = "{model}"
[[step]]
name = "conditioned"
verb = "condition"
options = {{data = "{data}", limit = {limit}}}
[[step]]
name = "int8"
verb = "insert"
options = {{data = "{data}", limit = {limit}, keep-float = 0}}
[[step]]
name = "cache"
verb = "peel"
options = {{target = "dla", trt-version = "8502"}}
[[step]]
name = "findings"
verb = "lint"
model = "int8"
[[step]]
name = "names"
verb = "cache check"
model = "${{step:cache:cache}}"
arguments = "${{step:cache}}"
"""


def main() -> int:
    """Run, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "r.toml"
        recipe.write_text(_STEPS.format(model=args.model.resolve(), data=args.data.resolve(), limit=args.limit))
        return _kills(recipe, args.kills, random.Random(args.seed))


def _kills(recipe: Path, kills: int, draw: random.Random) -> int:
    run = recipe.with_suffix(".run")
    start = time.perf_counter()
    subprocess.run(_command(recipe), check=True, stdout=subprocess.DEVNULL)
    whole = time.perf_counter() - start
    wanted = _contents(run)
    start = time.perf_counter()
    subprocess.run(_command(recipe), check=True, stdout=subprocess.DEVNULL)
    print(f"unbroken: {whole:.1f} s, {len(wanted)} files; a second run: {time.perf_counter() - start:.1f} s")
    wrong = 0
    for number in range(1, kills + 1):
        shutil.rmtree(run)
        delay = draw.uniform(0, whole)
        done = _killed(recipe, delay)
        subprocess.run(_command(recipe), check=True, stdout=subprocess.DEVNULL)
        same = _contents(run) == wanted
        wrong += not same
        print(f"{number:2}: killed after {delay:5.2f} s with {done} steps done: {'the same' if same else 'DIFFERENT'}")
    print(f"{kills - wrong} of {kills} gave the same bytes")
    return int(wrong > 0)


def _killed(recipe: Path, delay: float) -> int:
    """Start a run, kill it, and count the steps that it has recorded."""
    process = subprocess.Popen(_command(recipe), stdout=subprocess.DEVNULL)
    time.sleep(delay)
    process.kill()
    process.wait()
    records = recipe.with_suffix(".run") / ".steps"
    return len([path for path in records.glob("*.json") if path.stem not in ("hashes", "_model")])


def _command(recipe: Path) -> list[str]:
    return [sys.executable, "-m", "qdqtool", "run", str(recipe), "-q"]


def _contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".steps" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    sys.exit(main())
