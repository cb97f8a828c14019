# SPDX-License-Identifier: Apache-2.0
"""What `--provider cuda` gives beside `--provider cpu`: exit codes, scales, caches, figures, seconds. No test.

    python tests/bench/cuda_provider.py --work DIR [--shared DIR] [--parts settings,verbs,large] [--models a,b]
        [--large FILE.onnx] [--limit 24] [--jobs 4] [--provider cuda] [--json F]

Needs onnxruntime-gpu and a GPU; `--provider cpu` tries the script itself. `settings`: onnxruntime's outputs with its
own settings of CUDA and with others, beside the CPU's. `verbs`: each verb once on the CPU and twice on the GPU.
`large`: wall time of a ResNet-50 with random weights, or of the files named, one command at a time.
Exit code 1 where a verb fails on the GPU alone, or gives other bytes the second time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cuda_differences import difference
from cuda_settings import SETTINGS, write_samples
from large_models import make_resnet50
from shared_material import SHARED

PROJECT = Path(__file__).resolve().parents[2]
MODELS = PROJECT / "models"
LIMIT_SECONDS = 240  # of one command

# {m} is the model, {d} its data and how it is read, {e} labeled data, {q} the Q/DQ model that the CPU made.
COMMANDS = {
    "calibrate": "calibrate {m} {d} -o auto.json",
    "calibrate, 4 threads": "calibrate {m} {d} --workers 4 -o threads.json",
    "calibrate entropy": "calibrate {m} {d} --method entropy -o entropy.json",
    "calibrate max": "calibrate {m} {d} --method max -o max.json",
    "insert": "insert {m} {d} --json -o q.onnx",
    "insert, FP16": "insert {m} {d} --rest fp16 --json -o half.onnx",
    "insert, all": "insert {m} {d} --condition auto --max-output-loss .01 --json -o all.onnx",
    "ptq": "ptq {m} {d} --target gpu --trt-version 8.5.2 --json --cache p.cache",
    "sensitivity": "sensitivity {m} {d} --json",
    "condition": "condition {m} {d} --json -o c.onnx",
    "condition, shift": "condition {m} {d} --steps equalize,smooth,shift --muls all --json -o s.onnx",
    "amp": "amp {m} {d} --json -o amp.onnx",
    "evaluate": "evaluate {q} --baseline {m} {e} --json",
    "compare": "compare {m} {q} {d} --json",
    "simulate": "simulate {q} {d} --trt-version 8.5.2 --json -o outputs.npz",
    "lint": "lint {q} {d} --json",
    "finetune": "finetune {q} {d} --steps 6 --json -o f.onnx",
    "finetune, blocks": "finetune {q} {d} --blocks --ranges learn --steps 6 --json -o b.onnx",
    "prune": "prune {m} {d} --ratio .2 --json -o pruned.onnx",
    "bench": "bench {m} --json",
}
_TIMES = ("bench",)  # whose figures are times, and never the same


@dataclass(frozen=True)
class Subject:
    """A model and its data, as the command line takes them."""

    name: str
    model: Path
    data: tuple[str, ...]
    labeled: tuple[str, ...] = ()


@dataclass
class Outcome:
    """One verb on one model: exit codes on the CPU and on the GPU, what differs, and whether the GPU repeats itself."""

    subject: str
    command: str
    codes: tuple[int, int, int] = (0, 0, 0)
    seconds: tuple[float, float, float] = (0, 0, 0)
    repeats: bool = True
    differences: dict[str, Any] = field(default_factory=dict)
    message: str = ""

    @property
    def failed(self) -> bool:
        return self.codes[1] not in (self.codes[0],) or not self.repeats


def say(text: str = "") -> None:
    """One line, at once."""
    print(text, flush=True)


def subjects(shared: Path, work: Path, limit: int) -> list[Subject]:
    """The bundled models, and some of the corpus where it is at hand."""
    sys.path.insert(0, str(MODELS))
    import numpy as np
    import shape_scenes
    import shapes

    np.savez(work / "shapes.npz", images=shapes.draw(*shapes.CALIB)[0])
    images, labels = shapes.draw(shapes.TEST[0], 1000)
    np.savez(work / "named.npz", x=images, y=labels)
    np.savez(work / "scenes.npz", images=shape_scenes.draw(*shape_scenes.CALIB)["images"])
    some = ("--limit", str(limit))
    found = [
        Subject("tiny_classifier", MODELS / "tiny_classifier.onnx",
                ("--data", str(MODELS / "digits8_calib.npz")), ("--data", str(MODELS / "digits8_test.npz"))),
        Subject("digits_detector", MODELS / "digits_detector.onnx",
                ("--data", str(MODELS / "digits_calib.npz"), *some)),
        Subject("shapes_vit", MODELS / "shapes_vit.onnx", ("--data", str(work / "shapes.npz"), *some),
                ("--data", str(work / "named.npz"))),
        Subject("shapes_detr", MODELS / "shapes_detr.onnx", ("--data", str(work / "scenes.npz"), *some)),
    ]  # fmt: skip
    real = {
        "yolox_nano_coco": ("coco_calib48/images", "yolox"),
        "mobilenetv1_025_128": ("imagenet_calib100", "resize=crop,interpolation=area,scale=1/127.5,mean=1"),
        "cifar_resnet20_bn": ("cifar10_1000.npz", "scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"),
        "blazeface_front": ("facemask_calib32/images", "resize=letterbox-topleft,pad=0,scale=1/127.5,mean=1"),
    }
    for name, (folder, preprocess) in real.items():
        model, data = shared / "corpus/models" / f"{name}.onnx", shared / "corpus/datasets" / folder
        if model.is_file() and data.exists():
            words = ("--data", str(data), "--preprocess", preprocess)
            found.append(Subject(name, model, (*words, *some), words if data.is_file() else ()))
    return found


def run(words: Sequence[str], folder: Path) -> tuple[int, float, str]:
    """One command of qdqtool in a folder: exit code, wall seconds, what it wrote on stderr; stdout is in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "qdqtool", *words, "--quiet"],
            cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, LIMIT_SECONDS, "took too long"
    (folder / "stdout").write_text(done.stdout, encoding="utf-8")
    return done.returncode, time.monotonic() - begun, done.stderr.strip()


def outcome(subject: Subject, command: str, provider: str, work: Path) -> Outcome:
    """A command on the CPU, then twice on the provider, each in a folder of its own."""
    qdq = work / subject.name / "insert" / "cpu" / "q.onnx"
    words = []
    for word in COMMANDS[command].split():
        filled = {
            "{m}": [str(subject.model)],
            "{d}": subject.data,
            "{q}": [str(qdq)],
            "{e}": subject.labeled or subject.data,
        }
        words += filled.get(word, [word])
    folder, made = work / subject.name / command.replace(",", "").replace(" ", "-"), []
    for name, on in (("cpu", "cpu"), ("first", provider), ("second", provider)):
        made.append(run([*words, "--provider", on], folder / name))
    codes, seconds, messages = zip(*made, strict=True)
    found = Outcome(subject.name, command, codes, seconds, message=messages[1][-400:])
    for file in sorted(path.name for path in (folder / "first").iterdir()):
        first, second, cpu = (folder / name / file for name in ("first", "second", "cpu"))
        if command not in _TIMES:
            same = second.is_file() and difference(first, second)["same"]
            found.repeats = found.repeats and same
            found.differences[file] = difference(cpu, first) if cpu.is_file() else {"same": False}
    return found


def verbs(chosen: Sequence[Subject], provider: str, work: Path, jobs: int) -> list[Outcome]:
    """Every verb on every model; models side by side, so that seconds are for orientation only."""
    for subject in chosen:
        shutil.rmtree(work / subject.name, ignore_errors=True)

    def one(subject: Subject, command: str) -> Outcome:
        found = outcome(subject, command, provider, work)
        say(line_of(found))
        return found

    made: list[Outcome] = []
    with ThreadPoolExecutor(jobs) as pool:
        for first in (True, False):  # the CPU's Q/DQ model is what other verbs read
            names = [name for name in COMMANDS if (name == "insert") == first]
            made += pool.map(lambda pair: one(*pair), [(subject, name) for subject in chosen for name in names])
    return made


def line_of(found: Outcome) -> str:
    """An outcome as a line."""
    codes = "/".join(map(str, found.codes))
    parts = [f"{file}: {_brief(what)}" for file, what in found.differences.items()]
    times = "/".join(f"{second:.1f}" for second in found.seconds)
    note = f" [{found.message}]" if found.message and any(found.codes) else ""
    repeats = "repeats" if found.repeats else "DOES NOT REPEAT"
    return f"{found.subject:20} {found.command:20} exit {codes} s {times} {repeats}; {'; '.join(parts)}{note}"


def _brief(what: Mapping[str, Any]) -> str:
    return "same bytes" if what["same"] else ", ".join(f"{key} {value}" for key, value in what.items() if key != "same")


def settings(chosen: Sequence[Subject], provider: str, work: Path, limit: int, jobs: int) -> list[dict[str, Any]]:
    """Outputs with each of onnxruntime's settings, in two processes each, beside those of the CPU."""
    with ThreadPoolExecutor(jobs) as pool:
        made = pool.map(lambda one: _settings_of(one, provider, work, min(limit, 8)), chosen)
        return [row for rows in made for row in rows]


def _settings_of(subject: Subject, provider: str, work: Path, count: int) -> list[dict[str, Any]]:
    samples, reference, rows = work / f"{subject.name}.samples.npz", work / f"{subject.name}.cpu.npz", []
    write_samples(subject.model, subject.data, samples, count)
    for name in ("cpu", *SETTINGS):
        on = "cpu" if name == "cpu" else provider
        words = [PROJECT / "tests/bench/cuda_settings.py", subject.model, samples, on, name, reference]
        answers = []
        for _ in range(2):
            done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True,
                                  timeout=LIMIT_SECONDS, check=False)  # fmt: skip
            last = done.stdout.strip().rpartition("\n")[2]
            answers.append(json.loads(last) if done.returncode == 0 else {"error": done.stderr[-300:]})
        digests = {digest for answer in answers for digest in answer.get("digests", ["failed"])}
        figures = {key: value for key, value in answers[0].items() if key != "digests"}
        rows.append({"model": subject.name, "settings": name, "different outputs": len(digests), **figures})
        say(json.dumps(rows[-1]))
    return rows


def large_subjects(files: Sequence[Path], work: Path, samples: int) -> list[Subject]:
    """The files named, or a ResNet-50, with smooth noise of 224 x 224 for pictures."""
    import numpy as np
    import onnx

    if not files:
        files = [work / "resnet50.onnx"]
        make_resnet50(files[0])
    draw = np.random.default_rng(7)
    pictures = draw.normal(size=(samples, 3, 224, 224)).astype(np.float32)
    pictures = (pictures + np.roll(pictures, 1, -1) + np.roll(pictures, 1, -2)) / 2
    found = []
    for file in files:
        data = work / f"{file.stem}.large.npz"
        np.savez(data, **{onnx.load(file, load_external_data=False).graph.input[0].name: pictures})
        found.append(Subject(file.stem, file.resolve(), ("--data", str(data))))
    return found


def large(chosen: Sequence[Subject], provider: str, work: Path) -> list[dict[str, Any]]:
    """Wall seconds of verbs on models of real size, one command at a time."""
    rows = []
    for subject in chosen:
        for verb in ("calibrate", "calibrate entropy", "insert"):
            for on, threads in (("cpu", 1), ("cpu", 8), (provider, 1), (provider, 4)):
                words = [*COMMANDS[verb].replace("{m}", str(subject.model)).split(), "--workers", str(threads)]
                at = words.index("{d}")
                words[at : at + 1] = subject.data
                name = "cpu" if (on, threads) == ("cpu", 1) else f"{on}-{threads}"
                folder = work / subject.name / "large" / name
                code, seconds, error = run([*words, "--provider", on], folder)
                made, base = (place / words[words.index("-o") + 1] for place in (folder, folder.parent / "cpu"))
                beside = _brief(difference(base, made)) if made.is_file() and base.is_file() else "not written"
                rows.append({"model": subject.name, "command": verb, "provider": on, "workers": threads, "exit": code,
                             "seconds": round(seconds, 1), "beside cpu": beside})  # fmt: skip
                say(json.dumps(rows[-1]) + (f" {error[-300:]}" if code else ""))
    return rows


def main() -> int:
    """Run the parts; 1 where a verb fails on the GPU alone, or does not repeat."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--parts", default="settings,verbs,large")
    parser.add_argument("--models", default="")
    parser.add_argument("--large", type=Path, action="append", default=[])
    parser.add_argument("--samples", type=int, default=128, help="of large models")
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    work: Path = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    code, _, said = run(["--version"], work)
    if code:
        parser.error(f"qdqtool does not start with this interpreter: {said}")
    wanted = [name for name in args.models.split(",") if name]
    chosen = [one for one in subjects(args.shared, work, args.limit) if not wanted or one.name in wanted]
    big = large_subjects(args.large, work, args.samples) if args.large or "large" in args.parts else []
    found: dict[str, Any] = {}
    if "settings" in args.parts:
        found["settings"] = settings([*chosen, *big], args.provider, work, args.limit, args.jobs)
    if "verbs" in args.parts:
        found["verbs"] = [asdict(one) | {"failed": one.failed}
                          for one in verbs(chosen, args.provider, work, args.jobs)]  # fmt: skip
    if "large" in args.parts:
        found["large"] = large(big, args.provider, work)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    failed = [one for one in found.get("verbs", []) if one["failed"]]
    say(f"{len(failed)} of {len(found.get('verbs', []))} verbs fail or do not repeat")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
