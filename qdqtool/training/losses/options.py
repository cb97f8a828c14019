# SPDX-License-Identifier: Apache-2.0
"""What the user asks to be minimized: `--label`, `--distill`, `--loss`, `--distill-weight`. No graph is read here."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdqtool.errors import QdqError
from qdqtool.options import option

if TYPE_CHECKING:
    from qdqtool.training.losses.box_losses import BoxLoss

LABEL_KINDS: Mapping[str, tuple[str, ...]] = {
    "ce": ("axis", "smoothing"),
    "focal": ("gamma", "alpha", "axis"),
    "sigmoid-focal": ("gamma", "alpha"),
    "bce": ("smoothing",),
    "dice": ("axis",),
    "sigmoid-dice": ("axis",),
    "smooth-l1": ("beta",),
    "smooth-l1-mask": ("beta",),
    "mse": (),
    "l1": (),
}
"""Kinds of `--label` and the names of the numbers that may stand after their `=`, in order or as NAME=NUMBER."""

DISTILL_KINDS: Mapping[str, tuple[str, ...]] = {"L1": (), "L2": (), "KL": ("temperature", "axis"), "COS": ("axis",)}
"""The same of `--distill`; L1, L2 and KL are TAO's criteria."""

WHAT = "what is trained, and on what loss"  # title of a group of options
_LABEL_FORM = "write OUTPUT:KIND[:WEIGHT[:INPUT]]"
_DISTILL_FORM = "write STUDENT:TEACHER:KIND[:WEIGHT]"


@dataclass(frozen=True)
class Label:
    """One loss on an output whose targets come with the data.

    Attributes:
        output: tensor of the forward graph, an output as a rule.
        kind: a key of `LABEL_KINDS`.
        weight: what the term is multiplied by.
        array: name under which the data hold the labels.
        numbers: what stood after the kind's `=`, by name.
    """

    output: str
    kind: str
    weight: float
    array: str
    numbers: Mapping[str, float]

    @property
    def mask_array(self) -> str:
        """Name under which the data hold which anchors count; for smooth-l1-mask."""
        return f"{self.array}_mask"


@dataclass(frozen=True)
class DistillPair:
    """One pair of tensors that is pulled together.

    Attributes:
        pair: "STUDENT:TEACHER" as given: which `:` parts the two is known once the graphs are.
        kind: a key of `DISTILL_KINDS`.
        weight: what the term is multiplied by.
        numbers: what stood after the kind's `=`, by name.
    """

    pair: str
    kind: str
    weight: float
    numbers: Mapping[str, float]


@dataclass(frozen=True)
class LossOptions:
    """Everything that is minimized; with nothing given, the teacher's tensors are matched.

    Attributes:
        distill_weight: weight of the label-free term (normalized error at the points); None for 1 where nothing else
            is asked for, else 0.
        boxes: a detector's loss on labeled boxes; None for none.
        moving: arrays of labels that go where the picture goes, when it is flipped or cropped.
    """

    labels: tuple[Label, ...] = option(
        (),
        "--label",
        "OUTPUT:KIND[:WEIGHT[:ARRAY]], a loss on labels in the data: ce, focal, sigmoid-focal, bce, dice, "
        "smooth-l1, mse, ...",
        metavar="L",
        repeated=True,
        convert=lambda texts: tuple(map(parse_label, texts)),
        group=WHAT,
    )
    distill: tuple[DistillPair, ...] = option(
        (),
        "--distill",
        "STUDENT:TEACHER:KIND[:WEIGHT], distillation of named tensors: L1, L2, KL[=temperature] or COS",
        metavar="B",
        repeated=True,
        convert=lambda texts: tuple(map(parse_distill, texts)),
        group=WHAT,
    )
    script: str | None = option(None, "--loss", "script.py:function that builds loss terms", metavar="F", group=WHAT)
    distill_weight: float | None = option(
        None,
        "--distill-weight",
        "weight of the loss against the teacher's tensors",
        metavar="W",
        read=float,
        group=WHAT,
    )
    boxes: BoxLoss | None = None
    moving: tuple[str, ...] = ()

    @property
    def learns_labels(self) -> bool:
        """Whether what is minimized comes with the data."""
        return bool(self.labels or self.script or self.boxes)

    @property
    def label_free_weight(self) -> float:
        """The weight of the label-free term, the default worked out."""
        if self.distill_weight is not None:
            return self.distill_weight
        return 0.0 if self.learns_labels or self.distill else 1.0

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher must be there before a script has been asked."""
        return bool(self.distill) or self.label_free_weight > 0


def parse_label(text: str) -> Label:
    """`OUTPUT:KIND[=NUMBERS][:WEIGHT[:INPUT]]` as a value; names may hold colons themselves.

    Raises:
        QdqError: no known kind, or a weight or number that is none.
    """
    where = f"--label {text}"
    words = text.split(":")
    at = _place_of_kind(where, words, LABEL_KINDS, _LABEL_FORM)
    output = ":".join(words[:at])
    kind, numbers = _kind(where, words[at], LABEL_KINDS)
    weight = _number(where, words[at + 1], "weight") if len(words) > at + 1 else 1.0
    array = ":".join(words[at + 2 :]) or f"{output}_label"
    _check_weight(where, weight)
    return Label(output, kind, weight, array, numbers)


def parse_distill(text: str) -> DistillPair:
    """`STUDENT:TEACHER:KIND[=NUMBERS][:WEIGHT]` as a value; names may hold colons themselves.

    Raises:
        QdqError: no known kind, no two names, or a weight or number that is none.
    """
    where = f"--distill {text}"
    words = text.split(":")
    at = _place_of_kind(where, words, DISTILL_KINDS, _DISTILL_FORM)
    if at < 2 or len(words) > at + 2:
        raise QdqError(where, "is not two tensors, a kind and a weight", _DISTILL_FORM)
    kind, numbers = _kind(where, words[at], DISTILL_KINDS)
    weight = _number(where, words[at + 1], "weight") if len(words) > at + 1 else 1.0
    _check_weight(where, weight)
    return DistillPair(":".join(words[:at]), kind, weight, numbers)


def nearest(name: str, known: Sequence[str]) -> str:
    """`, did you mean X` where something of about that name is known, upper and lower case alike; else nothing."""
    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), list(folded), 1)
    return f", did you mean {folded[near[0]]}" if near else ""


def _place_of_kind(where: str, words: list[str], kinds: Mapping[str, tuple[str, ...]], form: str) -> int:
    """Index of the first word, after a name, that is a kind."""
    for index, word in enumerate(words[1:], 1):
        if word.partition("=")[0] in kinds:
            return index
    guess = next((near for word in words[1:] if (near := nearest(word.partition("=")[0], list(kinds)))), "")
    raise QdqError(where, f"names none of the kinds {', '.join(kinds)}{guess}", form)


def _kind(where: str, word: str, kinds: Mapping[str, tuple[str, ...]]) -> tuple[str, dict[str, float]]:
    kind, equals, text = word.partition("=")
    names = kinds[kind]
    given = text.split(",") if equals else []
    if len(given) > len(names):
        takes = f"takes {', '.join(names)} after its =" if names else "takes no numbers"
        raise QdqError(where, f"{kind} {takes}, not {text!r}", "leave them out for the defaults")
    numbers: dict[str, float] = {}
    for place, value in enumerate(given):
        name, named, number = value.rpartition("=")
        if named and name not in names:
            raise QdqError(where, f"{kind} takes no {name}{nearest(name, names)}", f"it takes {', '.join(names)}")
        numbers[name or names[place]] = _number(where, number, name or names[place])
    _check_numbers(where, numbers)
    return kind, numbers


def _check_numbers(where: str, numbers: Mapping[str, float]) -> None:
    """Refuse numbers outside what the formulas mean: see terms.py."""
    for name, value in numbers.items():
        fine = {
            "axis": value == int(value),
            "gamma": value == 0 or value >= 1,  # between, the gradient is infinite where a prediction is perfect
            "alpha": 0 < value < 1,
            "smoothing": 0 <= value < 1,
        }.get(name, value > 0)
        if not fine:
            wanted = {"axis": "a whole number", "gamma": "0, or 1 and more", "alpha": "between 0 and 1"}
            wanted["smoothing"] = "from 0 to below 1"
            raise QdqError(where, f"{name} {value:g} is not {wanted.get(name, 'above 0')}", "give another")


def _number(where: str, text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise QdqError(where, f"{what} {text!r} is not a number", "write a decimal number") from None
    return value


def _check_weight(where: str, weight: float) -> None:
    if weight <= 0:
        raise QdqError(where, f"weight {weight:g} is not above 0", "leave the term out to ignore it")
