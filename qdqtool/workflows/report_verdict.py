# SPDX-License-Identifier: Apache-2.0
"""The verdict of a report: its sentence and its cards. What they rest on is found elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdqtool.cache.check import CacheCheck
from qdqtool.deploying.board_ratios import BoardRatio
from qdqtool.display import counted, figure, four_decimals
from qdqtool.engine.cost import Forecast
from qdqtool.engine.totals import EngineTotals
from qdqtool.evaluation.loss_scale import WORDS, word_of
from qdqtool.evaluation.metrics import Figure, loss_in_words
from qdqtool.linting.checks import check_named
from qdqtool.linting.finding import Finding, by_code, counts, format_counts
from qdqtool.reporting.sections import Card, types_svg
from qdqtool.reporting.tensor_rows import TensorRow, scales_by_origin
from qdqtool.tensorrt_rtx.parser import ParserVerdict
from qdqtool.workflows.report_measure import MeasuredReport, main_figure

_MOODS = {"little": "good", "some": "warn", "much": "bad"}  # of the words of evaluation/loss_scale.py
PRODUCTS = "convolutions and matrix products"  # what INT8 makes faster
_METRICS = {  # as people write them
    "agreement": "agreement with the FP32 model",
    "agreement1": "top-1 agreement with the FP32 model",
    "map": "mAP",
    "map50": "mAP at 0.5",
    "miou": "mean IoU",
    "top1": "top-1",
    "top5": "top-5",
}


@dataclass(frozen=True)
class VerdictFacts:
    """What the verdict rests on.

    Attributes:
        products: type -> how many products compute in it.
        kept: how many of them stay in float on purpose.
        forecast: of the model.
        plain: of the model without pairs; None where there is none.
        findings: of lint.
        parser: what NVIDIA's parser says; None where it was not asked.
        no_parser: why it was not.
        rows: the tensors.
        measured: on the data.
        engine: sums over the built engine's layers.
        cache: the cache beside the model.
        ratios: how much faster than FP16 it should be, by board.
        formats: titles of the number formats beside INT8 that the file holds.
        title: of the format that ratios are of.
    """

    products: Mapping[str, int]
    kept: int
    forecast: Forecast
    plain: Forecast | None
    findings: Sequence[Finding]
    parser: ParserVerdict | None
    no_parser: str
    rows: Sequence[TensorRow]
    measured: MeasuredReport
    engine: EngineTotals | None = None
    cache: CacheCheck | None = None
    ratios: Sequence[BoardRatio] = ()
    formats: Sequence[str] = ()
    title: str = "INT8"

    @property
    def by_cache(self) -> CacheCheck | None:
        """The cache that alone says what runs in INT8: of a model without pairs."""
        return None if self.has_pairs else self.cache

    @property
    def has_pairs(self) -> bool:
        """Whether a tensor has a Q/DQ pair."""
        return any(row.paired for row in self.rows)


def verdict_sentence(facts: VerdictFacts) -> str:
    """One sentence: how much is in INT8 or in which types, what it costs, whether something is wrong."""
    total, int8 = sum(facts.products.values()), facts.products.get("INT8", 0)
    if facts.by_cache is not None:
        cache = facts.by_cache
        scaled = f"scales for {len(cache.matched)} of its {len(cache.matched) + len(cache.missing)} tensors"
        words = [f"a plain model with {total} {PRODUCTS}, and a calibration cache with {scaled}"]
        words.append("TensorRT chooses by it what runs in INT8, which this report does not predict")
    elif facts.formats:
        types = ", ".join(f"{count} in {kind}" for kind, count in facts.products.items()) or "none"
        words = [f"{total} {PRODUCTS}: {types}", f"the file holds {', '.join(facts.formats)}"]
    elif not facts.has_pairs:
        words = [f"a plain model with {total} {PRODUCTS}: nothing is quantized"]
    else:
        words = [f"{int8} of {total} {PRODUCTS} in INT8"]
    if facts.kept and facts.by_cache is None and (facts.formats or facts.has_pairs):
        words.append(f"{facts.kept} in float on purpose")
    if facts.measured.evaluation is not None:
        name, found, is_loss = main_figure(facts.measured.evaluation)
        called = _METRICS.get(name, name)
        if not math.isfinite(found.value):
            words.append(f"{called} is not known")
        elif is_loss:
            words.append(loss_in_words(called, found, facts.measured.evaluation.samples))
        else:
            words.append(f"{called} {_figure(found.value)}")
    if facts.measured.causes is not None and facts.measured.causes.causes:
        words.append(f"likely cause: {facts.measured.causes.causes[0].name}")
    grave = counts(facts.findings)
    words.append(f"lint finds {format_counts(facts.findings)}" if facts.findings else "lint finds nothing")
    if facts.parser is not None and not facts.parser.accepted:
        words.append("NVIDIA's parser refuses it")
    text = "; ".join(words)
    return f"{text[0].upper()}{text[1:]}." + (" Repair it before building." if grave["error"] else "")


def verdict_cards(facts: VerdictFacts) -> list[Card]:
    """The cards in their order."""
    cards = [
        _products(facts),
        *_losses(facts),
        *_cause(facts),
        _bytes(facts),
        *_speed(facts),
        _findings(facts),
        _parser(facts),
        _scales(facts),
    ]
    if facts.engine is not None:
        built = ", ".join(f"{count} {kind}" for kind, count in facts.engine.products.items()) or "none"
        more = f"{counted(facts.engine.layers, 'layer')}, {facts.engine.conversions} of them only convert or copy"
        cards.append(Card("The same in the built engine", built, more))
    if facts.cache is not None:
        mood = "good" if facts.cache.passes(100.0) else "warn"
        more = f"{len(facts.cache.missing)} tensors missing, {len(facts.cache.unknown)} names not in the model"
        cards.append(Card("Cache covers", f"{facts.cache.coverage:.1f} %", more, mood))
    return cards


def _products(facts: VerdictFacts) -> Card:
    total = sum(facts.products.values())
    by_type = ", ".join(f"{count} {kind}" for kind, count in facts.products.items()) or "none"
    more = f"of {total} {PRODUCTS}, as the rules predict"
    if facts.by_cache is not None:
        more = (
            f"of {total} {PRODUCTS}, in the file alone: what the cache makes INT8 is not counted. "
            "qdqtool evaluate --cache simulates it, graft puts it into the model, lint --target dla knows the DLA"
        )
    elif facts.kept:
        more += f"; {facts.kept} in float on purpose"
    return Card(
        f"{PRODUCTS[0].upper()}{PRODUCTS[1:]}", by_type, more, picture=types_svg(facts.products) if total else ""
    )


def _losses(facts: VerdictFacts) -> list[Card]:
    """The loss of the task, or at the outputs; both where outputs only look like a classifier's, as no labels say."""
    found = facts.measured
    cards: list[Card] = []
    if found.evaluation is not None:
        name, one, is_loss = main_figure(found.evaluation)
        span = f"95 % interval {one.interval.text()}"
        mood = _MOODS.get(found.evaluation.word or "", "")
        called = _METRICS.get(name, name)
        more = f"{span}; {counted(found.evaluation.samples, 'image')}, onnxruntime, not TensorRT"
        if mood in ("bad", "warn"):
            more += ". What now: qdqtool improve, or the page “Accuracy dropped”"
        title = f"Loss of {called}" if is_loss else f"{called[0].upper()}{called[1:]}"
        cards = [Card(title, _figure(one.value), more, mood)]
        if name != "agreement1":
            return cards
    if found.causes is not None and found.causes.loss is not None:
        word = word_of("outputs", Figure(found.causes.loss, found.causes.interval))
        span = f"95 % interval {found.causes.interval.text()}; " if found.causes.interval.known else ""
        more = f"{span}0: as the FP32 model; {counted(found.causes.samples, 'sample')}. {WORDS[word].capitalize()}"
        cards.append(Card("Loss at the outputs", _figure(found.causes.loss), more, _MOODS.get(word, "")))
    elif found.outputs:
        worst = min(found.outputs, key=lambda one: one.sqnr if one.sqnr == one.sqnr else -math.inf)
        more = f"worst output: {worst.tensor}; {counted(found.samples, 'sample')}. No task metric."
        cards.append(Card("SQNR at the outputs", f"{figure(worst.sqnr)} dB", more))
    return cards or [Card("Loss", "not measured", "--data and --labels measure it")]


def _cause(facts: VerdictFacts) -> list[Card]:
    """The first cause of the loss; none where there is none."""
    causes = facts.measured.causes
    if causes is None or not causes.causes:
        return []
    first, rest = causes.causes[0], [one.name for one in causes.causes[1:]]
    more = f"{first.evidence}; {first.gain_text()}" + (f". Then: {', '.join(rest)}" if rest else "")
    return [Card("Likely cause of the loss", first.name, more, "bad" if first.refused else "warn")]


def _figure(value: float) -> str:
    """A metric or its loss, as a fraction, as `evaluate` prints it."""
    return four_decimals(value) if math.isfinite(value) else "–"


def _bytes(facts: VerdictFacts) -> Card:
    moved = facts.forecast.bytes_moved
    if moved is None:
        return Card("Bytes moved, forecast", "not known", "a tensor has dynamic dimensions besides the batch")
    more = "of predicted layers, weights included; a forecast, not a measurement"
    before = None if facts.plain is None else facts.plain.bytes_moved
    if before:
        more = f"{100 * moved / before:.0f} % of the same model in FP16 without Q/DQ; {more}"
    return Card("Bytes moved, forecast", f"{moved / 1e6:.1f} MB", more)


def _speed(facts: VerdictFacts) -> list[Card]:
    """The forecast over all boards that run it; none where there is none."""
    if not facts.ratios:
        return []
    ordered = sorted(facts.ratios, key=lambda one: one.ratio)
    span = f"{ordered[0].ratio:.2f}x ({ordered[0].device}) to {ordered[-1].ratio:.2f}x ({ordered[-1].device})"
    paying = sum(one.verdict == "pays" for one in ordered)
    more = f"{facts.title} pays on {paying} of {counted(len(ordered), 'board')} known; a forecast, not a measurement"
    label = "Speed over FP16, forecast" if facts.has_pairs else f"Speed of {facts.title} over FP16, forecast"
    return [Card(label, span, more, "" if paying else "warn")]


def _findings(facts: VerdictFacts) -> Card:
    if not facts.findings:
        return Card("Findings of lint", "none", "", "good")
    grave = counts(facts.findings)
    mood = "bad" if grave["error"] else "warn" if grave["warning"] else ""
    codes = [*by_code(facts.findings)]
    more = f"{codes[0]}: {check_named(codes[0]).summary}" + (f" And {', '.join(codes[1:])}." if codes[1:] else "")
    return Card("Findings of lint", format_counts(facts.findings), more, mood)


def _parser(facts: VerdictFacts) -> Card:
    verdict = facts.parser
    if verdict is None:
        return Card("NVIDIA's parser", "not asked", facts.no_parser)
    more = f"TensorRT for RTX {verdict.version}, on a CPU"
    if verdict.accepted:
        warned = f"; {counted(len(verdict.warnings), 'warning')}" if verdict.warnings else ""
        return Card("NVIDIA's parser", "accepts it", f"{more}{warned}", "good")
    return Card("NVIDIA's parser", "refuses it", f"{verdict.refusals[0].message}; {more}", "bad")


_METHODS = 3  # that the card names


def _scales(facts: VerdictFacts) -> Card:
    origins = scales_by_origin(facts.rows)
    total = sum(origins.values())
    if not total and facts.formats:
        return Card("Scales of activations", "none", f"{' and '.join(facts.formats)} weights have theirs in the file")
    if not total:
        return Card("Scales", "none", "the model has no Q/DQ; qdqtool insert places them")
    guessed = sum(count for source, count in origins.items() if source.startswith("estimated"))
    chosen = Counter[str]()
    for source, count in origins.items():
        chosen[source.partition("auto:")[2].strip() or source] += count
    words = [f"{count} by {source}" for source, count in chosen.most_common(_METHODS)]
    rest = total - sum(count for _, count in chosen.most_common(_METHODS))
    words += [f"{rest} by others"] if rest else []
    by_auto = any("auto:" in source for source in origins)
    named = ", ".join(words) + ("; auto chose the method of each" if by_auto else "")
    if guessed:
        return Card("Scales", f"{guessed} of {total} estimated", "without data: calibrate with --data", "warn")
    return Card("Scales of activations", str(total), named)
