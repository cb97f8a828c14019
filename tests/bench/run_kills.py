# SPDX-License-Identifier: Apache-2.0
"""Kill `qdqtool run` at random moments, take it up again, and compare the bytes with those of an unbroken run.

    python tests/bench/run_kills.py MODEL DATA [--kills 20] [--seed 0] [--limit 16]
    python tests/bench/run_kills.py MODEL DATA --deploy xavier-nx:jp4.6.1 [--kills 20] [--seed 0] [options of deploy]

The recipe has five steps: condition, insert, peel, lint and cache check; with --deploy it is `qdqtool deploy`. Each
round starts in an empty folder of the same name, is killed (SIGKILL) after a random part of the time that an unbroken
run took, and is then run to its end. Printed: how many steps were done when each kill fell, and whether every file but
the records is the same. Exit code 1 where one is not, or where something else is left.
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
    parser.add_argument("--deploy", metavar="BOARD", help="kill deploy for that board; it is given unknown options")
    args, more = parser.parse_known_args()
    model, data = args.model.resolve(), args.data.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.deploy:
            words = ["deploy", model, "--data", data, "--for", args.deploy, "-o", folder / "out", *more]
        else:
            recipe = folder / "r.toml"
            recipe.write_text(_STEPS.format(model=model, data=data, limit=args.limit))
            words = ["run", recipe, "-o", folder / "out"]
        return _kills([*map(str, words), "-q"], folder, args.kills, random.Random(args.seed))


def _kills(words: list[str], folder: Path, kills: int, draw: random.Random) -> int:
    command = [sys.executable, "-m", "qdqtool", *words]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    whole = time.perf_counter() - start
    wanted = _contents(folder)
    print(f"unbroken: {whole:.1f} s, {len(wanted)} files")
    if words[0] == "run":
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"a second run: {time.perf_counter() - start:.1f} s")
    wrong = 0
    for number in range(1, kills + 1):
        shutil.rmtree(folder / "out")
        delay = draw.uniform(0, whole)
        done = _killed(command, folder, delay)
        start = time.perf_counter()
        if words[0] == "run" or not (folder / "out").exists():
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rest, same = time.perf_counter() - start, _contents(folder) == wanted
        wrong += not same
        said = f"{number:2}: killed after {delay:5.2f} s with {done} steps done, the rest in {rest:5.2f} s"
        print(f"{said}: {'the same' if same else 'DIFFERENT'}")
    print(f"{kills - wrong} of {kills} gave the same bytes")
    return int(wrong > 0)


def _killed(command: list[str], folder: Path, delay: float) -> int:
    """Start a run, kill it, and count the steps that it has recorded."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(delay)
    process.kill()
    process.wait()
    return len([path for path in folder.rglob(".steps/*.json") if not path.name.startswith("_")])


def _contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".steps" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    sys.exit(main())
