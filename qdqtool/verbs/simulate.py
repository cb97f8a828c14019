# SPDX-License-Identifier: Apache-2.0
"""The verb `simulate`: an INT8 model and data to what TensorRT should compute. No measurement of TensorRT."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx

from qdqtool.cache.text import Cache, read_cache
from qdqtool.data.loader import DataOptions, inputs_of, open_loader
from qdqtool.display import Cells, Displayed, counted, figure, written
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.files import replacing
from qdqtool.formats import INT8
from qdqtool.graph.inline_functions import inline_products, inline_quantized
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.normalize import normalize
from qdqtool.graph.types import opset_of
from qdqtool.graph.weighted import weight_index
from qdqtool.match.full_scale_table import complete_scales
from qdqtool.measures import Measure
from qdqtool.metadata import stored_table
from qdqtool.output_paths import check_target, check_weights, files_of
from qdqtool.passes.peel import Peeled, has_qdq, peel_pairs
from qdqtool.passes.typed_pairs import peel_model
from qdqtool.precision.rounded import as_run
from qdqtool.precision.widen import as_fp32, is_typed
from qdqtool.rulebook import load_rules
from qdqtool.runtime.executor import Executor, last_in_reach
from qdqtool.runtime.float_tensors import find_float_tensors
from qdqtool.scales import ScaleTable
from qdqtool.simulation import side_by_side
from qdqtool.simulation.implicit import ROUNDINGS, Implicit, simulate_implicit
from qdqtool.simulation.measure_table import measure_rows, output_cells
from qdqtool.simulation.recorder import Recorder
from qdqtool.trtversion import TrtVersion, require_cache_for, require_dla
from qdqtool.verbs.compare import NO_TASK_METRIC
from qdqtool.verbs.simulate_options import SimulateOptions

if TYPE_CHECKING:
    from qdqtool.data.loader import Data, DataLoader

Mode = Literal["explicit", "implicit"]
_OLDEST = 8  # from this opset on Max and Min broadcast
_EXPLICIT_FROM = TrtVersion(8, 0, 0)
_BY_VALUE = {"even": "to even", "up": "up", "away": "away from zero"}

_SHOWN = 6  # operators in float that are named
_ROUNDED = "FP16 and BF16 tensors are rounded after each operator, which computes in float32"


@dataclass(frozen=True, repr=False)
class Simulated(Displayed):
    """A model that computes in float what the target computes in INT8, and the same model without any INT8.

    Attributes:
        model: to be run by the reference executor; its tensors have the names of the plain model.
        plain: the same in float.
        folder: where the external data of both lie.
        name: what messages call it.
        mode: "explicit" (Q/DQ), or "implicit" (scales of a cache).
        target: "gpu" or "dla".
        tensors: activations that pass through codes, by the names of the plain model.
        weights: weights that do.
        floats: weighted operator -> why it stays in float.
        notes: what was assumed and what was left out, a sentence each.
        formats: tensor or weight -> its number format, such as "FP8", where that is not INT8.
    """

    model: onnx.ModelProto
    plain: onnx.ModelProto
    folder: Path | None
    name: str
    mode: Mode
    target: str
    tensors: tuple[str, ...]
    weights: tuple[str, ...]
    floats: dict[str, str]
    notes: tuple[str, ...]
    formats: dict[str, str] = field(default_factory=dict)

    def headline(self) -> str:
        """The model, the target, and how much passes through each number format."""
        titles = sorted({self.formats.get(name, INT8.title) for name in (*self.tensors, *self.weights)}) or [INT8.title]
        parts = [
            f"{counted(len(self.of(title, self.tensors)), 'tensor')} and "
            f"{counted(len(self.of(title, self.weights)), 'weight')} through {title}"
            for title in titles
        ]
        return f"{self.name} on {self.target.upper()}, {self.mode}: {'; '.join(parts)}"

    def of(self, title: str, names: Iterable[str]) -> list[str]:
        """Those of the tensors that have a number format."""
        return [name for name in names if self.formats.get(name, INT8.title) == title]

    def summary(self) -> list[str]:
        """The headline, and what stays in float."""
        return [self.headline(), *self.in_float()]

    def in_float(self) -> list[str]:
        """The weighted operators that stay in float, the first of them with their reasons."""
        if not self.floats:
            return []
        lines = [f"{counted(len(self.floats), 'weighted operator')} in float:"]
        lines += [f"  {name}: {reason}" for name, reason in list(self.floats.items())[:_SHOWN]]
        return lines + (
            [f"  and {len(self.floats) - _SHOWN} more (--json has them)"] if len(self.floats) > _SHOWN else []
        )


@dataclass(frozen=True, repr=False)
class SimulateResult(Displayed):
    """What a simulation gave.

    Attributes:
        simulated: the model that was run, and what is INT8 in it.
        outputs: each float output against the same model in float.
        uncompared: output -> why it has no measure.
        samples: how many were run.
        file: where the outputs were written, if they were.
        notes: sentences for the user.
    """

    simulated: Simulated
    outputs: tuple[Measure, ...]
    uncompared: dict[str, str]
    samples: int
    file: Path | None
    notes: tuple[str, ...]

    def headline(self) -> str:
        """What was simulated, on how many samples, and the output that lies farthest from float."""
        text = f"{self.simulated.headline()}, {counted(self.samples, 'sample')}"
        worst = min(self.outputs, key=lambda one: one.sqnr, default=None)
        return text if worst is None else f"{text}; worst output {worst.tensor}: SQNR {figure(worst.sqnr)} dB"

    def summary(self) -> list[str]:
        """What `qdqtool simulate` prints."""
        lines = [f"{self.simulated.headline()}, {counted(self.samples, 'sample')}"]
        lines += measure_rows("output", self.outputs)
        lines += [f"{name} is not compared: {reason}" for name, reason in self.uncompared.items()]
        return [*lines, *self.simulated.in_float(), *self.notes, *written(self.file)]

    def rows(self) -> Cells:
        """One row for each output: how far it lies from float."""
        return output_cells(self.outputs)

    def to_json(self) -> dict[str, Any]:
        """What `qdqtool simulate --json` prints."""
        one = self.simulated
        return {
            "schema": 1,
            "mode": one.mode,
            "target": one.target,
            "int8_tensors": one.of(INT8.title, one.tensors),
            "int8_weights": one.of(INT8.title, one.weights),
            "formats": one.formats,
            "float_operators": one.floats,
            "samples": self.samples,
            "outputs": [measure.to_json() for measure in self.outputs],
            "uncompared": self.uncompared,
            "file": None if self.file is None else str(self.file),
            "task_metric": None,
            "notes": list(self.notes),
        }


def simulate(
    model: ModelSource,
    data: Data | DataLoader,
    options: SimulateOptions | None = None,
    data_options: DataOptions | None = None,
    *,
    output: str | Path | None = None,
) -> SimulateResult:
    """Run an INT8 model as TensorRT should compute it, and measure its outputs against the same model in float.

    Args:
        model: a Q/DQ model, or a plain one with a cache; a path, ModelProto, gs.Graph or a callable returning one.
        data: what to feed; see `open_loader`.
        options: see `SimulateOptions`.
        data_options: batch, limit, preprocessing.
        output: .npz to write the outputs to, one array each, samples along the first axis.

    Raises:
        QdqError: what `simulated_model` refuses, data that does not fit, outputs that one array cannot hold.
        MissingPackageError: onnxruntime (or Pillow, for images) is not installed.
    """
    options = options or SimulateOptions()
    file = None if output is None else Path(output)
    check_target(file, [*files_of(model, options.cache, data)])
    check_weights(file, model)
    opened = open_model(model)
    known = [known_preprocess(opened.proto, options.cache)]
    reading, said = apply_known(opened.name, data, data_options or DataOptions(), known)
    one = simulated_model(model, options)
    loader = open_loader(data, inputs_of(one.model.graph), reading)
    plain = Model(one.plain, one.folder)
    names = last_in_reach(plain)
    runs = (
        Executor(plain, names, one.name, options.provider),
        Executor(Model(one.model, one.folder), names, one.name, options.provider),
    )
    batches = side_by_side.counted_batches(loader, "simulate", options.progress)
    with Recorder() as recorder:
        found = side_by_side.measure(
            runs, {name: (name, name) for name in runs[1].names}, batches, recorder.add if file else None
        )
        if file is not None:
            with replacing(file) as target:
                recorder.write(target)
    notes = (*said, *loader.notes, *one.notes, *_out_of_reach(one, names), NO_TASK_METRIC)
    return SimulateResult(one, tuple(found.measures.values()), found.uncompared, found.samples, file, notes)


def _out_of_reach(one: Simulated, names: tuple[str, ...]) -> list[str]:
    """A sentence where outputs cannot be computed, on what is measured in their place."""
    lost = [value.name for value in one.plain.graph.output if value.name not in names]
    if not lost:
        return []
    return [
        f"onnxruntime cannot compute {', '.join(lost)}: {', '.join(names)} are the last tensors that it can compute"
    ]


def simulated_model(model: ModelSource, options: SimulateOptions | None = None) -> Simulated:
    """The graph that computes in float what a target computes in INT8; `evaluate` and `compare` take its `model`.

    Explicit INT8 is the Q/DQ model as it is written. Implicit INT8 is a plain graph with rounding written into it.

    Args:
        model: a Q/DQ model, or a plain one with a cache; never changed.
        options: see `SimulateOptions`.

    Raises:
        QdqError: Q/DQ that TensorRT refuses, a cache beside Q/DQ or none beside a plain model, a version that does
            not read the cache or has no INT8 on its DLA, a cache without a scale that is used.
    """
    options = options or SimulateOptions()
    plain = open_model(model)
    inline_quantized(plain)
    inline_products(plain)
    explicit = has_qdq(plain.graph)
    if options.target != "gpu" or not explicit:
        plain = as_fp32(plain)
    if explicit:
        if options.cache is not None:
            reason = "has Q/DQ, beside which TensorRT takes no scales from a cache"
            raise QdqError(plain.name, reason, "leave --cache out, or give the plain model (qdqtool peel)")
        return _with_pairs(plain, options)
    if options.cache is None:
        todo = "give a cache, which qdqtool ptq writes, or the model that qdqtool insert makes"
        raise QdqError(plain.name, "has no Q/DQ, and no cache is given", todo)
    cache = options.cache if isinstance(options.cache, Cache) else read_cache(options.cache)
    version = _version_of(cache, options)
    return _implicit(plain, cache.entries, options.target, version, ())


def _with_pairs(plain: Model, options: SimulateOptions) -> Simulated:
    """A Q/DQ model: as it is written on a GPU, by the scales that it carries on the DLA."""
    version = options.trt_version
    if options.target == "gpu" and version is not None and version < _EXPLICIT_FROM:
        reason = f"has Q/DQ, which TensorRT {version.text} does not read"
        raise QdqError(plain.name, reason, "qdqtool peel gives it the plain model and a cache; simulate those")
    if options.target != "gpu":
        return _from_pairs(plain, peel_pairs(plain, on_conflict="max"), options)
    whole = plain.copy()
    peeled = peel_model(plain, on_conflict="max")
    typed = is_typed(whole)
    one = _explicit(as_run(plain), as_run(whole), peeled)
    return replace(one, notes=(*one.notes, _ROUNDED)) if typed else one


def _explicit(plain: Model, whole: Model, peeled: Peeled) -> Simulated:
    """A Q/DQ model on a GPU: it says itself what is rounded, and the reference executor rounds as TensorRT does."""
    notes = ["simulated on a CPU, not run by TensorRT: half-way values to even, products and sums in float32"]
    if peeled.estimated:
        notes.append(f"{len(peeled.estimated)} of {len(peeled.scales)} scales were estimated without data")
    floats = {node.name: "its weight has no Q/DQ" for node in _float_nodes(peeled)}
    scales = {**peeled.scales, **peeled.weights}
    formats = {name: scale.format.title for name, scale in scales.items() if scale.format != INT8}
    of_plain = (plain.proto, plain.folder, plain.name)
    coded = (tuple(peeled.scales), tuple(peeled.weights))
    return Simulated(whole.proto, *of_plain, "explicit", "gpu", *coded, floats, tuple(notes), formats)


def _from_pairs(plain: Model, peeled: Peeled, options: SimulateOptions) -> Simulated:
    """A Q/DQ model on the DLA, which knows no Q/DQ: the scales that `peel --target dla` would write, without data."""
    if options.trt_version is not None:
        require_dla(options.trt_version)
    peeled.refuse_other_formats()
    if peeled.estimated:
        part = f"{len(peeled.estimated)} of {len(peeled.scales)} scales"
        raise QdqError(plain.name, f"{part} were estimated without data", "insert --data calibrates")
    table = stored_table(plain.proto) or ScaleTable()
    found = find_float_tensors(plain, [table], peeled.scales)
    tensors = [*found.names, *found.unknown]
    rules = load_rules("dla", options.trt_version)
    complete = complete_scales(plain.view, rules, peeled.scales, tensors, table)
    entries = {name: np.float32(scale.bits) for name, scale in complete.scales.items()}
    kept = tuple(node.key for node in _float_nodes(peeled))
    one = _implicit(plain, entries, "dla", options.trt_version, kept)
    left = len(complete.left)
    if not left:
        return one
    text = f"{left} of {len(tensors)} tensors have no scale and stay in float, such as {complete.left[0]}"
    return replace(one, notes=(text, *one.notes))


def _implicit(
    plain: Model,
    entries: Mapping[str, np.float32],
    target: str,
    version: TrtVersion | None,
    kept: tuple[str, ...],
) -> Simulated:
    """A plain model with scales: rounding is written into a copy of it."""
    notes = []
    if (opset_of(plain.proto) or 1) < _OLDEST:
        notes += [f"{note}, for the simulation only" for note in normalize(plain).notes]
    simulated = plain.copy()
    done = simulate_implicit(simulated.view, entries, target, version, kept)
    notes += _format_notes(done, target)
    of_plain = (plain.proto, plain.folder, plain.name)
    return Simulated(
        simulated.proto, *of_plain, "implicit", target, done.tensors, done.weights, done.floats, tuple(notes)
    )


def _format_notes(done: Implicit, target: str) -> list[str]:
    activations, weights = (_BY_VALUE[how] for how in ROUNDINGS[target])
    places = {"gpu": "what INT8 operators read at the outputs of fused groups", "dla": "every tensor with a scale"}
    rounding = f"half-way values {activations}, those of weights {weights}, one scale per output channel of a weight"
    notes = [
        f"simulated on a CPU, not run by TensorRT: {places[target]}; {rounding}",
        "which kernels TensorRT would choose is not known",
    ]
    if target == "dla":
        notes.append("per-channel weights and levels from -128 on are a guess for the DLA; FP16 is computed in float32")
    if done.unused:
        notes.append(f"{len(done.unused)} scales have no effect here, such as that of {done.unused[0]}")
    return notes


def _float_nodes(peeled: Peeled) -> list[Any]:
    """Weighted operators whose weight had no pair."""
    int8 = frozenset(peeled.int8_nodes)
    view = peeled.model.view
    return [node for node in view.nodes if weight_index(view, node) is not None and node.key not in int8]


def _version_of(cache: Cache, options: SimulateOptions) -> TrtVersion:
    """The version whose cache it is, where TensorRT would read it."""
    where = "--cache" if isinstance(options.cache, Cache) else str(options.cache)
    version = options.trt_version or cache.version
    if version is None:
        raise QdqError(where, f"its header {cache.header!r} names no version", "give --trt-version")
    if cache.version is not None and version.header() != cache.version.header():
        reason = f"is for TensorRT {cache.version.text}; {version.text} would ignore it and calibrate again"
        raise QdqError(where, reason, "qdqtool cache retarget")
    if options.target == "dla" and version.has_typed_dla:
        reason = "has a DLA whose rounding is not documented, so it is not simulated"
        raise QdqError(f"TensorRT {version.text}", reason, "leave --target out: Q/DQ models are run as they stand")
    require_cache_for(version, options.target)
    return version
