# SPDX-License-Identifier: Apache-2.0
"""What `improve` makes of twelve broken models: the cause that it names first, its loss beside commands by hand, CPU.

A script, not a test: see README.md here. Each model is broken in one way that is known. `improve` gets labeled images,
with a looser and a tighter bound; every command by hand gets the same images to calibrate by. All of them are judged on
other images, paired.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_subjects import FACE_NAMES, SUBJECTS
from cost import measured, table
from pages import rewrite
from shared_material import SHARED

if TYPE_CHECKING:
    import onnx

    from qdqtool.evaluation.metrics import Figure, ResampledFigure

MODELS = Path(__file__).parents[2] / "models"
LOOSE, TIGHT = 0.05, 0.005
_FEW = 0.004  # what three images of the smallest sets are
BY_HAND = {
    "insert": (),
    "insert, mse": ("--method", "mse", "--keep-float", "0"),
    "insert, entropy": ("--method", "entropy", "--keep-float", "0"),
    "insert --condition auto": ("--condition", "auto"),
    "insert --max-output-loss .02": ("--max-output-loss", "0.02"),
}
HEAD = (
    "broken",
    "cause named first",
    "as given",
    "improve",
    "95 % interval",
    "kept",
    "best by hand",
    "loses",
    "improve less it",
    "95 % interval",
    "looser, tighter bound",
    "CPU s",
)


@dataclass(frozen=True)
class Broken:
    """A model and what is wrong with it.

    Attributes:
        what: in words.
        causes: the names of causes that are right, any of them first.
        model: of the corpus, or of `models/`.
        break_: makes the Q/DQ model: of the FP32 file, the images and the file to write. It may write another FP32 file
            beside it, which is the one that counts then.
        used: how many images improve is given; the others judge.
    """

    what: str
    causes: tuple[str, ...]
    model: str
    break_: Callable[[Path, Path, Path], Path]
    used: int = 160

    @property
    def named(self) -> str:
        """What is wrong with which model."""
        return f"{self.what} ({self.model})"


@dataclass(frozen=True)
class Images:
    """Images to improve by and images to judge by, each with labels, and how they are read."""

    used: Path
    others: Path
    labels: str | None
    preprocess: str | None
    names: str | None

    def words(self) -> list[str]:
        words = ["--data", str(self.used)]
        return words + (["--preprocess", self.preprocess] if self.preprocess else [])

    def judged(self) -> list[str]:
        words = ["--labels", self.labels] if self.labels else []
        return words + (["--names", self.names] if self.names else [])


def tool(*words: str | Path, fails: bool = False) -> float:
    """Run qdqtool; the CPU seconds."""
    done = measured([sys.executable, "-m", "qdqtool", *map(str, words), "-q"])
    if done.code not in ((0, 1) if fails else (0,)):
        raise SystemExit(f"{' '.join(map(str, words))}: {done.tail}")
    return done.cpu_seconds


# ---------------------------------------------------------------- the ways to break a model


def inserted(*words: str) -> Callable[[Path, Path, Path], Path]:
    """`insert` with options that lose."""

    def broken(plain: Path, data: Path, output: Path) -> Path:
        tool("insert", plain, "--data", data, "--keep-float", "0", *words, "-o", output)
        return plain

    return broken


def calibrated_on(change: Callable[[Any], Any], *words: str) -> Callable[[Path, Path, Path], Path]:
    """`insert` with other samples than the application has."""

    def broken(plain: Path, data: Path, output: Path) -> Path:
        import numpy as np

        from qdqtool.data.loader import DataOptions, inputs_of, open_loader
        from qdqtool.graph.io import open_model

        how = _preprocess_of(plain)
        loader = open_loader(data, inputs_of(open_model(plain).proto.graph), DataOptions(preprocess=how))
        name = loader.inputs[0].name
        values = np.concatenate([batch[name] for batch in loader])
        np.savez(output.with_suffix(".npz"), **{name: change(values).astype(np.float32)})
        words_ = words or ("--method", "mse")
        tool("insert", plain, "--data", output.with_suffix(".npz"), "--keep-float", "0", *words_, "-o", output)
        return plain

    return broken


def _preprocess_of(plain: Path) -> str | None:
    subject = SUBJECTS.get(plain.stem)
    return None if subject is None else subject.preprocess


def _with_outlier(values: Any) -> Any:
    """One sample that is four hundred times as large."""
    values = values.copy()
    values[0] *= 400
    return values


def _darkest(values: Any) -> Any:
    """The image whose brightest pixel is the least bright."""
    return values[[values.reshape(len(values), -1).max(axis=1).argmin()]]


def with_scale(factor: float) -> Callable[[Path, Path, Path], Path]:
    """The scale of one activation in the middle multiplied."""

    def broken(plain: Path, data: Path, output: Path) -> Path:
        import numpy as np
        import onnx

        how = _preprocess_of(plain)
        words = ["--preprocess", how] if how else []
        tool("insert", plain, "--data", data, *words, "--keep-float", "0", "-o", output)
        model = onnx.load(output)
        found = {one.name: one for one in model.graph.initializer}
        scales = [
            node.input[1]
            for node in model.graph.node
            if node.op_type == "QuantizeLinear" and node.input[0] not in found
        ]
        for name in {scales[len(scales) // 2]}:
            value = onnx.numpy_helper.to_array(found[name])
            found[name].CopyFrom(onnx.numpy_helper.from_array(np.asarray(value * factor, np.float32), name))
        del model.metadata_props[:]
        onnx.save(model, output)
        return plain

    return broken


def with_bad_channel(plain: Path, data: Path, output: Path) -> Path:
    """One channel inside each residual block fifty times larger; the function in float stays."""
    import onnx

    model = onnx.load(plain)
    found = {one.name: one for one in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    for relu in (node for node in model.graph.node if node.op_type == "Relu"):
        first, readers = makers[relu.input[0]], [node for node in model.graph.node if relu.output[0] in node.input]
        if first.op_type == "Conv" and [one.op_type for one in readers] == ["Conv"]:
            for name in first.input[1:]:
                _scale(found[name], (0,), 50.0)
            _scale(found[readers[0].input[1]], (slice(None), 0), 1 / 50.0)
    changed = output.with_name(f"fp32_{plain.name}")
    onnx.save(model, changed)
    how = _preprocess_of(plain)
    words = ["--preprocess", how] if how else []
    tool("insert", changed, "--data", data, *words, "--method", "mse", "--keep-float", "0", "-o", output)
    return changed


def with_int8_decode(plain: Path, data: Path, output: Path) -> Path:
    """Pairs on every tensor between the box heads and the boxes, as tools place them that know no heads."""
    import numpy as np
    import onnx

    from qdqtool.data.loader import DataOptions, inputs_of, open_loader
    from qdqtool.graph.io import open_model
    from qdqtool.runtime.activations import ObservableModel, OrtActivations

    how = _preprocess_of(plain)
    tool("insert", plain, "--data", data, "--preprocess", str(how), "--float-heads", "none", "-o", output)
    opened = open_model(plain)
    decode = _computed_from(opened.proto.graph, "boxes")
    observable = ObservableModel(opened)
    activations = OrtActivations.of(observable, observable.chosen(decode))
    amax = dict.fromkeys(decode, 0.0)
    for batch in open_loader(data, inputs_of(opened.proto.graph), DataOptions(preprocess=how)):
        for name, values in activations.run(batch):
            amax[name] = max(amax[name], float(np.abs(values).max()))
    model = onnx.load(output)
    graph = model.graph
    graph.initializer.append(onnx.numpy_helper.from_array(np.int8(0).reshape(()), "decode_zero"))
    for name in decode:
        place = next(index for index, node in enumerate(graph.node) if name in node.input)
        for node in graph.node[place:]:
            node.input[:] = [f"{name}_back" if one == name else one for one in node.input]
        scale = onnx.numpy_helper.from_array(np.float32(amax[name] / 127).reshape(()), f"{name}_step")
        graph.initializer.append(scale)
        for op, source, made in (("DequantizeLinear", "codes", "back"), ("QuantizeLinear", "", "codes")):
            read = [f"{name}_{source}" if source else name, scale.name, "decode_zero"]
            graph.node.insert(place, onnx.helper.make_node(op, read, [f"{name}_{made}"], name=f"{name}_{made}"))
    del model.metadata_props[:]
    onnx.save(model, output)
    return plain


def _computed_from(graph: onnx.GraphProto, output: str) -> tuple[str, ...]:
    """The tensors that arithmetic alone leads from to an output."""
    makers = {name: node for node in graph.node if node.op_type != "Constant" for name in node.output}
    waiting, found = [output], dict[str, None]()
    while waiting:
        node = makers[waiting.pop()]
        if node.op_type in ("Add", "Concat", "Div", "Exp", "Mul", "Slice", "Sub"):
            read = [name for name in node.input if name in makers]
            found |= dict.fromkeys(read)
            waiting += read
    return tuple(found)


def _scale(tensor: onnx.TensorProto, where: tuple[Any, ...], factor: float) -> None:
    from onnx import numpy_helper

    values = numpy_helper.to_array(tensor).copy()
    values[where] *= factor
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def foreign(name: str) -> Callable[[Path, Path, Path], Path]:
    """A model of another tool, as it is."""

    def broken(plain: Path, data: Path, output: Path) -> Path:
        output.write_bytes((plain.parents[1] / "qdq" / f"{name}.onnx").read_bytes())
        return plain

    return broken


MOBILENET, RESNET8, MNIST = "mobilenetv1_025_128", "mlperf_resnet8_fp32", "mnist8"
FACES = "ultraface_rfb320"
CASES = (
    Broken(
        "per-tensor weights",
        ("per-tensor weights",),
        MOBILENET,
        inserted("--weights", "per-tensor", "--method", "mse", "--preprocess", SUBJECTS[MOBILENET].preprocess),
    ),
    Broken(
        "method max, one outlier",
        ("outliers", "preprocessing", "dead tensor"),
        MNIST,
        calibrated_on(_with_outlier, "--method", "max"),
    ),
    Broken("wrong preprocessing", ("preprocessing",), RESNET8, calibrated_on(lambda values: values / 255)),
    Broken("heads and decoding of boxes in INT8", ("head in INT8",), FACES, with_int8_decode, 50),
    Broken("one bad channel in each block", ("few channels",), "cifar_resnet20", with_bad_channel),
    Broken(
        "the tail of SiLU cut off",
        ("saturated tensor", "calibration data", "SiLU or depthwise"),
        "tiny_classifier",
        inserted("--method", "percentile=95"),
    ),
    Broken(
        "one dark image",
        ("calibration data", "saturated tensor"),
        RESNET8,
        calibrated_on(_darkest, "--method", "max"),
    ),
    Broken(
        "zero points, another tool",
        ("zero points",),
        "cifar_resnet32_bn",
        foreign("gen_resnet32_ort_u8u8_pt_minmax"),
    ),
    Broken(
        "entropy on depthwise",
        ("SiLU or depthwise", "calibration data", "saturated tensor"),
        MOBILENET,
        inserted("--method", "entropy", "--preprocess", SUBJECTS[MOBILENET].preprocess),
    ),
    Broken("one scale far too small", ("saturated tensor",), "cifar_resnet20", with_scale(1 / 32)),
    Broken("one scale far too large", ("outliers", "dead tensor"), MNIST, with_scale(256.0)),
    Broken(
        "BGR four times as large, weights per tensor",
        ("per-tensor weights", "preprocessing"),
        "cifar_resnet20",
        calibrated_on(lambda values: values[:, ::-1] * 4, "--weights", "per-tensor"),
    ),
)


# ---------------------------------------------------------------- images and judgment


def images_of(case: Broken, corpus: Path, work: Path) -> Images:
    """The images of a model in two parts: to improve by, and others."""
    import numpy as np

    if case.model == "tiny_classifier":
        return Images(MODELS / "digits8_calib.npz", MODELS / "digits8_test.npz", None, None, None)
    subject = SUBJECTS[case.model]
    source = corpus / "datasets" / subject.data[1]
    if source.suffix == ".npz":
        whole = np.load(source)
        rows = np.arange(len(whole["x"]))  # in the order of classes
        picked = np.isin(rows, np.arange(case.used) * len(rows) // case.used)
        for name, part in (("used", picked), ("others", ~picked)):
            np.savez(work / f"{name}.npz", x=whole["x"][part], y=whole["y"][part])
        return Images(work / "used.npz", work / "others.npz", None, subject.preprocess, None)
    files = sorted(source.iterdir())
    step = len(files) / case.used
    used = {files[int(number * step)] for number in range(case.used)}
    for file in files:
        folder = work / ("used" if file in used else "others")
        folder.mkdir(exist_ok=True)
        (folder / file.name).symlink_to(file)
    labels = subject.data[2] if subject.data[2] == "filename" else str(corpus / "datasets" / str(subject.data[2]))
    names = FACE_NAMES if subject.data[3] == FACE_NAMES else subject.data[3]
    return Images(work / "used", work / "others", labels, subject.preprocess, names)


def figures_of(
    plain: Path, models: Mapping[str, Path], images: Images
) -> tuple[ResampledFigure, dict[str, ResampledFigure]]:
    """What FP32 and each model give on the other images."""
    from qdqtool.data.loader import DataOptions
    from qdqtool.evaluation.coco_names import model_names
    from qdqtool.evaluation.tasks import TaskOptions
    from qdqtool.precision.rounded import open_to_run
    from qdqtool.verbs.target_model import target_model
    from qdqtool.workflows.judge import Judge

    options = TaskOptions(images.labels, names=model_names(images.names))
    judge = Judge(
        open_to_run(plain), (images.others, DataOptions(preprocess=images.preprocess)), options, lambda text: None
    )
    return judge.reference, {name: judge.figure(target_model(path)) for name, path in models.items()}


def row_of(case: Broken, corpus: Path, effort: str) -> dict[str, Any]:
    """One broken model, improved and held against commands by hand."""
    from qdqtool.evaluation.metrics import loss_between

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        images = images_of(case, corpus, work)
        original = (MODELS if case.model == "tiny_classifier" else corpus / "models") / f"{case.model}.onnx"
        broken = work / "broken.onnx"
        plain = case.break_(original, images.used, broken)
        models, seconds, facts = {"as given": broken}, {}, {}
        for bound in (LOOSE, TIGHT):
            out = models[f"improve {bound:g}"] = work / f"improved_{bound:g}.onnx"
            words = ("improve", broken, "--source", plain, *images.words(), *images.judged(), "--max-loss", str(bound))
            report = work / f"{bound:g}.json"
            seconds[bound] = _improve((*words, "--effort", effort, "-o", out, "--json"), report)
            facts[bound] = json.loads(report.read_text())
        for name, more in BY_HAND.items():
            models[name] = work / f"{name.replace(' ', '_')}.onnx"
            tool("insert", plain, *images.words(), *more, "-o", models[name], fails=True)
        reference, found = figures_of(plain, models, images)
        lost = {name: loss_between(reference, one) for name, one in found.items()}
        best = min(BY_HAND, key=lambda name: lost[name].value)
        over = loss_between(found[best], found[f"improve {TIGHT:g}"])
        causes = (facts[TIGHT]["causes"] or {"causes": []})["causes"]
        named = causes[0]["name"] if causes else "none"
        looser = loss_between(found[f"improve {TIGHT:g}"], found[f"improve {LOOSE:g}"])
        return {
            "broken": case.named,
            "cause": named,
            "right": named in case.causes,
            "losses": {name: _facts(one) for name, one in lost.items()},
            "kept": facts[TIGHT]["kept"],
            "best by hand": best,
            "over the best": _facts(over),
            "looser less tighter": _facts(looser),
            "seconds": [*seconds.values()],
        }


def _improve(words: Sequence[str | Path], report: Path) -> float:
    script = "import sys; from qdqtool.cli.main import main; sys.stdout = open(sys.argv[1], 'w')"
    done = measured([sys.executable, "-c", f"{script}; sys.exit(main(sys.argv[2:]))", report, *words, "-q"])
    if done.code not in (0, 1):
        raise SystemExit(f"{' '.join(map(str, words))}: {done.tail}")
    return done.cpu_seconds


def _facts(one: Figure) -> dict[str, float]:
    return {"value": one.value, "low": one.interval.low, "high": one.interval.high}


def _text(one: Mapping[str, float]) -> tuple[str, str]:
    return f"{one['value']:.4f}", f"{one['low']:.4f} to {one['high']:.4f}"


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    lost = row["losses"]
    loose, tight = lost[f"improve {LOOSE:g}"], lost[f"improve {TIGHT:g}"]
    bounds = f"{loose['value']:.4f}, {tight['value']:.4f}"
    seconds = ", ".join(f"{one:.0f}" for one in row["seconds"])
    cause = row["cause"] + ("" if row["right"] else " (wrong)")
    best = row["best by hand"]
    return (
        row["broken"], cause, _text(lost["as given"])[0], *_text(tight), row["kept"], best, _text(lost[best])[0],
        *_text(row["over the best"]), bounds, seconds,
    )  # fmt: skip


def main() -> int:
    """Print the table; 1 where `improve` is surely worse than a command by hand, or a looser bound than a tighter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, default=SHARED / "corpus")
    parser.add_argument("--effort", default="default")
    parser.add_argument("--only", help="words of what is wrong, separated by commas")
    parser.add_argument("--json", type=Path, help="rows that are measured; those that it has are not measured again")
    parser.add_argument("--write", type=Path, help="a page with the two comments, between which the table is put")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else [""]
    done = json.loads(args.json.read_text()) if args.json and args.json.is_file() else {}
    for case in CASES:
        if case.named not in done and any(word in case.what for word in wanted):
            done[case.named] = row_of(case, args.corpus, args.effort)
            print("  ".join(cells(done[case.named])), file=sys.stderr, flush=True)
            if args.json:
                args.json.write_text(json.dumps(done, indent=1) + "\n")
    rows = [done[case.named] for case in CASES if case.named in done]
    print(table(HEAD, [cells(row) for row in rows]))
    right = sum(row["right"] for row in rows)
    worse = {
        key: [row for row in rows if _is_surely_worse(row[key])] for key in ("over the best", "looser less tighter")
    }
    said = (
        f"The cause is named first in {right} of {len(rows)}. By paired intervals on the other images, `improve` loses "
        f"more than the best by hand in {len(worse['over the best'])}, and the looser bound more than the tighter in "
        f"{len(worse['looser less tighter'])}."
    )
    print(said)
    if args.write:
        lines = [f"| {' | '.join(one)} |" for one in (HEAD, ["---"] * len(HEAD), *map(cells, rows))]
        rewrite(args.write, "improve_broken.py", [said, "", *lines])
    return 1 if any(worse.values()) else 0


def _is_surely_worse(one: Mapping[str, float]) -> bool:
    """Whether so much more is lost by all of the interval, and by more than a single image."""
    return one["low"] > 0 and one["value"] > _FEW


if __name__ == "__main__":
    sys.exit(main())
