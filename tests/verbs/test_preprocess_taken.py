# SPDX-License-Identifier: Apache-2.0
"""Verbs that run a calibrated model preprocess images as its calibration did, and refuse what feeds other values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtool import CalibrationOptions, InsertOptions, PeelOptions, PtqOptions, insert, peel, ptq
from qdqtool.data.loader import DataOptions
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import TAKEN
from qdqtool.metadata import store_table, stored_table
from tests.graphs import model_of

Image = pytest.importorskip("PIL.Image", reason="Pillow reads the images")

NET = """net (float[N,3,8,8] x) => (float[N,4] y) <float[4,3,3,3] w, float[4,4,3,3] w2>
{
 c = Conv<pads=[1,1,1,1]>(x, w)
 r = Relu(c)
 c2 = Conv<pads=[1,1,1,1]>(r, w2)
 r2 = Relu(c2)
 p = GlobalAveragePool(r2)
 y = Flatten(p)
}"""
MADE_WITH = "color=rgb,scale=1/255"
IMAGES = 12
FILES = ("m.onnx", "q.onnx", "m.cache", "images", "p.onnx", "p.cache")


@dataclass(frozen=True)
class PreprocessRun:
    """A plain model, its Q/DQ form, its cache, the images that calibrated it, and what `peel` made of the Q/DQ form."""

    plain: Path
    qdq: Path
    cache: Path
    images: Path
    peeled: Path
    peeled_cache: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> PreprocessRun:
    folder = tmp_path_factory.mktemp("preprocess")
    (folder / "images").mkdir()
    random = np.random.default_rng(0)
    for index in range(IMAGES):
        pixels = random.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{index:02}.png")
    found = PreprocessRun(*(folder / name for name in FILES))
    onnx.save(model_of(NET), found.plain)
    asked = InsertOptions(data_options=DataOptions(preprocess=MADE_WITH), keep_float=0)
    insert(found.plain, data=found.images, options=asked, output=found.qdq)
    ptq(found.plain, found.images, PtqOptions("8.5.2", data_options=asked.data_options), cache=found.cache)
    peel(found.qdq, PeelOptions("8.5.2"), output=found.peeled, cache=found.peeled_cache)
    return found


def by_compare(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.verbs.compare import compare

    return compare(made.plain, made.qdq, made.images, None, options)


def by_compare_backwards(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.verbs.compare import compare

    return compare(made.qdq, made.plain, made.images, None, options)


def by_simulate(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.verbs.simulate import simulate

    return simulate(made.qdq, made.images, None, options, output=out / "y.npz")


def by_simulate_cache(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.verbs.simulate import simulate
    from qdqtool.verbs.simulate_options import SimulateOptions

    return simulate(made.plain, made.images, SimulateOptions(cache=made.cache), options, output=out / "y.npz")


def by_simulate_peeled(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.verbs.simulate import simulate
    from qdqtool.verbs.simulate_options import SimulateOptions

    return simulate(made.peeled, made.images, SimulateOptions(cache=made.peeled_cache), options, output=out / "y.npz")


def by_report(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.workflows.report import report
    from qdqtool.workflows.report_options import ReportOptions

    asked = ReportOptions(data=made.images, data_options=options, parser=False, progress=False)
    return report(made.qdq, out / "r.html", asked)


def by_improve(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool import improve
    from qdqtool.workflows.improve_options import ImproveOptions

    asked = ImproveOptions(max_loss=1.0, data_options=options, progress=False, effort="fast")
    return improve(made.qdq, made.images, out / "i.onnx", asked)


def by_finetune(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.training.options import RunOptions
    from qdqtool.verbs.finetune import FinetuneOptions, finetune

    asked = FinetuneOptions(run=RunOptions(steps=1, progress=False))
    return finetune(made.qdq, made.images, asked, options, output=out / "f.onnx")


def by_peel(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    asked = PeelOptions("8.5.2", target="dla", data=made.images, data_options=options)
    return peel(without_table(made.qdq), asked, output=out / "p.onnx", cache=out / "p.cache")


def by_lint(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.verbs.lint import lint
    from qdqtool.verbs.lint_options import LintOptions

    return lint(made.qdq, LintOptions(data_options=options), data=made.images)


def by_prune(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool.verbs.prune import prune
    from qdqtool.verbs.prune_options import PruneOptions

    return prune(made.qdq, made.images, PruneOptions(ratio=0.5, data_options=options, progress=False), out / "p.onnx")


def by_insert(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    return insert(made.qdq, data=made.images, options=InsertOptions(data_options=options), output=out / "q.onnx")


def by_graft(made: PreprocessRun, options: DataOptions, out: Path) -> Any:
    from qdqtool import GraftOptions, graft

    return graft(
        made.plain, made.cache, GraftOptions(data_options=options, rest="fp16"), data=made.images, output=out / "g.onnx"
    )


VERBS: list[Callable[[PreprocessRun, DataOptions, Path], Any]] = [
    by_compare,
    by_compare_backwards,
    by_simulate,
    by_simulate_cache,
    by_simulate_peeled,
    by_report,
    by_improve,
    by_finetune,
    by_peel,
    by_lint,
    by_prune,
    by_insert,
    by_graft,
]


def proto_of_exporter(made: PreprocessRun) -> onnx.ModelProto:
    """The plain model with the metadata that an exporter leaves."""
    proto = onnx.load(made.plain)
    for key in ("stride", "names"):
        proto.metadata_props.add(key=key, value="1")
    return proto


def without_table(path: Path) -> onnx.ModelProto:
    """The Q/DQ model without the scales of the tensors between the pairs, whose table still says the data."""
    proto = onnx.load(path)
    table = stored_table(proto)
    assert table is not None
    store_table(proto, replace(table, scales={}))
    return proto


@pytest.mark.parametrize("verb", VERBS)
def test_it_is_taken_and_said(verb: Any, made: PreprocessRun, tmp_path: Path) -> None:
    found = verb(made, DataOptions(), tmp_path)
    said = [note for note in found.notes if note.startswith(TAKEN)]
    assert len(said) == 1 and f"color=rgb,scale={1 / 255}," in said[0] and "calibrat" in said[0], found.notes
    assert not any(
        TAKEN in note or "--preprocess " in note
        for note in verb(made, DataOptions(preprocess=MADE_WITH), tmp_path).notes
    )


def test_lint_names_other_values_as_a_cause(made: PreprocessRun, tmp_path: Path) -> None:
    found = by_lint(made, DataOptions(preprocess="imagenet"), tmp_path)
    assert found.causes is not None and found.causes.loss is not None
    assert "--preprocess has values from -2.12 to 2.25, its calibration data had values from 0 to 1" in found.notes


@pytest.mark.parametrize("verb", [one for one in VERBS if one is not by_lint])
def test_other_values_are_refused_and_nothing_is_written(verb: Any, made: PreprocessRun, tmp_path: Path) -> None:
    with pytest.raises(QdqError, match=r"had values from 0 to 1, --preprocess has values from -2\.12 to 2\.25"):
        verb(made, DataOptions(preprocess="imagenet"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def by_insert_plain(model: onnx.ModelProto, data: Path, options: DataOptions) -> Any:
    return insert(model, data=data, options=InsertOptions(data_options=options, keep_float=0))


def by_requantize(model: onnx.ModelProto, data: Path, options: DataOptions) -> Any:
    asked = InsertOptions(data_options=options, keep_float=0, requantize=True)
    return insert(insert(model, data=data, options=replace(asked, requantize=False)).model, data=data, options=asked)


def by_ptq(model: onnx.ModelProto, data: Path, options: DataOptions) -> Any:
    return ptq(model, data, PtqOptions("8.5.2", data_options=options))


def by_condition(model: onnx.ModelProto, data: Path, options: DataOptions) -> Any:
    from qdqtool.verbs.condition import condition
    from qdqtool.verbs.condition_options import ConditionOptions

    return condition(model, data, ConditionOptions(data_options=options)).done


def by_amp(model: onnx.ModelProto, data: Path, options: DataOptions) -> Any:
    from qdqtool.verbs.amp import amp
    from qdqtool.verbs.amp_options import AmpOptions

    return amp(model, data, options=AmpOptions(data_options=options))


def by_sensitivity(model: onnx.ModelProto, data: Path, options: DataOptions) -> Any:
    from types import SimpleNamespace

    from qdqtool.verbs.sensitivity import sensitivity
    from qdqtool.verbs.sensitivity_options import SensitivityOptions

    said: list[str] = []
    sensitivity(model, data, SensitivityOptions(data_options=options, say=said.append))
    return SimpleNamespace(notes=said)


@pytest.mark.parametrize("verb", [by_insert_plain, by_requantize, by_ptq, by_condition, by_amp, by_sensitivity])
def test_what_makes_scales_anew_takes_what_the_exporter_says_and_may_be_told_otherwise(
    verb: Any, made: PreprocessRun
) -> None:
    proto = proto_of_exporter(made)
    taken = [note for note in verb(proto, made.images, DataOptions()).notes if note.startswith(TAKEN)]
    assert (len(taken) == 1 and "exporter" in taken[0]) or "calibration data" in taken[0]
    told = verb(proto, made.images, DataOptions(preprocess="imagenet")).notes
    differs = "--preprocess has values from -2.12 to 2.25, its exporter's metadata (ultralytics) had values from 0 to 1"
    assert differs in told or verb is by_requantize  # which was calibrated as it is told here
    assert not any(note.startswith(TAKEN) for note in told)


def test_calibrate_and_its_shards_take_it(made: PreprocessRun) -> None:
    from qdqtool import calibrate
    from qdqtool.distributed.shards import calibrate_shard, merge_shards

    proto = proto_of_exporter(made)
    given = DataOptions(preprocess="yolov8")
    how = CalibrationOptions("mse")
    taken, asked = calibrate(proto, made.images, how), calibrate(proto, made.images, how, given)
    parts = merge_shards(calibrate_shard(proto, made.images, (index, 2), how) for index in range(2))
    bits = [{name: one.bits.tobytes() for name, one in table.scales.items()} for table in (taken, asked, parts)]
    assert bits[0] == bits[1] == bits[2]
    assert taken.provenance.preprocess == asked.provenance.preprocess


@pytest.mark.parametrize("verb", ["peel", "ptq", "calibrate", "prune"])
def test_the_command_line_notes_it(
    verb: str, made: PreprocessRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from qdqtool.cli.main import main

    onnx.save(proto_of_exporter(made), tmp_path / "m.onnx")
    plain, cache, output = tmp_path / "m.onnx", tmp_path / "c", ("-o", tmp_path / "o")
    words = {
        "peel": (made.qdq, "--target", "dla", "--trt-version", "8502", "--cache", cache, *output),
        "ptq": (plain, "--target", "gpu", "--trt-version", "8502", "--cache", cache),
        "calibrate": (plain, *output),
        "prune": (made.qdq, "--ratio", "0.5", *output),
    }[verb]
    assert main([verb, *map(str, words), "--data", str(made.images)]) == 0
    (note,) = [line for line in capfd.readouterr().err.splitlines() if "images are preprocessed as" in line]
    assert note.startswith("qdqtool: note:") and "color=rgb" in note


def test_peel_fills_with_the_values_that_calibrated(made: PreprocessRun, tmp_path: Path) -> None:
    taken, given = (by_peel(made, DataOptions(preprocess=one), tmp_path) for one in (None, MADE_WITH))
    assert taken.cache == given.cache
    assert len(taken.cache.entries) > len(onnx.load(made.plain).graph.node)


def test_the_figures_are_those_of_the_preprocessing_that_is_taken(made: PreprocessRun, tmp_path: Path) -> None:
    taken, given = (by_compare(made, DataOptions(preprocess=one), tmp_path) for one in (None, MADE_WITH))
    assert [one.sqnr for one in taken.outputs] == [one.sqnr for one in given.outputs]


def test_pictures_are_drawn_of_it(tmp_path: Path) -> None:
    from qdqtool.verbs.compare_pictures import draw_differences
    from tests.detector_model import write_detector, write_images

    model, images = write_detector(tmp_path / "m.onnx"), write_images(tmp_path / "images", 255)
    proto = onnx.load(model)
    for key in ("stride", "names"):  # what an exporter leaves
        proto.metadata_props.add(key=key, value="1")
    with pytest.raises(QdqError, match="had color=rgb, --preprocess has color=bgr"):
        draw_differences((proto, proto), images, tmp_path / "out", None, DataOptions(preprocess="yolox"))
    assert not (tmp_path / "out").exists()
