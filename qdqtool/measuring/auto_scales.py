# SPDX-License-Identifier: Apache-2.0
"""`--method auto` from histograms to a table: pick samples, let scale_choice.py choose, spread the chosen scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qdqtool.amax.histogram import Histogram
from qdqtool.amax.methods import predicted_sqnr, scale_from_amax
from qdqtool.data.loader import Batch, DataLoader, inputs_of
from qdqtool.data.model_inputs import Input
from qdqtool.data.parts import rows_of_run, sample_digest, samples_in
from qdqtool.decisions import PredictedNoise
from qdqtool.errors import QdqError
from qdqtool.graph.view import GraphView
from qdqtool.match.plan import PlanOptions
from qdqtool.match.propagate_scales import spread_scales
from qdqtool.measuring.scale_choice import ChoiceSource, ScaleChoice, choose
from qdqtool.observers.pre_activation import before_silu
from qdqtool.observers.table import scales_before_silu
from qdqtool.runtime.activations import ObservableModel
from qdqtool.runtime.array_file import ArrayFile
from qdqtool.runtime.stage_models import filed
from qdqtool.scales import Scale, ScaleTable

# Samples that the shadow pass runs. 16 choose no better than 8: the detectors agree with their float models alike,
# within what other images change.
SHADOW_SAMPLES = 8


def auto_table(
    source: ChoiceSource, table: ScaleTable, placing: PlanOptions | None = None, *, candidates: bool = False
) -> ScaleTable:
    """The table with the scales that the consumers of each point choose, in place of each tensor's own.

    Raises:
        QdqError: what `choose` refuses.
    """
    placing = placing or PlanOptions(float_heads="none")
    choice = choose(source, placing)
    view, histograms = source.model.view, source.histograms
    scales = _spread(view, placing, table.scales, _points(choice, table))
    scales |= scales_before_silu(before_silu(view, scales), scales, histograms)
    before = table.provenance
    run = replace(
        before,
        method="auto",
        shadow_samples=choice.samples,
        operator_losses=choice.local,
        candidates=_candidates(choice) if candidates else None,
        predicted=_predicted_again(before.predicted, scales, histograms) if before.predicted is not None else None,
    )
    decisions = replace(table.decisions, requantize_points=choice.requantize_points)
    return replace(table, scales=scales, decisions=decisions, provenance=run)


def source_of(model: ObservableModel, loader: Iterable[Batch], judged: int = SHADOW_SAMPLES) -> ChoiceSource:
    """What `choose` needs but for histograms: `SHADOW_SAMPLES` samples picked by what they hold.

    `judged`: how many are picked for `ChoiceSource.judged`, these among them.

    Raises:
        QdqError: the data gives nothing.
    """
    inputs = loader.inputs if isinstance(loader, DataLoader) else inputs_of(model.model.graph)
    count = judged if rows_of_run(inputs) == 1 else SHADOW_SAMPLES
    samples = filed(pick_samples(loader, inputs, count))  # they wait while scales and layers are chosen
    if not samples:
        raise QdqError("data", "is empty when it is iterated again", "--method auto iterates it twice: give a list")
    return ChoiceSource(model, samples[:SHADOW_SAMPLES], {}, judged=samples)


def filed_histograms(histograms: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """Histograms that are only read from now on, in a file: of those that nobody looks at, nothing is in memory."""
    blocks = ArrayFile().add_all([one.block for one in histograms.values()])
    made = {name: Histogram.over(block) for name, block in zip(histograms, blocks, strict=True)}
    for name, one in made.items():
        one.best_amax = histograms[name].best_amax
    return made


def _points(choice: ScaleChoice, table: ScaleTable) -> dict[str, Scale]:
    return {
        name: replace(table[name], bits=Scale.of(scale_from_amax(taken.amax, name)).bits, method=f"auto:{taken.method}")
        for name, taken in choice.taken.items()
        if name in table
    }


def _spread(
    view: GraphView, placing: PlanOptions, scales: Mapping[str, Scale], points: Mapping[str, Scale]
) -> dict[str, Scale]:
    """Scales in the order they came: of points, of what holds the values of a point, of all others."""
    rules = placing.rule_book()
    same = spread_scales(view, rules, points).scales
    spread = {**scales}
    for name, scale in scales.items():
        if name in points:
            spread[name] = points[name]
        elif name in same:
            spread[name] = replace(scale, bits=same[name].bits, method=f"auto: {same[name].method}")
    return spread


def _candidates(choice: ScaleChoice) -> dict[str, dict[str, tuple[float, float]]]:
    """What was tried: tensor -> method -> (amax, loss)."""
    return {name: {one.method: (float(one.amax), loss) for one, loss in tried} for name, tried in choice.tried.items()}


def _predicted_again(
    predicted: PredictedNoise, scales: Mapping[str, Scale], histograms: Mapping[str, Histogram]
) -> PredictedNoise:
    """The predicted signal to noise with the scales that were chosen beside that with the other method's."""
    decibel = {
        name: (
            round(min(predicted_sqnr(histograms[name], scales[name].format.amax_of(scales[name].bits)), 999.0), 2),
            other,
        )
        for name, (_, other) in predicted.decibel.items()
    }
    return replace(predicted, decibel=decibel)


def pick_samples(batches: Iterable[Batch], inputs: Sequence[Input], count: int) -> list[Batch]:
    """The `count` samples with the smallest digests, each once, in the order of those, as batches that can be run.

    A digest is as good as a draw: it has nothing to do with where a sample comes from. Where every input leaves its
    first axis free, or fixes it to the same size, batches are taken apart along it, and put together again to that
    size; elsewhere a batch is one sample.
    """
    size = rows_of_run(inputs)
    kept: dict[str, Batch] = {}
    for batch in batches:
        for sample in samples_in(batch) if size else [batch]:
            digest = sample_digest(sample)
            if digest in kept or (len(kept) >= count and digest > max(kept)):
                continue
            kept[digest] = {name: np.array(array) for name, array in sample.items()}
            if len(kept) > count:
                del kept[max(kept)]
    ordered = [kept[digest] for digest in sorted(kept)]
    if size <= 1:
        return ordered
    groups = [ordered[start : start + size] for start in range(0, max(len(ordered) // size, 1) * size, size)]
    return [{name: _filled([one[name] for one in group], size) for name in group[0]} for group in groups]


def _filled(rows: list[np.ndarray], size: int) -> np.ndarray:
    """Rows as one array of `size`, the last one repeated where there are fewer."""
    return np.concatenate([*rows, *[rows[-1]] * (size - len(rows))])
