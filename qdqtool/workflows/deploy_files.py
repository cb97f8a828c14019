# SPDX-License-Identifier: Apache-2.0
"""The files of a deployment: the model, its cache, what builds and serves it, the recipe, the pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtool.cache.sidecar import sidecar_path
from qdqtool.cache.text import read_cache
from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.preprocess import parse_preprocess
from qdqtool.deploying.bench_script import BENCH, README, BuildScript, bench_script, readme
from qdqtool.deploying.candidates import DeployCandidate
from qdqtool.emit import ENDINGS, EmitJob, Emitted, emit
from qdqtool.emit.deepstream_network import DeepStreamNetwork, label_file, with_network
from qdqtool.emit.engine_files import engine_files, rtx_build_files, written_or_left_out
from qdqtool.emit.input_shapes import tensors_of
from qdqtool.errors import QdqError
from qdqtool.evaluation.decode_options import DecodeOptions
from qdqtool.files import replacing
from qdqtool.forecasting.devices import Device
from qdqtool.formats import INT8
from qdqtool.graph.io import ModelSource, give_back, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.types import float_tensors
from qdqtool.recipe.read_recipe import recipe_text
from qdqtool.trtversion import NEWEST
from qdqtool.verbs.compare_pictures import DrawOptions, draw_differences
from qdqtool.verbs.infer_options import InferOptions
from qdqtool.workflows.deploy_options import DeployOptions
from qdqtool.workflows.deploy_steps import MadeFiles, StepJob, candidate_recipe, kept_name

PICTURES = 8
_OF_WHICH_BUILD = "the figures are of the build by trtexec; there, layers without an option of their own run in INT8"
_NO_TRITON = (
    "no config.pbtxt: onnxruntime cuts names at ':', so that it would miss scales of the cache; qdqtool lint --fix Q017"
    " renames the tensors: deploy that model for Triton"
)
_ANY_SM = "89"


@dataclass(frozen=True)
class Package:
    """What was written.

    Attributes:
        build: what builds the engine.
        notes: what could not be written and why, a sentence each.
        files: what builds and serves the model.
    """

    build: BuildScript
    notes: tuple[str, ...]
    files: tuple[str, ...] = ()


def write_package(
    candidate: DeployCandidate, made: MadeFiles, job: StepJob, place: Path, network: DeepStreamNetwork | None = None
) -> Package:
    """Write the model, its cache and what builds and serves them.

    Raises:
        QdqError: a file cannot be written.
    """
    stem = kept_name(candidate, job.stem)
    opened = _write_model(stem, made, place)
    texts, notes = _texts(stem, candidate, made, job)
    peeled = candidate.steps and candidate.steps[-1].verb == "peel"
    if network is None or (peeled and not network.labels):  # as the recipe's peel writes it, which knows no classes
        network = DeepStreamNetwork()
    texts |= _network_files(texts, network)
    if made.cache is not None and has_cut_names(opened):
        notes.append(_NO_TRITON)
    for name, emitted in texts.items():
        _write(place / name, emitted.text)
        notes += emitted.warnings
    build = next(name for name in texts if name.endswith(".sh"))
    return Package(BuildScript(build, texts[build].text), tuple(notes), tuple(texts))


def write_other_build(candidate: DeployCandidate, made: MadeFiles, job: StepJob, place: Path) -> BuildScript:
    """Write a candidate that was not kept and the script that builds it, to be timed beside what was kept.

    Raises:
        QdqError: a file cannot be written.
    """
    stem = kept_name(candidate, job.stem)
    _write_model(stem, made, place)
    texts, _ = _texts(stem, candidate, made, job)
    build = next(name for name in texts if name.endswith(".sh"))
    _write(place / build, texts[build].text)
    return BuildScript(build, texts[build].text)


def write_guide(place: Path, title: str, said: Sequence[str], builds: Sequence[BuildScript], job: StepJob) -> None:
    """Write the script that times the engines on the board, and what to do with the folder."""
    served = sorted(
        path.name for path in place.iterdir() if path.name.endswith((ENDINGS["deepstream"], ENDINGS["triton"]))
    )
    _write(place / BENCH, bench_script(builds, dla=job.target.kind == "dla", rtx=job.target.kind == "rtx"))
    _write(place / README, readme(title, said, builds, served))


def _write_model(stem: str, made: MadeFiles, place: Path) -> Model:
    """Write a candidate's model, and its cache with what is known of it."""
    opened = open_model(made.model)
    give_back(opened.proto, opened, place / f"{stem}.onnx")
    if made.cache is not None:
        (place / f"{stem}.cache").write_bytes(made.cache.read_bytes())
        sidecar_path(place / f"{stem}.cache").write_bytes(sidecar_path(made.cache).read_bytes())
    return opened


def _texts(
    stem: str, candidate: DeployCandidate, made: MadeFiles, job: StepJob
) -> tuple[dict[str, Emitted], list[str]]:
    """What builds and serves a candidate, name -> text, and what could not be written."""
    if not candidate.steps or candidate.steps[-1].verb != "peel":
        return _emitted(stem, candidate, made, job)
    names = [stem + ENDINGS[kind] for kind in job.emit]
    return {name: Emitted(made.model.with_name(name).read_text("utf-8")) for name in names}, _untold(made.notes)


def _network_files(texts: dict[str, Emitted], network: DeepStreamNetwork) -> dict[str, Emitted]:
    """The configurations of Gst-nvinfer with what is known of the outputs, and their file of class names."""
    ending = ENDINGS["deepstream"]
    found = {
        name: Emitted(with_network(emitted.text, network), emitted.warnings)
        for name, emitted in texts.items()
        if name.endswith(ending)
    }
    if found and network.labels:
        found[network.labels] = Emitted(label_file(network))
    return found


def _untold(notes: tuple[str, ...]) -> list[str]:
    """What builders cannot be told, of the notes of `peel`, and which build the figures are of."""
    found = [note.removeprefix("--emit ") for note in notes if note.startswith("--emit ")]
    lost = any("--layerPrecisions" in note for note in found)
    return found + ([_OF_WHICH_BUILD] if lost else [])


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".sh":
        path.chmod(0o755)


def peel_kinds(model: Model) -> tuple[str, ...]:
    """What `peel` can write of a plain model: Gst-nvinfer feeds one image."""
    inputs, _ = tensors_of(model.proto)
    images = [one for one in inputs if one.shape is not None and len(one.shape) == 4]
    both = len(images) == 1 and len(inputs) == 1
    left_out = {"deepstream", "triton"} if not both else {"triton"} if has_cut_names(model) else set()
    return tuple(kind for kind in ENDINGS if kind not in left_out)


def has_cut_names(model: Model) -> bool:
    """Whether a tensor's name has a ':', at which onnxruntime cuts the names of a cache."""
    return any(":" in name for name in float_tensors(model))


def _emitted(
    stem: str, candidate: DeployCandidate, made: MadeFiles, job: StepJob
) -> tuple[dict[str, Emitted], list[str]]:
    """The texts beside a model that was not peeled."""
    found = _emit_job(stem, candidate, made, job)
    if job.version is None:
        board = job.target.place.board
        return rtx_build_files(found, board.sm if board is not None else _ANY_SM), []
    if made.cache is None:
        return engine_files(found, typed=job.target.typed or candidate.format != INT8.name)
    cut = has_cut_names(open_model(made.model))
    kinds = [kind for kind in ENDINGS if kind != "json" and not (cut and kind == "triton")]
    found = replace(found, kinds=frozenset(kinds))
    return written_or_left_out({stem + ENDINGS[kind]: _writer(found, kind) for kind in kinds})


def _writer(job: EmitJob, kind: str) -> Callable[[], Emitted]:
    return lambda: emit(job, [kind])[kind]


def _emit_job(stem: str, candidate: DeployCandidate, made: MadeFiles, job: StepJob) -> EmitJob:
    proto = open_model(made.model).proto
    inputs, outputs = tensors_of(proto)
    given = job.preprocess
    return EmitJob(
        model=f"{stem}.onnx",
        cache=f"{stem}.cache" if made.cache is not None else "",
        stem=stem,
        target=job.target.kind,
        version=job.version or NEWEST,
        layers=(),
        scales={} if made.cache is None else read_cache(made.cache).entries,
        inputs=inputs,
        outputs=outputs,
        batch=job.max_batch or job.data_options.batch,
        max_batch=job.max_batch,
        preprocess=parse_preprocess(given) if isinstance(given, str) else given,
        int8=not candidate.is_float,
        half=candidate.form != "as-is",
        data={**({} if given is None else {"preprocess": str(given)}), "shapes": job.fed},
        remarks=tuple(filter(None, [job.dla_warning])),
        platform=None if job.target.place.board is None else job.target.place.platform,
    )


def write_recipe(
    candidate: DeployCandidate, job: StepJob, folder: Path, path: Path, device: Device | None = None
) -> None:
    """Write the recipe that makes the kept files again, as it lies in the folder."""
    recipe = candidate_recipe(candidate, job, folder / path.name, device)
    place = job.target.place.title
    made = f"Makes the files of this folder again ({candidate.name}), for {place}."
    head = [made if candidate.steps else f"The model as it was given, for {place}: no step.", "qdqtool run recipe.toml"]
    with replacing(path) as file:
        file.write(recipe_text(recipe, head).encode())


def draw_worst(
    models: tuple[ModelSource, ModelSource],
    data: tuple[Data, DataOptions],
    options: DeployOptions,
    work: Path,
    place: Path,
) -> str:
    """Draw the images in which the kept model differs most from FP32; why not, where it cannot be done."""
    infer = InferOptions(DecodeOptions(options.decoder, options.postprocess), options.names, progress=False)
    asked = DrawOptions(infer, PICTURES, ("FP32", "deployed"))
    try:
        drawn = draw_differences(models, data[0], work, asked, data[1])
    except QdqError as error:
        if error.is_of_system:
            raise
        return f"no pictures: {error.where} {error.reason}"
    for file in drawn.files:
        if file.suffix == ".png":
            file.replace(place / f"worst-{file.name}")
    return ""
