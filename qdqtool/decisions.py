# SPDX-License-Identifier: Apache-2.0
"""What was decided from data and what it was decided from, as values that travel with a scale table.

In scales.json and in a model's metadata both stand in one JSON object, `facts`; `decode_facts` and `encode_facts` are
the only readers and writers of its keys. A new decision is a field, a row there and its reader. `Decisions` are
requantize points and layers that stay in float; `match.planner.make_plan` takes them whole. `Provenance` is method,
samples and data. Not the scales themselves (scales.py), nor where pairs go (match/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Decisions:
    """What calibration data decided about a graph, to be followed wherever its pairs are placed.

    Attributes:
        requantize_points: tensors that get a pair of their own though their values come from points (method `auto`).
        float_layers: first outputs of operators that accuracy keeps in float -> the reason (`--keep-float`,
            `--max-output-loss`); None where no search was made, {} where a search left nothing in float.
        attention: first output of the second product of an attention -> why it stays in float, "" where it is INT8;
            None where no attention was measured (`--attention auto`).
        formats: first output of an operator, of an attention that of its second product -> its number format, "" for
            float, and the reason (`--format mixed`); None where one format is for all.
    """

    requantize_points: tuple[str, ...] = ()
    float_layers: Mapping[str, str] | None = None
    attention: Mapping[str, str] | None = None
    formats: Mapping[str, tuple[str, str]] | None = None

    def then(self, later: Decisions) -> Decisions:
        """These and later ones; where both give a reason for one operator, the later."""
        points = dict.fromkeys((*self.requantize_points, *later.requantize_points))
        layers = _joined(self.float_layers, later.float_layers)
        attention, formats = _joined(self.attention, later.attention), _joined(self.formats, later.formats)
        return Decisions(tuple(points), layers, attention, formats)

    def within(self, names: Mapping[str, object]) -> Decisions:
        """Those about tensors and operators that a graph has; `names` has what its nodes make."""
        points = tuple(name for name in self.requantize_points if name in names)
        layers, attention = _within(self.float_layers, names), _within(self.attention, names)
        return Decisions(points, layers, attention, _within(self.formats, names))


def _joined(first: Mapping[str, T] | None, later: Mapping[str, T] | None) -> Mapping[str, T] | None:
    return None if first is None and later is None else {**(first or {}), **(later or {})}


def _within(reasons: Mapping[str, T] | None, names: Mapping[str, object]) -> Mapping[str, T] | None:
    return None if reasons is None else {name: reason for name, reason in reasons.items() if name in names}


@dataclass(frozen=True)
class PredictedNoise:
    """Predicted signal to noise of the rounding, with the method that was asked for and with another one.

    Attributes:
        beside: the other method.
        decibel: tensor -> (with its scale, with the other method's), in dB.
    """

    beside: str
    decibel: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Provenance:
    """The run that made a scale table; nothing in it differs between two equal runs.

    Attributes:
        method: the calibration method, or "estimate"; "" where nobody says.
        samples: how many samples were run, 0 where none were or nobody says.
        origins: of an estimate: how a scale was found -> how many were.
        backend: who calibrated, where it was not this program.
        tensorrt: the version of TensorRT that calibrated, or "".
        behind: tensors after an operator that onnxruntime cannot run.
        predicted: signal to noise beside another method's, where that was asked for.
        data: what the data was, see `DataLoader.description`.
        shadow_samples: how many samples method `auto` ran through quantized copies, 0 for the other methods.
        operator_losses: first output of an operator -> scale of its input, and the share of its signal that it loses
            with that, as method `auto` measured it; for the search in the same run, never written.
        candidates: tensor -> method -> (amax, loss) that `auto` tried, where that was asked for.
        model_sha256: digest of the model file, "" where the model was no file.
        other: keys that this version does not know, kept as they are.
    """

    method: str = ""
    samples: int = 0
    origins: Mapping[str, int] = field(default_factory=dict)
    backend: str = ""
    tensorrt: str = ""
    behind: tuple[str, ...] = ()
    predicted: PredictedNoise | None = None
    data: Mapping[str, Any] | None = None
    shadow_samples: int = 0
    operator_losses: Mapping[str, tuple[Any, float]] = field(default_factory=dict)
    candidates: Mapping[str, Mapping[str, tuple[float, float]]] | None = None
    model_sha256: str = ""
    other: Mapping[str, Any] = field(default_factory=dict)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Sentences on what of the data was left out."""
        return tuple((self.data or {}).get("left_out", ()))

    @property
    def preprocess(self) -> Any:
        """What was done to images, as `--preprocess` takes it; None where nobody says."""
        return (self.data or {}).get("preprocess")


def encode_facts(decisions: Decisions, provenance: Provenance) -> dict[str, Any]:
    """The JSON object of both, its keys always in one order; what is not known is left out."""
    one = provenance
    known: dict[str, Any] = {
        "method": one.method,
        "samples": one.samples,
        "tensors": dict(one.origins),
        "backend": one.backend,
        "tensorrt": one.tensorrt,
        "behind": list(one.behind),
    }
    facts = {key: value for key, value in known.items() if value}
    if one.predicted is not None:
        decibel = {name: list(pair) for name, pair in one.predicted.decibel.items()}
        facts["predicted"] = {"beside": one.predicted.beside, "decibel": decibel}
    if one.data is not None:
        facts["data"] = dict(one.data)
    if one.shadow_samples:
        facts["shadow_samples"] = one.shadow_samples
    if decisions.requantize_points:
        facts["cuts"] = list(decisions.requantize_points)
    if one.candidates is not None:
        facts["candidates"] = {
            name: {method: list(pair) for method, pair in tried.items()} for name, tried in one.candidates.items()
        }
    if decisions.float_layers is not None:
        facts["kept"] = dict(decisions.float_layers)
    if decisions.attention is not None:
        facts["attention"] = dict(decisions.attention)
    if decisions.formats is not None:
        facts["formats"] = {name: list(chosen) for name, chosen in decisions.formats.items()}
    if one.model_sha256:
        facts["model_sha256"] = one.model_sha256
    return {**facts, **one.other}


def decode_facts(facts: object) -> tuple[Decisions, Provenance]:
    """What `encode_facts` wrote; keys that are not known are kept in `Provenance.other`.

    Raises:
        ValueError: no object, or a key that is known holds something of another kind (named).
    """
    if not isinstance(facts, dict):
        raise ValueError("facts must be an object")  # noqa: TRY004 - callers know one kind of error
    for name, (is_fine, kind) in _KINDS.items():
        if name in facts and not is_fine(facts[name]):
            raise ValueError(f"fact {name} must be {kind}")
    left = dict(facts)
    formats = left.pop("formats", None)
    decisions = Decisions(
        tuple(left.pop("cuts", ())),
        left.pop("kept", None),
        left.pop("attention", None),
        None if formats is None else {name: (row, reason) for name, (row, reason) in formats.items()},
    )
    predicted, candidates = left.pop("predicted", None), left.pop("candidates", None)
    provenance = Provenance(
        origins=left.pop("tensors", {}),
        behind=tuple(left.pop("behind", ())),
        predicted=None if predicted is None else PredictedNoise(predicted["beside"], _pairs(predicted["decibel"])),
        candidates=None if candidates is None else {name: _pairs(tried) for name, tried in candidates.items()},
        **{name: left.pop(name) for name in _PLAIN if name in left},
    )
    return decisions, replace(provenance, other=left)


_PLAIN = ("method", "samples", "backend", "tensorrt", "data", "shadow_samples", "model_sha256")


def _pairs(found: Mapping[str, list[float]]) -> dict[str, tuple[float, float]]:
    return {name: (first, second) for name, (first, second) in found.items()}


def _is_word(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_object_of(is_fine: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and all(is_fine(one) for one in value.values())


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) in (int, float) for one in value)


def _is_choice(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_word, value))


def _is_data(value: object) -> bool:
    return isinstance(value, dict) and _is_words(value.get("left_out", []))


def _is_predicted(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"beside", "decibel"}
        and _is_word(value["beside"])
        and _is_object_of(_is_pair)(value["decibel"])
    )


# The keys that are known, and what each has to be.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "cuts": (_is_words, "a list of words"),
    "behind": (_is_words, "a list of words"),
    "kept": (_is_object_of(_is_word), "an object of words"),
    "attention": (_is_object_of(_is_word), "an object of words"),
    "formats": (_is_object_of(_is_choice), "an object of pairs of words"),
    "method": (_is_word, "a word"),
    "samples": (_is_count, "an integer"),
    "tensors": (_is_object_of(_is_count), "an object of integers"),
    "backend": (_is_word, "a word"),
    "tensorrt": (_is_word, "a word"),
    "predicted": (_is_predicted, "an object with beside, a word, and decibel, an object of pairs of numbers"),
    "data": (_is_data, "an object whose left_out is a list of words"),
    "shadow_samples": (_is_count, "an integer"),
    "candidates": (_is_object_of(_is_object_of(_is_pair)), "an object of objects of pairs of numbers"),
    "model_sha256": (_is_word, "a word"),
}
