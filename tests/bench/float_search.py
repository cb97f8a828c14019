# SPDX-License-Identifier: Apache-2.0
"""The searches for what stays in float, of several checkouts: loss, float operators, bytes, runs and user CPU. No test.

python tests/bench/float_search.py WORK [--models a,b] [--ways int8,auto] [--checkouts PATH ...]

Six trained models, below `QDQTOOL_SHARED` and of the project, and six of real size with random weights. `int8` is
`insert --data --keep-float 0`; `auto` has `--keep-float auto`; `within` and `tight` have `--max-output-loss`, half and
a tenth of what `int8` loses on calibration samples; `amp` is `amp --data --to bf16 --max-output-loss`, half of what
`half`, the same without a bound, loses. The loss is that of the written file on samples that chose nothing. Each figure
is of a process of its own; what WORK/figures.jsonl holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).resolve()
COUNT, HELD_OUT = 32, 16
FEW = 16  # calibration samples of models of real size
# Way -> the way whose loss its bound is taken from, and the part of that; none where it has no bound.
WAYS = {"int8": None, "auto": None, "within": ("int8", 2), "tight": ("int8", 10), "half": None, "amp": ("half", 2)}
TRAINED = (
    "cifar_resnet20", "mobilenetv1_025_128", "ultraface_rfb320", "nanodet_m_320_coco", "shapes_detr", "shapes_vit"
)  # fmt: skip
MADE = ("resnet50", "yolox_nano_coco", "vit_b", "detector", "text", "chain1500")
LAYERS = {"vit_b": 2, "detector": 2, "text": 2}


def model_of(name: str, work: Path) -> Path:
    """Where a model lies; made where it is not trained."""
    from large_models import make_graph, make_resnet50
    from real_size import make_vit
    from shared_material import SHARED

    path = work / f"{name}.onnx"
    if name.startswith("shapes_"):
        return PROJECT / "models" / f"{name}.onnx"
    if name in TRAINED or name == "yolox_nano_coco":
        return SHARED / "corpus" / "models" / f"{name}.onnx"
    if path.is_file():
        return path
    if name in LAYERS:
        make_vit(path, LAYERS[name], "classifier" if name == "vit_b" else name)
    elif name == "resnet50":
        make_resnet50(path)
    else:
        make_graph(path, 1500, 32)
    return path


def data_of(name: str, work: Path) -> tuple[Path, Path]:
    """Archives of calibration and of held-out samples."""
    files = work / f"{name}.calib.npz", work / f"{name}.held.npz"
    if not all(file.is_file() for file in files):
        import numpy as np

        key, arrays = _samples(name, work)
        np.savez(files[0], **{key: arrays[: FEW if name in MADE else COUNT]})
        np.savez(files[1], **{key: arrays[COUNT : COUNT + HELD_OUT]})
    return files


def _samples(name: str, work: Path) -> tuple[str, Any]:
    import numpy as np
    import onnx

    from qdqtool.data.model_inputs import inputs_of

    sys.path.insert(0, str(PROJECT / "models"))
    draw, count = np.random.default_rng(0), COUNT + HELD_OUT
    if name == "shapes_detr":
        import shape_scenes

        return "images", shape_scenes.draw(5, count)["images"]
    if name == "shapes_vit":
        import shapes

        return "images", shapes.draw(5, count)[0]
    first = inputs_of(onnx.load(model_of(name, work)).graph)[0]
    if name in TRAINED or name == "yolox_nano_coco":
        return first.name, _photos(name, first, count)
    shape = tuple(1 if not isinstance(side, int) else side for side in first.shape or ())
    if name == "text":
        return first.name, draw.integers(0, 4000, (count, *shape[1:]))
    spread = draw.uniform(0.5, 2, (count, *[1] * (len(shape) - 1)))
    return first.name, (draw.normal(size=(count, *shape[1:])) * spread).astype("float32")


def _photos(name: str, first: Any, count: int) -> Any:
    """Calibration images, then as many of others."""
    import numpy as np
    from accuracy_subjects import SUBJECTS
    from shared_material import SHARED

    from qdqtool.data.loader import DataOptions, open_loader

    subject, found = SUBJECTS[name], []
    for part, some in ((subject.data[0], COUNT), (subject.data[1], count - COUNT)):
        source = SHARED / "corpus" / "datasets" / part
        if source.suffix == ".npz":
            held = np.load(source)
            images = held["calib" if part == subject.data[0] and not found and "calib" in held else _images_in(held)]
            offset = 0 if "calib" in held or not found else COUNT
            found.append(_prepared(images[offset : offset + some], subject.preprocess, first))
            continue
        loader = open_loader(source, [first], DataOptions(preprocess=subject.preprocess, limit=some))
        found.append(np.concatenate([batch[first.name] for batch in loader]))
    return np.concatenate(found)


def _images_in(held: Any) -> str:
    return next(key for key in held.files if held[key].ndim == 4)


def _prepared(images: Any, words: str, first: Any) -> Any:
    import numpy as np

    values = dict(word.split("=") for word in words.split(",") if "=" in word)
    above, _, below = values.get("scale", "1").partition("/")
    scale = float(above) / float(below or 1)
    mean, std = (
        np.array([float(one) for one in values.get(key, default).split(":")], np.float32)
        for key, default in (("mean", "0"), ("std", "1"))
    )
    made = ((images.astype(np.float32) * scale - mean) / std).astype(np.float32)
    return made if first.shape and first.shape[-1] == 3 else made.transpose(0, 3, 1, 2)


def work_one(way: str, model: Path, calib: Path, held: Path, out: Path, bound: str) -> None:
    """Run one way in this process, and print its figures as JSON."""
    import onnxruntime

    import qdqtool

    runs, run = [0], onnxruntime.InferenceSession.run

    def counted(self: Any, *args: Any, **named: Any) -> Any:
        runs[0] += 1
        return run(self, *args, **named)

    onnxruntime.InferenceSession.run = counted
    limit = float(bound) if bound else None
    start = resource.getrusage(resource.RUSAGE_SELF).ru_utime + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    if way in ("half", "amp"):
        found: Any = qdqtool.amp(model, calib, None, qdqtool.AmpOptions(to="bf16", max_output_loss=limit), out)
        figures = {"said": found.output_loss, **_float_of(found, model)}
    else:
        keep: Any = {"int8": 0, "auto": "auto"}.get(way)
        options = qdqtool.InsertOptions(keep_float=keep, max_output_loss=limit)
        found = qdqtool.insert(model, data=calib, options=options, output=out)
        steps = found.search.steps if found.search is not None else ()
        figures = {
            "said": found.output_loss.value,
            "float": sum(len(step.nodes) for step in steps),
            "share": sum(step.share for step in steps),
            "forms": 0 if found.search is None else found.search.runs,
        }
    end = resource.getrusage(resource.RUSAGE_SELF).ru_utime + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    onnxruntime.InferenceSession.run = run
    size = sum(file.stat().st_size for file in out.parent.glob(f"{out.stem}*"))
    figures |= {"user": end - start, "session_runs": runs[0], "bytes": size, "loss": held_loss(model, out, held)}
    print(json.dumps(figures))


def _float_of(found: Any, model: Path) -> dict[str, Any]:
    """Operators in FP32 beside half ones, and their share of the multiply-adds of all products."""
    from qdqtool.engine.layer_work import product_of
    from qdqtool.graph.io import open_model
    from qdqtool.graph.shapes import known_shapes

    view = open_model(model).view
    shapes, macs = known_shapes(view), {}
    for node in view.nodes:
        if node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            sizes = [[side or 1 for side in shapes.get(name) or ()] for name in (*node.inputs[:2], node.outputs[0])]
            macs[node.key] = product_of(view, node, *sizes).macs
    kept = found.choice.assignment.float32
    return {
        "float": len(kept),
        "share": sum(macs[key] for key in macs if key in kept) / max(1, sum(macs.values())),
        "forms": 0,
    }


def held_loss(model: Path, written: Path, held: Path) -> float:
    """The mean over the outputs of what their channels lose."""
    import numpy as np

    from qdqtool.graph.io import open_model
    from qdqtool.measures import channel_loss
    from qdqtool.precision.rounded import as_run
    from qdqtool.runtime.activations import ObservableModel, OrtActivations

    samples, outputs = dict(np.load(held)), []
    count = len(next(iter(samples.values())))
    names: tuple[str, ...] = ()
    for source in (model, written):
        ready = ObservableModel(as_run(open_model(source)), "cpu", str(source))
        names = names or ready.floats(ready.ends)
        runs = OrtActivations.of(ready, ready.chosen(names), few_runs=True)
        outputs.append([dict(runs.run({k: v[at : at + 1] for k, v in samples.items()})) for at in range(count)])
    wanted, got = outputs
    losses = [channel_loss([one[name] for one in wanted], [one[name] for one in got]) for name in names]
    return sum(losses) / len(losses)


def measure(name: str, way: str, checkout: Path, work: Path, bound: float | None) -> dict[str, Any]:
    """The figures of one way in a process of its own."""
    out = work / f"{name}.{way}.{checkout.name}.onnx"
    words = [sys.executable, SCRIPT, "one", way, model_of(name, work), *data_of(name, work), out, bound or ""]
    path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, check=False)
    for file in work.glob(f"{out.stem}*"):
        file.unlink()
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["?"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def table(known: dict[tuple[str, str, str], dict[str, Any]], names: list[str], checkouts: list[Path]) -> str:
    """A row for each model and way, the checkouts beside each other."""
    lines = ["| model | way | loss held out | in float | MACs | bytes | runs | user s |", "|---" * 8 + "|"]
    for name in names:
        for way in WAYS:
            rows = [known.get((name, way, one.name), {}) for one in checkouts]
            if any(rows):
                cells = [name, way, *(" / ".join(_cell(row, key) for row in rows) for key in _FORMATS)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_FORMATS = {"loss": "{:.4g}", "float": "{}", "share": "{:.1%}", "bytes": "{:,}", "session_runs": "{}", "user": "{:.1f}"}


def _cell(row: dict[str, Any], key: str) -> str:
    return _FORMATS[key].format(row[key]) if key in row else row.get("error", "-")[:40]


def main() -> None:
    """Measure what is lacking, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--models", default=",".join((*TRAINED, *MADE)))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--checkouts", type=Path, nargs="+", default=[PROJECT])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    store, checkouts = args.work / "figures.jsonl", [one.resolve() for one in args.checkouts]
    known: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in store.read_text().splitlines() if store.is_file() else []:
        one = json.loads(line)
        known[one["model"], one["way"], one["checkout"]] = one
    names, ways = args.models.split(","), args.ways.split(",")
    for name in names:
        for way in ways:
            for checkout in checkouts:
                key = name, way, checkout.name
                if key in known:
                    continue
                bound = None
                if (part := WAYS[way]) is not None:
                    said = known.get((name, part[0], checkouts[0].name), {}).get("said")
                    if not said:
                        continue
                    bound = float(f"{said / part[1]:.1g}")
                known[key] = {"model": name, "way": way, "checkout": checkout.name, "bound": bound}
                known[key] |= measure(name, way, checkout, args.work, bound)
                with store.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
                print(known[key], file=sys.stderr)
    print(table(known, names, checkouts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        work_one(sys.argv[2], *map(Path, sys.argv[3:7]), sys.argv[7])
    else:
        main()
