# SPDX-License-Identifier: Apache-2.0
"""How long each verb writes nothing on a terminal: every verb under a pseudo terminal, on models that take seconds.

    python tests/bench/silence.py [--shared DIR] [--only insert,report] [--models yolox_nano_coco,resnet50] [--limit 2]

`yolox_nano_coco` has its own images and labels; `resnet50` is made here (102 MB, random weights and samples). For each
command: seconds, exit code, the longest time without output, the CPU seconds in it, when it began and what stood on the
screen. Exit code 1 where one is silent for longer than `--limit` or fails.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from cost import table
from large_models import make_resnet50

LIMIT = 2.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# {m} model, {d} data, {l} words for labels, {p} for preprocessing; each line writes what later ones read.
_COMMANDS = """
insert {m} -o estimated.onnx
insert {m} --data {d} {p} --trt-version 8.6.1 -o q.onnx
insert {m} --data {d} {p} --condition auto -o c.onnx
insert {m} --data {d} {p} --rest fp16 -o h.onnx
insert {m} --data {d} {p} --method auto --max-output-loss .02 -o k.onnx
condition {m} --data {d} {p} -o conditioned.onnx
calibrate {m} --data {d} {p} -o s.json
ptq {m} --data {d} {p} --target gpu --trt-version 8.6.1 --cache c.cache
peel q.onnx --target gpu --trt-version 8.6.1 -o p.onnx --cache p.cache
peel q.onnx --target dla --trt-version 8.5.2 -o pd.onnx --cache pd.cache
graft p.onnx --cache p.cache -o g.onnx
amp {m} --data {d} {p} -o ad.onnx
cache show p.cache
cache check p.cache p.onnx
cache diff p.cache c.cache
cache retarget p.cache --trt-version 8.5.2 -o r.cache
lint q.onnx
lint {m} --target dla --trt-version 8.5.2
evaluate q.onnx --baseline {m} --data {d} {l} {p}
evaluate {m} --cache c.cache --trt-version 8.6.1 --baseline {m} --data {d} {l} {p}
compare {m} q.onnx --data {d} {p}
simulate q.onnx --data {d} {p} --trt-version 8.6.1
simulate q.onnx --data {d} {p} --target dla --trt-version 8.5.2
sensitivity {m} --data {d} {p}
finetune q.onnx --data {d} {p} --steps 3 -o f.onnx
finetune q.onnx --data {d} {p} --blocks --limit 4 --steps 3 -o fb.onnx
prune {m} --ratio .3 -o pr.onnx
prune {m} --data {d} {p} --importance taylor --macs .7 -o pt.onnx
improve q.onnx --data {d} {p} --max-loss .5 -o i.onnx
bench {m} q.onnx --seconds 1
report q.onnx --model {m} -o r.html
report q.onnx --model {m} --data {d} {p} -o rd.html
run recipe.toml
deploy {m} --data {d} {p} --for 11.4 --effort fast -o D
deploy {m} --data {d} {p} --for xavier-nx --dla --effort fast -o DX
infer {m} --data {d} {p} -o I
build q.onnx --target rtx -o e.engine
engine show e.engine.layers.json --model q.onnx --target rtx
doctor
completion bash
"""
_RECIPE = """model = "{m}"
[[step]]
verb = "insert"
options = {{data = "{d}"{t}}}
[[step]]
verb = "lint"
"""


@dataclass(frozen=True)
class Silence:
    """One command on a terminal.

    Attributes:
        code: the exit code.
        seconds: how long it ran.
        longest: seconds without output, to the end of the process.
        cpu: CPU seconds of the process in them: what they would take on a core of its own.
        begins: seconds after the start at which they began.
        screen: the last line that was written before.
        last: the last line of all.
    """

    code: int
    seconds: float
    longest: float
    cpu: float
    begins: float
    screen: str
    last: str


def measured(command: list[str], folder: Path) -> Silence:
    """Run a command with a terminal as its output and take the time of everything it writes."""
    screen, terminal = pty.openpty()
    start = heard = time.monotonic()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment)
    os.close(terminal)
    found, text, used, running = Silence(0, 0.0, 0.0, 0.0, 0.0, "", ""), "", 0.0, True
    spent = 0.0
    while running:
        ready = select.select([screen], [], [], 0.05)[0]
        try:
            read = os.read(screen, 65536) if ready else b""
        except OSError:  # the other end is closed
            read = b""
        spent = _cpu_of(process.pid, spent)
        if ready and not read:
            process.wait()
        running = bool(read) or process.poll() is None
        if running and not read:
            continue
        now = time.monotonic()
        if now - heard > found.longest:
            found = Silence(0, 0.0, now - heard, spent - used, heard - start, _last_line(text), "")
        heard, used, text = now, spent, (text + read.decode("utf-8", "replace"))[-4000:]
    os.close(screen)
    return replace(found, code=process.wait(), seconds=time.monotonic() - start, last=_last_line(text))


def _cpu_of(pid: int, before: float) -> float:
    """CPU seconds of a process so far; what was known where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return before
    return max(before, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in re.split(r"[\r\n]+", _ESCAPES.sub("", text)) if line.strip()]
    return lines[-1] if lines else ""


def _subject(name: str, shared: Path, folder: Path, samples: int) -> dict[str, str]:
    """The words that stand for a model and its data, which are put into the folder."""
    datasets = shared / "corpus" / "datasets"
    model = folder / f"{name}.onnx"
    if name != "resnet50":
        shutil.copy(shared / "corpus" / "models" / f"{name}.onnx", model)
        (folder / "images").mkdir(exist_ok=True)
        for file in sorted((datasets / "coco_calib48" / "images").iterdir())[:samples]:
            shutil.copy(file, folder / "images")
        labels = f"--labels {datasets / 'coco_calib48' / 'labels'} --names coco"
        return {"m": model.name, "d": "images", "l": labels, "p": "--preprocess yolox", "t": ', preprocess = "yolox"'}
    import numpy as np

    make_resnet50(model)
    draw = np.random.default_rng(0)
    values = draw.standard_normal((samples, 3, 224, 224)).astype(np.float32)
    np.savez(folder / "samples.npz", input=values, y=draw.integers(1000, size=samples))
    return {"m": model.name, "d": "samples.npz", "l": "", "p": "", "t": ""}


def main() -> int:
    """Run every command on every model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument("--shared", type=Path, default=default)
    parser.add_argument("--models", default="yolox_nano_coco,resnet50")
    parser.add_argument("--only", default="", help="commands that begin so, with commas between; and what they read")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--work", type=Path, help="a folder to keep")
    args = parser.parse_args()
    rows, bad = [], 0
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            folder = (args.work or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            words = _subject(name, args.shared, folder, args.samples)
            (folder / "recipe.toml").write_text(_RECIPE.format(**words), encoding="utf-8")
            for line in _COMMANDS.strip().splitlines():
                if args.only and not line.startswith(tuple(args.only.split(","))):
                    continue
                asked = line.format(**words).split()
                found = measured([sys.executable, "-m", "qdqtool", *asked], folder)
                wrong = found.code not in (0, 1) or found.longest > args.limit
                bad += wrong
                mark = "* " if wrong else ""
                row = (name, f"{mark}{line}", str(found.code), f"{found.seconds:.1f}", f"{found.longest:.2f}")
                rows.append((*row, f"{found.cpu:.2f}", f"{found.begins:.1f}", found.screen[:60]))
                print(" | ".join((*rows[-1], found.last[:120] if found.code else "")), file=sys.stderr, flush=True)
    print(table(("model", "command", "exit", "s", "silent s", "CPU s", "from s", "behind"), rows))
    print(f"{bad} of {len(rows)} commands fail or are silent for more than {args.limit:g} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
