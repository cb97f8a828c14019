# SPDX-License-Identifier: Apache-2.0
"""What is done with a fine-tuned model: judged by its task, measured at its outputs, its scale table renewed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.amax.method_table import REFERENCE, parse_method, row_of_scale
from qdqtool.calibration.engine import calibrate_scales
from qdqtool.data.loader import Batch, inputs_of
from qdqtool.display import finite_only
from qdqtool.errors import QdqError
from qdqtool.graph.edit import FINETUNED, set_metadata
from qdqtool.graph.model import Model
from qdqtool.metadata import store_table, stored_table
from qdqtool.observers.options import CalibrationOptions
from qdqtool.passes.peel import peel_pairs
from qdqtool.runtime.executor import Executor, out_of_reach
from qdqtool.scales import Scale, ScaleTable
from qdqtool.simulation import side_by_side
from qdqtool.training.batches import Batches
from qdqtool.training.losses.teacher import float_twin
from qdqtool.training.training_graph import TrainingGraph

Values = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class OutputGain:
    """One output against the same of the model in float, on held-out samples: SQNR in dB before and after."""

    output: str
    before: float
    after: float

    def to_json(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        ends = {"before_db": self.before, "after_db": self.after}
        return {"output": self.output, **finite_only(ends)}


def output_gains(form: TrainingGraph, opened: Model, tuned: Model, batches: Batches) -> tuple[OutputGain, ...]:
    """How far each float output lies from the model in float, before and after, by the reference executor."""
    plain = Model(float_twin(form.proto))
    lost = out_of_reach(plain)
    names = [value.name for value in plain.graph.output if value.name not in lost]
    if not names:
        return ()
    float_run = Executor(plain, names, opened.name)
    found = []
    for model in (opened, tuned):
        runs = (float_run, Executor(model, names, opened.name))
        counted = ((len(next(iter(batch.values()))), batch) for batch in batches.held)
        found.append(side_by_side.measure(runs, {name: (name, name) for name in names}, counted).measures)
    return tuple(OutputGain(n, found[0][n].sqnr, found[1][n].sqnr) for n in names if n in found[0] and n in found[1])


def finished_model(
    tuned: Model, batches: Batches, facts: Mapping[str, Any] | None
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with its training noted in the metadata, and scales measured again that no pair fixes."""
    if facts is None:
        return tuned.proto, ()
    table = stored_table(tuned.proto)
    notes: tuple[str, ...] = ()
    apart = None if table is None else _apart(tuned)
    if table is not None and apart is None:
        notes = ("the scale table in the metadata was not updated: no cache can hold the scales of these Q/DQ",)
    elif table is not None and apart is not None:
        table, again = _measured_again(*apart, table, batches)
        store_table(tuned.proto, table)
        notes = (f"{again} scales in the metadata table without a Q/DQ pair were calibrated again",)
    set_metadata(tuned.proto, FINETUNED, json.dumps(dict(facts)))
    return tuned.proto, notes


def _apart(tuned: Model) -> tuple[Model, Mapping[str, Scale]] | None:
    """The plain model and the scales of its pairs; None where `peel` could not take those out, such as four bits."""
    plain = tuned.copy()
    try:
        peeled = peel_pairs(plain, on_conflict="max", on_asymmetric="widen", ends=True)
    except QdqError:
        return None
    return plain, peeled.scales


def _measured_again(
    plain: Model, pairs: Mapping[str, Scale], table: ScaleTable, batches: Batches
) -> tuple[ScaleTable, int]:
    """The table with what the weights of now make of every tensor without a pair, by the method that it had.

    Tensors with a pair have its scale; those whose consumers chose one keep it.
    """
    method = parse_method(table.provenance.method or REFERENCE).alone
    names = [one.name for one in inputs_of(plain.graph)]
    how = CalibrationOptions(method=str(method), progress=False)
    found = calibrate_scales(plain, InputSamples(batches, names), how)
    scales: dict[str, Scale] = {}
    again = 0
    for name, scale in {**table.scales, **found.scales}.items():
        before = table.get(name)
        if name in pairs:
            scales[name] = replace(before or scale, bits=pairs[name].bits)
        elif name in found and (before is None or not _chosen_by_consumers(before)):
            scales[name] = scale
            again += 1
        elif before is not None:
            scales[name] = before
    return replace(table, scales=scales, unscaled={**table.unscaled, **found.unscaled}), again


def _chosen_by_consumers(scale: Scale) -> bool:
    row = row_of_scale(scale.method)
    return row is not None and row.by_consumers


class InputSamples:
    """The inputs of all samples, walked as often as wanted; labels left out."""

    def __init__(self, batches: Batches, names: Sequence[str]) -> None:
        self._batches, self._names = batches, names

    def __iter__(self) -> Iterator[Batch]:
        return ({name: sample[name] for name in self._names} for sample in self._batches.every())
