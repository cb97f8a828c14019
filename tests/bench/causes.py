# SPDX-License-Identifier: Apache-2.0
"""Which causes `lint --data` names of healthy INT8 models, and of the same broken in one way each.

`python tests/bench/causes.py [--models M,M] [--ways W,W] [--work DIR]` over the labeled models of the shared corpus.
A healthy model is what `insert` makes by default of the calibration images; it is diagnosed on those, or with
`--held-out` on the images of the evaluation. Q/DQ models are kept in DIR.

`python tests/bench/causes.py --promises` breaks eighteen models, which the rules of the diagnosis were not made by,
runs the commands that `lint` prints, and holds what they win, on images that neither had, against what was promised.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from accuracy_subjects import SUBJECTS, AccuracySubject
from cost import table
from pages import rewrite
from shared_material import SHARED

from qdqtool import CalibrationOptions, DataOptions, InsertOptions, LintOptions, PlanOptions, insert, lint
from qdqtool.data.loader import inputs_of, open_loader
from qdqtool.data.preprocess import Preprocess, parse_preprocess
from qdqtool.diagnosis.cause import Cause
from qdqtool.diagnosis.diagnose import DiagnosisOptions, diagnose
from qdqtool.graph.io import open_model
from qdqtool.measuring.auto_scales import pick_samples
from qdqtool.measuring.output_loss import OutputReference
from qdqtool.precision.rounded import open_to_run
from qdqtool.runtime.activations import ObservableModel

LIMIT = 32
_INT8 = InsertOptions(keep_float=0)
WAYS: dict[str, InsertOptions] = {
    "default": InsertOptions(),
    "everything INT8": _INT8,
    "per-tensor": replace(_INT8, plan=PlanOptions(weights="per-tensor")),
    "max": replace(_INT8, calibration=CalibrationOptions(method="max")),
    "percentile": replace(_INT8, calibration=CalibrationOptions(method="percentile=97")),
    "heads": replace(_INT8, plan=PlanOptions(float_heads="none")),
    "2 images": _INT8,
    "255 times": _INT8,
}
EXPECTED = {
    "per-tensor": "per-tensor weights",
    "max": "outliers",
    "percentile": "saturated tensor",
    "heads": "head in INT8",
    "2 images": "calibration data",
    "255 times": "preprocessing",
}
LOST = 0.05  # at the outputs, from which on a cause is to be found


def data_of(subject: AccuracySubject, work: Path, *, held_out: bool = False) -> Path:
    """Images to calibrate with, or those of the evaluation."""
    place = SHARED / "corpus/datasets" / subject.data[int(held_out)]
    if place.suffix != ".npz":
        return place
    part = "x" if held_out else "calib"
    with np.load(place) as arrays:
        np.save(work / f"{place.stem}.{part}.npy", arrays[part])
    return work / f"{place.stem}.{part}.npy"


def models(names: list[str], ways: list[str], work: Path) -> Iterator[tuple[AccuracySubject, str, Path]]:
    """Each subject in each way, made where it is not there."""
    for name in names:
        subject = SUBJECTS[name]
        for way in ways:
            made = work / f"{name}.{way.replace(' ', '-')}.onnx"
            if not made.is_file():
                spec = parse_preprocess(subject.preprocess)
                if way == "255 times":
                    spec = replace(spec, scale=spec.scale * 255)
                reading = DataOptions(preprocess=spec, limit=2 if way == "2 images" else LIMIT)
                options = replace(WAYS[way], data_options=reading, advise=False)
                insert(SHARED / f"corpus/models/{name}.onnx", data=data_of(subject, work), options=options, output=made)
            yield subject, way, made


# ---------------------------------------------------------------- promises


def remade(**options: object) -> Callable[[Path, AccuracySubject, Path], None]:
    """`insert` with other options."""

    def broken(plain: Path, subject: AccuracySubject, made: Path) -> None:
        reading = DataOptions(preprocess=subject.preprocess, limit=LIMIT)
        how = replace(_INT8, data_options=reading, **options)  # type: ignore[arg-type]
        insert(plain, data=data_of(subject, made.parent), options=how, output=made)

    return broken


def fed(
    change: Callable[[Preprocess], Preprocess], limit: int = LIMIT
) -> Callable[[Path, AccuracySubject, Path], None]:
    """`insert` on arrays that another preprocessing made; the file does not say so."""

    def broken(plain: Path, subject: AccuracySubject, made: Path) -> None:
        reading = DataOptions(preprocess=change(parse_preprocess(subject.preprocess)), limit=limit)
        loader = open_loader(data_of(subject, made.parent), inputs_of(open_model(plain).graph), reading)
        name = loader.inputs[0].name
        np.savez(made.with_suffix(".npz"), **{name: np.concatenate([batch[name] for batch in loader])})
        insert(plain, data=made.with_suffix(".npz"), options=_INT8, output=made)

    return broken


def old(plain: Path, subject: AccuracySubject, made: Path) -> None:
    """Ranges by entropy, that of the input too short, and no metadata: what a foreign file or an old cache may be."""
    _ENTROPY(plain, subject, made)

    def change(scales: list[onnx.TensorProto]) -> None:
        value = np.asarray(onnx.numpy_helper.to_array(scales[0]) * np.float32(0.4))
        scales[0].CopyFrom(onnx.numpy_helper.from_array(value, scales[0].name))

    _edited(made, made, change)


def scaled(factor: float) -> Callable[[Path, AccuracySubject, Path], None]:
    """One range in the middle multiplied, and no metadata."""

    def broken(plain: Path, subject: AccuracySubject, made: Path) -> None:
        remade()(plain, subject, made)

        def change(scales: list[onnx.TensorProto]) -> None:
            one = scales[len(scales) // 2]
            value = np.asarray(onnx.numpy_helper.to_array(one) * np.float32(factor))
            one.CopyFrom(onnx.numpy_helper.from_array(value, one.name))

        _edited(made, made, change)

    return broken


def _edited(model: Path, made: Path, change: Callable[[list[onnx.TensorProto]], None]) -> None:
    proto = onnx.load(model)
    held = {one.name: one for one in proto.graph.initializer}
    nodes = [one for one in proto.graph.node if one.op_type == "QuantizeLinear" and one.input[0] not in held]
    change([held[one.input[1]] for one in nodes])
    del proto.metadata_props[:]
    onnx.save(proto, made)


def foreign(plain: Path, subject: AccuracySubject, made: Path) -> None:
    """Onnxruntime's own quantizer: uint8 with zero points, per tensor, min and max."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            reading = DataOptions(preprocess=subject.preprocess, limit=LIMIT)
            loader = open_loader(data_of(subject, made.parent), inputs_of(open_model(plain).graph), reading)
            self.batches = iter(loader)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.batches, None)

    raised = onnx.version_converter.convert_version(onnx.load(plain), 13)
    onnx.save(raised, made.with_suffix(".13.onnx"))
    quantize_static(
        made.with_suffix(".13.onnx"),
        made,
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _times(factor: float) -> Callable[[Preprocess], Preprocess]:
    return lambda spec: replace(spec, scale=spec.scale * factor)


def _other_order(spec: Preprocess) -> Preprocess:
    return replace(spec, color="rgb" if spec.color == "bgr" else "bgr")


@dataclass(frozen=True)
class Promised:
    """A model broken in one way, and the names of causes that are right."""

    what: str
    model: str
    right: tuple[str, ...]
    break_: Callable[[Path, AccuracySubject, Path], None]


_CLIPPED = ("saturated tensor", "calibration data")
_ENTROPY = remade(calibration=CalibrationOptions(method="entropy"))
_PERCENTILE = remade(calibration=CalibrationOptions(method="percentile=95"))
_PER_TENSOR = remade(plan=PlanOptions(weights="per-tensor"))
_BOTH = remade(plan=PlanOptions(weights="per-tensor"), calibration=CalibrationOptions(method="entropy"))
_FED = ("preprocessing", "calibration data")
PROMISES = (
    Promised("dead from entropy", "mobilenetv1_025_128", _CLIPPED, _ENTROPY),
    Promised("dead from entropy, its input clipped, no metadata", "mobilenetv1_025_128", _CLIPPED, old),
    Promised("entropy", "yolox_nano_coco", (*_CLIPPED, "SiLU or depthwise", "few channels"), _ENTROPY),
    Promised("weights per tensor", "nanodet_m_320_coco", ("per-tensor weights",), _PER_TENSOR),
    Promised("weights per tensor", "mobilenetv1_025_128", ("per-tensor weights",), _PER_TENSOR),
    Promised("weights per tensor, entropy", "mobilenetv1_025_128", ("per-tensor weights",), _BOTH),
    Promised("values 255 times as large", "yunet_s_320", _FED[:1], fed(_times(255))),
    Promised("values 255 times too small", "mlperf_vww_fp32", _FED[:1], fed(_times(1 / 255))),
    Promised("no mean", "squeezenet11_fp32", _FED, fed(lambda one: replace(one, mean=(0.0,)))),
    Promised(
        "no mean and no deviation",
        "cifar_resnet20_convsc_bn",
        _FED,
        fed(lambda one: replace(one, mean=(0.0,), std=(1.0,))),
    ),
    Promised("another order of colors", "squeezenet11_fp32", _FED, fed(_other_order)),
    Promised("one range 64 times too small", "cifar_resnet32_bn", ("saturated tensor",), scaled(1 / 64)),
    Promised("one range 512 times too large", "winml_cifar_cnn", ("dead tensor", "outliers"), scaled(512.0)),
    Promised("heads in INT8", "nanodet_m_320_coco", ("head in INT8",), remade(plan=PlanOptions(float_heads="none"))),
    Promised("heads in INT8", "yunet_s_320", ("head in INT8",), remade(plan=PlanOptions(float_heads="none"))),
    Promised("percentile 95", "ultraface_slim320", _CLIPPED, _PERCENTILE),
    Promised("one image", "fastestdet_coco", ("calibration data",), fed(lambda one: one, limit=1)),
    Promised("uint8 with zero points", "winml_cifar_cnn", ("zero points",), foreign),
)  # fmt: skip
HEAD = (
    "broken",
    "first cause",
    "loss",
    "one change wins",
    "its command wins",
    "file wins",
    "loss, other images",
    "file wins there",
)


def row_of(one: Promised, work: Path) -> tuple[str, ...] | None:
    """A broken model, what `lint` says of it, and what its commands make of it; None where nothing is lost."""
    subject, plain = SUBJECTS[one.model], SHARED / f"corpus/models/{one.model}.onnx"
    made = work / f"{one.model}.{'-'.join(one.what.split())}.onnx"
    if not made.is_file():
        one.break_(plain, subject, made)
    data = data_of(subject, work, held_out=True)
    readings = [DataOptions(preprocess=subject.preprocess, part=part, limit=2 * LIMIT) for part in (":80", "80:")]
    found = lint(made, LintOptions(data_options=readings[0]), data=data).causes
    assert found is not None and found.loss is not None
    judges = [_reference(plain, data, reading) for reading in readings]
    given = [judge.loss(open_to_run(made)) for judge in judges]
    name = f"{one.what} ({one.model})"
    if not found.causes:
        return (name, "none", f"{found.loss:.3f}", "", "", "", f"{given[1]:.3f}", "")
    first = found.causes[0]
    words = ["--data", str(data), "--preprocess", subject.preprocess, "--part", ":80", "--limit", str(2 * LIMIT)]
    output = work / f"{made.stem}.mended.onnx"
    _run(first, made, output, words)
    wins = [loss - judge.loss(open_to_run(output)) for loss, judge in zip(given, judges, strict=True)]
    said = first.name + ("" if first.name in one.right else " (wrong)")
    promised = ["" if value is None else f"{value:.3f}" for value in (first.gain, first.brought)]
    return (name, said, f"{found.loss:.3f}", *promised, f"{wins[0]:.3f}", f"{given[1]:.3f}", f"{wins[1]:.3f}")


def _reference(plain: Path, data: Path, reading: DataOptions) -> OutputReference:
    observable = ObservableModel(open_model(plain))
    loader = open_loader(data, inputs_of(observable.model.graph), replace(reading, limit=None))
    return OutputReference.of(observable, pick_samples(loader, loader.inputs, LIMIT))


def _run(cause: Cause, model: Path, output: Path, words: Sequence[str]) -> None:
    for command in cause.commands(str(model), str(output), words):
        subprocess.run([sys.executable, "-m", "qdqtool", *command, "-q"], check=True)


def promises(work: Path, only: str, page: Path | None) -> int:
    """Print what was promised of each broken model, and what came of it."""
    rows = []
    for one in PROMISES:
        if only in f"{one.what} ({one.model})":
            rows.append(row_of(one, work))
            print(*rows[-1], sep="; ", flush=True)
    lost = [row for row in rows if float(row[2]) >= LOST]
    right = sum(row[1] != "none" and "(wrong)" not in row[1] for row in lost)
    said = f"Of {len(lost)} broken models that lose {LOST} or more, {right} have a right cause first."
    print(table(HEAD, rows), said, sep="\n")
    if page is not None:
        lines = [f"| {' | '.join(one)} |" for one in (HEAD, ["---"] * len(HEAD), *rows)]
        rewrite(page, "causes.py", [said, "", *lines])
    return 0


def main() -> int:
    """Print a line for each cause, and one for each model without."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--models", default=",".join(SUBJECTS), help="with commas")
    parser.add_argument("--ways", default="default", help=f"with commas: {', '.join(WAYS)}")
    parser.add_argument("--work", type=Path, help="where Q/DQ models are kept")
    parser.add_argument("--held-out", action="store_true", help="diagnose on the images of the evaluation")
    parser.add_argument("--promises", nargs="?", const="", metavar="WORDS", help="of broken models that these are in")
    parser.add_argument("--write", type=Path, help="with --promises: a page that the table is put into")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = args.work or Path(folder)
        work.mkdir(exist_ok=True)
        if args.promises is not None:
            return promises(work, args.promises, args.write)
        named = asked = 0
        for subject, way, made in models(args.models.split(","), args.ways.split(","), work):
            reading = DataOptions(preprocess=subject.preprocess, limit=LIMIT)
            since = time.process_time()
            data = data_of(subject, work, held_out=args.held_out)
            found = diagnose(open_model(made), data, DiagnosisOptions(data_options=reading))
            seconds = time.process_time() - since
            print(f"{subject.name}, {way}: loss {found.loss:.4f}, {seconds:.1f} s CPU", *found.notes, sep="; ")
            for one in found.causes:
                print(*(f"    {line}" for line in one.summary()), sep="\n")
            sys.stdout.flush()
            if way in EXPECTED and found.loss is not None and found.loss >= LOST:
                asked += 1
                named += bool(found.causes) and found.causes[0].name == EXPECTED[way]
        print(f"of {asked} models broken in one way that lose {LOST} or more, {named} have that cause first")
    return 0


if __name__ == "__main__":
    sys.exit(main())
