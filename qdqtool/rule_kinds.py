# SPDX-License-Identifier: Apache-2.0
"""What a rule of rules/*.toml can say, a class for each kind. `rulebook.py` reads them and chooses by version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qdqtool.rule_files import operator_set
from qdqtool.rule_steps import Step


@dataclass(frozen=True)
class Rule:
    """What every rule carries: its name, the versions it holds for, why, where that is written, how sure it is.

    `trt` is a range of TensorRT versions; `rtx` one of TensorRT for RTX, for rules of that target alone; `formats` are
    the number formats that it holds for, empty for all.
    """

    name: str
    trt: str
    why: str
    see: str
    status: str
    rtx: str = field(default="", kw_only=True)
    formats: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Fusion(Rule):
    """A chain of operators that runs as one layer."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Int8Consumer(Rule):
    """An operator that reads INT8 at its `activation` input or `all`: `always`, with a `quantized-output`, `never`."""

    steps: tuple[Step, ...]
    inputs: str
    when: str


@dataclass(frozen=True)
class Commute(Rule):
    """An operator that a pair may be moved across; `side` is where it stands.

    `both`: the values on either side are the same, but INT8 does not pass: a pair stands before, and one of the same
    scale behind where a matrix product reads (`match/second_pairs.py`). `second` is the scale of that one: "same", or
    "next", the next larger float32, which rounds nothing either and is no copy to the compiler. `before` with "float":
    INT8 passes, and one of the same scale stands behind for what reads it in float.
    """

    steps: tuple[Step, ...]
    side: str
    second: str = "same"


@dataclass(frozen=True)
class WeightAxis(Rule):
    """Which axis of a weight has one scale per channel; None for one scale."""

    steps: tuple[Step, ...]
    axis: int | None


@dataclass(frozen=True)
class Bound(Rule):
    """An operator whose output lies in [-amax, amax]."""

    steps: tuple[Step, ...]
    amax: float


@dataclass(frozen=True)
class SharedScale(Rule):
    """An operator around which tensors have one range: `all`, the `inputs` among themselves, or `none` of them."""

    steps: tuple[Step, ...]
    members: str


@dataclass(frozen=True)
class LateBiasReader(Rule):
    """An operator that reduces channels: the bias of an INT8 convolution is added after the Transpose before it."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class CommonScale(Rule):
    """A product in a file with an FP16 rest whose weight has one scale, with factors of its channels after it."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class StackedOperand(Rule):
    """An operator in a file with an FP16 rest: a Concat of what several of these make is written along a new axis."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class UnfoldedOperator(Rule):
    """An operator that the compiler computes in each run though it reads constants alone."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Composite(Rule):
    """An activation written as several nodes: ONNX text of one input x and one output y, in every known order."""

    text: tuple[str, ...]


@dataclass(frozen=True)
class AttentionForm(Fusion):
    """A spelling of multi-head attention, from its first product to its second one.

    Attributes:
        int8: whether it is built as one INT8 kernel with all of its pairs.
        half: whether it is built as one kernel in FP16 without any.
        head_sizes: values of a head with which that is so.
        least: keys, at least.
        least_queries: queries, at least; as many as keys where a rule does not say.
        most: keys, at most.
        most_queries: queries, at most; as many as keys where a rule does not say.
        output: whether what comes out has to have a pair, too.
    """

    int8: bool
    half: bool = True
    head_sizes: tuple[int, ...] = ()
    least: int = 0
    least_queries: int = 0
    most: int = 0
    most_queries: int = 0
    output: bool = True


@dataclass(frozen=True)
class HeadRules:
    """Words by which detection heads are distinguished."""

    markers: frozenset[str]
    features: Mapping[str, int]
    scores: Mapping[str, int]
    bounded: frozenset[str]
    arithmetic: frozenset[str]
    pools: frozenset[str]
    moves: frozenset[str]
    maps: frozenset[str]
    normalizations: frozenset[str]

    @property
    def sizes(self) -> frozenset[str]:
        """Operators that read a shape and no value: `sizes` of rules/common.toml."""
        return operator_set("sizes")


@dataclass(frozen=True)
class TargetPolicy:
    """What a target does with a whole model.

    Attributes:
        points: where scales stand: "groups" (where INT8 operators read), or "every-tensor".
        float_heads: "fp32" or "fp16", in which regression heads and their decode compute.
        no_int8: operators that have no INT8 kernel there and must be kept in float.
        weight_rounding: how a weight in the middle between two steps is rounded: up, or away from zero.
        depthwise: whether depthwise convolutions are quantized, or stay in "float", unless one is asked for.
    """

    points: Literal["groups", "every-tensor"]
    float_heads: Literal["fp32", "fp16"]
    no_int8: frozenset[str]
    weight_rounding: Literal["half_up", "half_away"]
    depthwise: Literal["int8", "float"]

    @property
    def rounds_everything(self) -> bool:
        """Whether every float tensor has a scale, so that ranges around an operator bind, and nothing is kept out."""
        return self.points == "every-tensor"
