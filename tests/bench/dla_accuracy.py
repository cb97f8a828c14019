# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the DLA's INT8 as `simulate --target dla` computes it: whose scales, and what is done about products.

A script, not a test: see README.md here. Nothing of it is a measurement of TensorRT. Heavy libraries are imported in
the functions that use them (see cost.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost import apart, table
from faces import judge, prepare

if TYPE_CHECKING:
    import numpy as np

    from qdqtool.graph.view import GraphView

PROJECT = Path(__file__).resolve().parents[2]
VERSION = "8502"
# How the scales come about, and the method: placed for the GPU and filled; placed for the DLA; the cache alone.
# Then, how products of computed tensors (SiLU's Sigmoid and Mul) are treated.
METHODS = ("mse", "entropy", "auto")
SOURCES = (*(f"{way}/{method}" for way in ("filled", "inserted") for method in METHODS), "force-ptq/entropy")
PRODUCTS = ("untied", "tied", "fp16")
FACE = "ultraface_rfb320_raw"
ADAPTERS = {"fastestdet_coco": "FastestDet", "yolox_nano_coco": "YOLOX"}
# A rules file that ties the inputs of products, as those of sums are.
TIED = """schema = 1
extends = "dla"
[[shared_scale]]
name = "dla-product"
ops = ["Mul:computed"]
members = "inputs"
why = "For comparison."
see = "this script"
status = "guess"
"""


@dataclass(frozen=True)
class DlaBench:
    """Where one model lies, its calibration samples, and a folder to work in."""

    name: str
    shared: Path
    work: Path

    @property
    def plain(self) -> Path:
        return self.shared / f"corpus/models/{self.name}.onnx"

    @property
    def samples(self) -> Path:
        return self.work / ("forward/samples.npz" if self.name == FACE else "samples.npz")

    def prepare(self) -> None:
        """Calibration samples, and for the face detector the evaluation samples; no image is in both."""
        if self.name == FACE:
            apart(prepare, self.shared / "corpus/datasets/ultraface_imgs/imgs", self.work)
        else:
            apart(write_samples, self.shared / "corpus", ADAPTERS[self.name], self.plain, self.samples)

    def judged(self, model: Path) -> dict[str, float]:
        """SQNR and boxes against FP32 for the face detector, mAP on labeled images for the others."""
        if self.name == FACE:
            found = apart(judge, model, self.plain, self.work / "evaluation.npy")
            figures = ("scores_db", "boxes_db", "recall", "precision", "mean_iou")
            return {name: round(getattr(found, name), 3) for name in figures}
        answer = self.work / "answer.json"
        script = self.shared / "corpus/scripts/bench.py"
        command = [sys.executable, script, "--root", self.shared / "corpus", self.name, "--model", model]
        subprocess.run([*map(str, command), "--json", str(answer)], check=True, stdout=subprocess.DEVNULL)
        return dict(json.loads(answer.read_text())[self.name])


def write_samples(corpus: Path, adapter: str, model: Path, out: Path) -> None:
    """The calibration images as the detector's own preprocessing makes them."""
    sys.path.insert(0, str(corpus / "scripts"))
    import cv2
    import detlib
    import numpy as np
    import onnx

    prepared = getattr(detlib, adapter)()
    files = sorted((corpus / "datasets/coco_calib48/images").iterdir())
    samples = np.concatenate([prepared.pre(cv2.imread(str(file)))[0] for file in files])
    np.savez(out, **{onnx.load(str(model)).graph.input[0].name: samples})


# ---------------------------------------------------------------- scales, and the graph that they make


def write_simulated(plain: Path, samples: Path, source: str, products: str, out: Path) -> dict[str, Any]:
    """Write the graph that computes in float what the DLA computes with the scales of one way; say what is in it."""
    import numpy as np
    import onnx

    import qdqtool
    from qdqtool.graph.io import open_model
    from qdqtool.graph.model_bytes import whole_model
    from qdqtool.graph.view import GraphView
    from qdqtool.match.shared_scales import take_shared_scales
    from qdqtool.observers.options import CalibrationOptions
    from qdqtool.rulebook import load_rules
    from qdqtool.trtversion import TrtVersion
    from qdqtool.verbs.simulate import _implicit

    version = TrtVersion.parse(VERSION)
    way, _, method = source.partition("/")
    how = CalibrationOptions(method=method)
    plan = qdqtool.PlanOptions(target="dla" if way == "inserted" else "gpu", trt_version=version)
    asked = qdqtool.InsertOptions(plan=plan, calibration=how, keep_float=0)
    placed = qdqtool.insert(plain, data=samples, options=asked, output=out.with_name("q.onnx"))
    options = qdqtool.PeelOptions(version, "dla", source=plain, shared_scales=products != "tied", emit=("json",))
    if way == "force-ptq":
        options = replace(options, force_ptq=True, data=samples, calibration=how)
    places = {"output": out.with_name("clean.onnx"), "cache": out.with_name("c.cache")}
    peeled = qdqtool.peel(placed.model, options, **places)
    opened = open_model(plain)
    view = GraphView(opened.proto.graph, opened.folder)
    scales = dict(peeled.table.scales)
    if products == "tied":
        own = out.with_name("tied.toml")
        own.write_text(TIED)
        scales, _ = take_shared_scales(view, load_rules("dla", version, own), scales)
    entries = {name: np.float32(scale.bits) for name, scale in scales.items()}
    kept: Collection[str] = ()
    if products == "fp16":
        reported = json.loads(Path(str(peeled.emitted["json"])).read_text())["float_tensors"]
        kept = [name for name in reported if name in view.producers]
        entries = without(view, entries, kept)
    onnx.save(whole_model(_implicit(opened, entries, "dla", version, tuple(kept)).model), str(out))
    return {"origins": dict(sorted(peeled.origins.items())), "int8": len(entries)}


def without(view: GraphView, entries: Mapping[str, np.float32], reported: Collection[str]) -> dict[str, np.float32]:
    """The scales of tensors that some INT8 layer reads: what goes from FP16 to FP16, or out, is not rounded."""
    floats = {view.producers[name].key for name in reported}
    return {
        name: scale
        for name, scale in entries.items()
        if any(use.node.key not in floats for use in view.consumers(name))
        or (not view.consumers(name) and view.producers[name].key not in floats)
    }


# ---------------------------------------------------------------- the table


def rows(bench: DlaBench, sources: Sequence[str], products: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row for FP32, then one for each way."""
    bench.prepare()
    yield {"model": bench.name, "scales": "FP32", "products": "", **bench.judged(bench.plain)}
    for source in sources:
        for how in products:
            print(f"{bench.name}: {source}, products {how} ...", file=sys.stderr)
            out = bench.work / "simulated.onnx"
            facts = apart(write_simulated, bench.plain, bench.samples, source, how, out)
            yield {"model": bench.name, "scales": source, "products": how, **bench.judged(out), **facts}


def shown(row: Mapping[str, Any]) -> list[str]:
    """A row as cells: figures in one, origins in the last."""
    named = {"model", "scales", "products", "origins", "int8"}
    figures = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in named)
    origins = ", ".join(f"{count} {origin}" for origin, count in row.get("origins", {}).items())
    return [row["model"], row["scales"], row["products"], figures, str(row.get("int8", "")), origins]


def main(argv: Sequence[str]) -> int:
    """Run the bench and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=f"{FACE},fastestdet_coco,yolox_nano_coco", help="with commas")
    parser.add_argument("--sources", default=",".join(SOURCES), help="of the scales, with commas")
    parser.add_argument("--products", default=",".join(PRODUCTS), help="what is done about them, with commas")
    parser.add_argument("--json", type=Path, help="add each row to this file as it comes, a line each")
    args = parser.parse_args(argv)
    shared = Path(os.environ.get("QDQTOOL_SHARED", PROJECT.parent / "shared"))
    if not (shared / "corpus/models").is_dir():
        print(f"dla_accuracy: {shared / 'corpus/models'} is absent; set QDQTOOL_SHARED", file=sys.stderr)
        return 2
    every = []
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            for row in rows(DlaBench(name, shared, Path(folder)), args.sources.split(","), args.products.split(",")):
                every.append(shown(row))
                if args.json:
                    with args.json.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    print(table(["model", "scales", "products", "figures", "INT8 tensors", "origins"], every))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
