# SPDX-License-Identifier: Apache-2.0
"""The unharmed files that mutants are made from: families of files that go together, by their role."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tests.detector_model import write_detector, write_images
from tests.fuzz.fork_server import FuzzRun, FuzzTask, Limits, run_all
from tests.fuzz.seed_graphs import CODED, small_graphs, wide_graph
from tests.graphs import SMALL_NET, model_of

PROJECT = Path(__file__).resolve().parents[2]
LARGEST = 200_000  # bytes of a seed from the shared folder: larger ones make runs slow and show nothing else
_LOG_LINES = 60
_PARTED = 6  # samples, so that each of three parts has some
_MOST_VALUES = 200_000  # of one sample
_WEIGHTLESS = "light_"  # models whose weights are computed at load time: hundreds of MB in a few kB


@dataclass(frozen=True)
class Family:
    """Files that belong together: role -> file or folder. A sidecar beside a file comes with it."""

    name: str
    files: Mapping[str, Path]


def families(place: Path, shared: Path | None) -> list[Family]:
    """Make all seeds below a folder; deterministic for one version of the project and one shared folder."""
    small = small_family(place / "small", model_of(SMALL_NET, 13))
    made = [small, _classifier(place / "classifier"), detector_family(place / "detector")]
    made += [small_family(place / name, model, name) for name, model in small_graphs()]
    made += [_external(place / "external"), _wide(place / "wide")]
    if shared:
        made += list(_corpus(place / "corpus", shared / "corpus"))
        made += list(_caches(small, shared / "trt" / "caches"))
        made += list(_layer_exports(small, shared / "trt" / "engines"))
        made += list(_build_logs(small, shared / "trt", place / "logs"))
    return made


def _command(folder: Path, words: str, arm: Callable[[], None] | None = None) -> bool:
    """Run one command in a folder; whether it did what was asked."""
    task = FuzzTask(words, lambda slot: FuzzRun([*words.split(), "-q"], functools.partial(_start, folder, arm)))
    with_code = [(ended.code, ended.text("err.txt")) for ended in run_all([task], folder / "made", Limits())]
    shutil.rmtree(folder / "made")
    return with_code[0][0] in (0, 1)


def _start(folder: Path, arm: Callable[[], None] | None) -> None:
    os.chdir(folder)
    time.process_time = lambda: 0.0  # a checkpoint holds the CPU seconds so far, which no two runs share
    if arm:
        arm()


def _keep_checkpoint(to: Path) -> Callable[[], None]:
    """A hook that copies a checkpoint before a run that has come to its end removes it."""

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.remove" and str(arguments[0]).endswith("work.ckpt"):
            shutil.copyfile(str(arguments[0]), to)

    return lambda: sys.addaudithook(heard)


def small_family(folder: Path, model: onnx.ModelProto, name: str = "small") -> Family:
    """A network with everything that the verbs make of it. What a verb refuses to make is left out."""
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    files = {"model": folder / "model.onnx", **_inputs(folder, model)}
    made = {
        "qdq": ("qdq.onnx", "insert model.onnx --data data.npz --keep-float 0 -o qdq.onnx"),
        "half": ("half.onnx", "amp model.onnx --data data.npz -o half.onnx"),
        "typed": ("typed.onnx", "amp qdq.onnx --data data.npz -o typed.onnx"),
        "scales": ("scales.json", "calibrate model.onnx --data data.npz --method mse -o scales.json"),
        "one": ("one.state", "calibrate model.onnx --data data.npz --shard 1/2 -o one.state"),
        "two": ("two.state", "calibrate model.onnx --data data.npz --shard 2/2 -o two.state"),
        "cache": ("m.cache", "peel qdq.onnx --target gpu --trt-version 8502 -o peeled.onnx --cache m.cache"),
        "dla_cache": ("dla.cache", "ptq model.onnx --data data.npz --target dla --trt-version 8502 --cache dla.cache"),
    }
    for kind in ("ort-flatbuffers", "ort-json", "tao-json", "csv", "json"):
        made[kind.replace("-", "_")] = (f"table.{kind}", f"cache convert m.cache --to {kind} -o table.{kind}")
    files |= {role: folder / file for role, (file, words) in made.items() if _command(folder, words)}
    if "cache" in files:
        files["other_cache"] = files["cache"]
    runs = {
        "kept": "calibrate model.onnx --data data.npz --method mse --checkpoint work.ckpt -o other.json",
        "tuned": "finetune qdq.onnx --data data.npz --steps 2 --checkpoint work.ckpt --checkpoint-every 1 -o t.onnx",
    }
    for role, words in runs.items():
        _command(folder, words, _keep_checkpoint(folder / f"{role}.ckpt"))
    files |= {role: path for role in runs if (path := folder / f"{role}.ckpt").exists()}
    return Family(name, {**files, **_texts(folder)})


def _external(folder: Path) -> Family:
    """The small network with its weights in a file of their own, which keeps its name."""
    family = small_family(folder, model_of(SMALL_NET, 13), "external")
    for role in ("model", "qdq"):
        model = onnx.load(family.files[role])
        onnx.save(
            model, folder / f"out-{role}.onnx", save_as_external_data=True, location=f"{role}.bin", size_threshold=0
        )
        (folder / f"out-{role}.onnx").replace(family.files[role])
    return family


def _wide(folder: Path) -> Family:
    """A network in every number format."""
    family = small_family(folder, wide_graph(), "wide")
    insert = "insert model.onnx --data data.npz --keep-float 0 --format"
    coded = {name: folder / f"{name}.onnx" for name in CODED if _command(folder, f"{insert} {name} -o {name}.onnx")}
    return Family("wide", {**family.files, **coded, "wide": family.files["model"]})


def _inputs(folder: Path, model: onnx.ModelProto) -> dict[str, Path]:
    """Seeded data for a model's inputs, in each form; nothing where shapes are large or types no numbers."""
    samples = _samples(model)
    if not samples:
        return {}
    np.savez(folder / "data.npz", **samples)
    np.save(folder / "data.npy", next(iter(samples.values())))
    from qdqtool.data.json_inputs import write_json_inputs

    write_json_inputs(folder / "inputs.json", _one_by_one(samples))
    np.savez(folder / "more.npz", **_samples(model, _PARTED))
    files = {"data": folder / "data.npz", "more": folder / "more.npz", "inputs": folder / "inputs.json"}
    return files | ({"npy": folder / "data.npy"} if len(samples) == 1 else {})


def _one_by_one(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """One sample after the other, each with a batch of one."""
    for index in range(len(next(iter(arrays.values())))):
        yield {name: array[index : index + 1] for name, array in arrays.items()}


def _samples(model: onnx.ModelProto, count: int = 2) -> dict[str, np.ndarray]:
    stored = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        shape = [dim.dim_value if dim.dim_value > 0 else 1 for dim in tensor.shape.dim]
        if not shape or not tensor.elem_type or np.prod(shape) > _MOST_VALUES:
            return {}
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        values = np.random.default_rng(len(value.name)).normal(size=(count * shape[0], *shape[1:]))
        if kind.kind not in "fiub":
            return {}
        found[value.name] = values.astype(kind)
    return found


def _texts(folder: Path) -> dict[str, Path]:
    rules = '[[fusion]]\nname = "conv-abs"\nmatch = "conv:weight > BatchNormalization:inference? > Abs"\n'
    facts = 'trt = ">=8.0"\nwhy = "Our build log shows one layer."\nsee = "a log"\nstatus = "measured"\n'
    layer = {"Name": "c1 + r1", "LayerType": "CaskConvolution", "Inputs": [], "Outputs": [], "TacticName": "i8"}
    texts = {
        "rules.toml": f'schema = 1\nextends = "gpu"\n\n[sets]\ngate = ["Sigmoid"]\n\n{rules}{facts}',
        "layers.json": json.dumps({"Layers": [layer], "Bindings": ["x", "y"]}, indent=1),
        "names.txt": "car\nface\n",
        "recipe.toml": '[[step]]\nname = "a"\nverb = "lint"\n[step.options]\nexplain = "Q001"\nselect = ["Q001"]\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    roles = {"rules": "rules.toml", "layer_info": "layers.json", "names": "names.txt", "recipe": "recipe.toml"}
    return {role: folder / name for role, name in roles.items()}


def _classifier(folder: Path) -> Family:
    model = onnx.load(PROJECT / "models" / "tiny_classifier.onnx")
    family = small_family(folder, model, "classifier")
    with np.load(PROJECT / "models" / "digits8_test.npz") as digits:
        np.savez(folder / "labeled.npz", images=digits["x"][:4], y=digits["y"][:4])
    from PIL import Image

    (folder / "images").mkdir()
    for name, level in (("a", 10), ("b", 200)):
        Image.new("L", (16, 16), level).save(folder / "images" / f"{name}.png")
    (folder / "labels.csv").write_text("a.png,3\nb.png,1\n", encoding="utf-8")
    more = {"labeled": folder / "labeled.npz", "images": folder / "images", "csv": folder / "labels.csv"}
    return Family("classifier", {**family.files, **more, "classifier": family.files["model"]})


def detector_family(folder: Path) -> Family:
    folder.mkdir(parents=True)
    model = write_detector(folder / "model.onnx")
    files = {"model": model, "detector": model, **_texts(folder)}
    files["images"] = write_images(folder / "images", 200, 90, size=(64, 64))
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [8, 8, 16, 16], "area": 256, "iscrowd": 0}
    images = [{"id": 1 + i, "file_name": f"{name}.png", "width": 64, "height": 64} for i, name in enumerate("ab")]
    coco = {"images": images, "annotations": [box], "categories": [{"id": 1, "name": "car"}, {"id": 2, "name": "face"}]}
    (folder / "coco.json").write_text(json.dumps(coco), encoding="utf-8")
    corners = "<xmin>9</xmin><ymin>9</ymin><xmax>24</xmax><ymax>24</ymax>"
    voc = f"<annotation><object><name>car</name><bndbox>{corners}</bndbox></object></annotation>\n"
    for role, end, text in (("voc", "xml", voc), ("yolo", "txt", "0 0.25 0.25 0.25 0.25\n")):
        (folder / role).mkdir()
        for name in "ab":
            (folder / role / f"{name}.{end}").write_text(text, encoding="utf-8")
        files[role] = folder / role
    return Family("detector", {**files, "coco": folder / "coco.json"})


def _corpus(place: Path, corpus: Path) -> Iterator[Family]:
    found = [path for part in ("models", "qdq", "structure") for path in sorted((corpus / part).glob("*.onnx"))]
    for path in found:
        if path.stat().st_size > LARGEST:
            continue
        model = onnx.load(path, load_external_data=False)
        kind = "qdq" if any(node.op_type == "QuantizeLinear" for node in model.graph.node) else "model"
        folder = place / path.stem
        folder.mkdir(parents=True)
        data = {} if path.name.startswith(_WEIGHTLESS) else _inputs(folder, model)
        yield Family(path.stem, {kind: path, **data, **_texts(folder)})


def _caches(small: Family, folder: Path) -> Iterator[Family]:
    found = [p for p in sorted(folder.iterdir()) if p.name != "MANIFEST.tsv" and p.stat().st_size < LARGEST]
    for first, second in zip(found, itertools.chain(found[1:], found[:1]), strict=True):
        yield Family(first.name, {"cache": first, "other_cache": second, "model": small.files["model"]})


def _layer_exports(small: Family, folder: Path) -> Iterator[Family]:
    found: Sequence[Path] = [p for p in sorted(folder.glob("*/*.json")) if p.stat().st_size < LARGEST]
    for path in found:
        yield Family(f"{path.parent.name}-{path.stem}", {"layer_info": path, "model": small.files["model"]})


def _build_logs(small: Family, folder: Path, place: Path) -> Iterator[Family]:
    """Of each verbose build log, the lines from the list of its layers on."""
    place.mkdir()
    for path in sorted(folder.rglob("*.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        start = next((at for at, line in enumerate(lines) if "Engine Layer Information" in line), None)
        if start is not None:
            (place / path.name).write_text("".join(lines[start : start + _LOG_LINES]), encoding="utf-8")
            yield Family(path.stem, {"layer_info": place / path.name, "model": small.files["model"]})
