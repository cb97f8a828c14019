# SPDX-License-Identifier: Apache-2.0
"""The model under the lens: what several checks ask of it, each worked out once. No check and no edit stands here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtool.decisions import Decisions, decode_facts
from qdqtool.dla.assignment import dla_findings, in_float32, rewritable_nodes
from qdqtool.engine.cost import Forecast
from qdqtool.errors import QdqError
from qdqtool.forecasting.model_layers import predict_engine
from qdqtool.formats import INT8, MIXED, NumberFormat, format_of_element, formats_of
from qdqtool.graph.edit import get_metadata
from qdqtool.graph.heads import Head, find_heads
from qdqtool.graph.model import Model
from qdqtool.graph.types import infer_types, opset_of
from qdqtool.graph.view import GraphView, Node, Pair, Use
from qdqtool.graph.weighted import pair_behind, weight_index
from qdqtool.match.flow import Flow, commuting
from qdqtool.match.groups import Group
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.planner import make_plan
from qdqtool.match.rule_index import RuleIndex
from qdqtool.passes.channel_selection import ChannelSelection, find_channel_selections, find_channel_slices
from qdqtool.passes.integer_operators import has_loose_integers
from qdqtool.passes.peel import peel_pairs
from qdqtool.passes.pooled_resize import PooledResize, find_pooled_resizes
from qdqtool.precision.assignment import stored_precision
from qdqtool.precision.element_types import TypeReport, is_strongly_typed
from qdqtool.precision.element_types import infer_types as infer_element_types
from qdqtool.precision.scopes import HALF_TYPES
from qdqtool.precision.type_rules import load_type_rules
from qdqtool.precision.widen import as_fp32, is_typed
from qdqtool.quantizing.plan import settle
from qdqtool.rtxversion import RTX_TARGET, refuse_trt_version
from qdqtool.rule_files import operator_set, rules_folder
from qdqtool.rulebook import RuleBook, load_rules
from qdqtool.scales import ALL_ZERO
from qdqtool.trtversion import NEWEST, RELEASES, TrtVersion

if TYPE_CHECKING:
    from qdqtool.dla.assignment import DlaReport
    from qdqtool.dla.rules import Platform
    from qdqtool.tensorrt_rtx.parser import ParserVerdict

_OTHER_FORMATS = frozenset({"float8_e4m3fn", "float8_e8m0fnu", "int4", "float4_e2m1fn"})


class LintContext:
    """One model, target and version, and what follows from them.

    Attributes:
        proto: the model.
        view: the index of its main graph; of a typed model (FP16, BF16) that of the same in FP32.
        target: gpu or dla.
        version: whose rules hold; the newest release known where none was asked for.
        asked: the version that was asked for, None where none was.
        platform: whose DLA; None for that which the version is mostly for.
        verdict: what NVIDIA's own parser says of the model; None where it was not asked.
        wide: the model in FP32: itself where it is that.
        view: the index of `wide`.
        file_view: the index of the graph as the file has it, its Casts among the nodes.
        largest: tensor -> the largest magnitude that data gave it; empty where none were run.
    """

    def __init__(
        self,
        model: Model,
        target: str = "gpu",
        version: TrtVersion | None = None,
        platform: Platform | None = None,
        verdict: ParserVerdict | None = None,
    ) -> None:
        if target == RTX_TARGET:
            refuse_trt_version(version)
        self.model, self.target, self.asked = model, target, version
        self.platform, self.verdict = platform, verdict
        self.version = version or NEWEST
        self.wide = as_fp32(model)
        self.view, self.file_view = self.wide.view, model.view
        self.largest: Mapping[str, float] = {}

    def again(self) -> LintContext:
        """The same model after an edit: rules and what data gave are carried over, no verdict on what it was."""
        self.model.changed()  # repairs edit names and opsets, too
        new = LintContext(self.model, self.target, self.asked, self.platform)
        new.rules, new.words, new.largest = self.rules, self.words, self.largest
        return new

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as the file has it."""
        return self.model.proto

    @property
    def model_place(self) -> str:
        """What findings of the whole model name."""
        return self.proto.graph.name or "the model"

    @property
    def all_pairs(self) -> list[Pair]:
        """Every pair of the main graph, tensor by tensor."""
        return [pair for pairs in self.view.pairs.values() for pair in pairs]

    @cached_property
    def rules(self) -> RuleBook:
        """The rules of the target and version."""
        return load_rules(self.target, self.asked)

    @cached_property
    def way_to_pairs(self) -> str:
        """How to get pairs that are missing; a model whose integers move outside of pairs is not taken as it is."""
        if has_loose_integers(self.view):
            return (
                "qdqtool insert --requantize --data makes floats of the integers outside of pairs, and places all pairs"
            )
        return "qdqtool insert --data places the missing pairs and keeps the scales of the others"

    @cached_property
    def words(self) -> Words:
        """The words of rules/lint.toml."""
        return load_words()

    @cached_property
    def plan(self) -> Plan:
        """What `insert` decides about this graph."""
        target = "rtx" if self.target == "rtx" else "gpu"  # Q/DQ models for the DLA are judged as the GPU's
        options = PlanOptions(target, self.asked)
        decided = make_plan(self.view, options, all_zero=self.all_zero)
        return settle(self.view, decided, load_rules(target, self.asked))[0]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The fused groups, Q/DQ pairs seen through."""
        return self.plan.groups

    @cached_property
    def weight_inputs(self) -> dict[int, int]:
        """Identity of a weighted node -> which of its inputs is the weight."""
        return {id(node): index for node, index in self.weighted}

    @cached_property
    def refused(self) -> frozenset[str]:
        """Where `insert` refuses something."""
        return frozenset(refusal.site for refusal in self.plan.refusals)

    @cached_property
    def heads(self) -> list[Head]:
        """The detection heads, Q/DQ pairs seen through."""
        return find_heads(self.view, self.rules.heads)

    @cached_property
    def opset(self) -> int:
        """The opset of the default domain."""
        return opset_of(self.proto) or 1

    @cached_property
    def types(self) -> dict[str, onnx.TypeProto]:
        """What shape inference knows of the tensors of the main graph."""
        graph = infer_types(self.wide.proto, self.opset)
        return {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}

    @cached_property
    def unpaired(self) -> GraphView:
        """The graph without its pairs, which hide what hangs together."""
        if not self.view.pairs:
            return self.view
        plain = self.wide.copy()
        try:
            peel_pairs(plain, on_conflict="max", on_asymmetric="widen", drop_scales=True)
        except QdqError:  # pairs that are broken stay, and other checks name them
            return self.view
        return plain.view

    @cached_property
    def channel_selections(self) -> list[ChannelSelection]:
        """The channel shuffles that a 1x1 convolution can do."""
        return find_channel_selections(self.view, self._kinds)

    @cached_property
    def channel_slices(self) -> list[ChannelSelection]:
        """The Slices and Splits of channels that the DLA does not run, which 1x1 convolutions can do."""
        lost = {one.node for one in self.dla.fallbacks} if self.dla is not None else set()
        return [one for one in find_channel_slices(self.view, self._kinds) if one.nodes[0].key in lost] if lost else []

    @cached_property
    def pooled_resizes(self) -> list[PooledResize]:
        """The Resizes that are poolings."""
        return find_pooled_resizes(self.view, self._kinds)

    @property
    def _kinds(self) -> dict[str, int]:
        return {name: found.tensor_type.elem_type for name, found in self.types.items()}

    def kind(self, name: str) -> int:
        """Element type of a tensor as in onnx.TensorProto, 0 where it is not known."""
        return self.types[name].tensor_type.elem_type if name in self.types else 0

    @cached_property
    def typed(self) -> TypeReport:
        """The element types that a strongly typed network would have, and where TensorRT refuses them."""
        return infer_element_types(self.proto, load_type_rules(self.asked))

    @cached_property
    def has_halves(self) -> bool:
        """Whether the file has tensors in FP16 or BF16, constants that are only stored so left out."""
        return is_typed(self.model)

    @cached_property
    def float32_reasons(self) -> Mapping[str, str]:
        """First output -> why it is in FP32, where the model says so; a record that cannot be read says nothing."""
        try:
            record = stored_precision(self.proto)
        except QdqError:
            return {}
        return {} if record is None else record.assignment.reasons

    @property
    def reads_types(self) -> bool:
        """Whether the TensorRT that was asked for takes every type from the file: 11 and later, and RTX."""
        return is_strongly_typed(TypeReport({}, ()), self.asked, self.target)

    @property
    def strongly_typed(self) -> bool:
        """Whether the network would be strongly typed: by the version, or as the file has halves."""
        return self.reads_types or self.has_halves

    @cached_property
    def forecast(self) -> Forecast | None:
        """What the layers that are predicted cost, with the types of the file; None for a DLA."""
        return None if self.target == "dla" else predict_engine(self.model, self.asked, self.target).forecast()

    @cached_property
    def dla(self) -> DlaReport | None:
        """What the DLA would run of the model, by the newest rules that have one; None for another target."""
        if self.target != "dla":
            return None

        version = self.asked or max(one.version for one in RELEASES if one.version.has_dla_int8)
        floats = [node.key for node, _ in self.weighted if node.key not in self.int8_nodes]
        float32 = in_float32(self.model, version)
        return dla_findings(self.view, version, self.platform, floats, float32, rewritable_nodes(self.unpaired))

    @cached_property
    def direct_readers(self) -> dict[str, list[Node]]:
        """Tensor of the file -> the nodes that read it by that name, those of Q/DQ pairs among them."""
        found: dict[str, list[Node]] = {}
        for node in self.file_view.every:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return found

    # ------------------------------------------------------------------ what insert left in the metadata

    @cached_property
    def decisions(self) -> Decisions:
        """The decisions beside the table that `insert --data` left in the model; none where there is no table."""
        try:
            return decode_facts(self._stored("facts"))[0]
        except ValueError:
            return Decisions()

    @cached_property
    def all_zero(self) -> frozenset[str]:
        """Tensors without a scale, since they held nothing but zeros, by that table."""
        return frozenset(name for name, reason in self._stored("unscaled").items() if reason == ALL_ZERO)

    def _stored(self, key: str) -> dict[str, Any]:
        """A part of the table that `insert --data` left; empty where it is not there or is no object."""
        text = get_metadata(self.proto, "scales")
        try:
            found = json.loads(text).get(key, {}) if text else {}
        except (ValueError, AttributeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def float_layers(self) -> frozenset[str]:
        """First outputs of the operators that accuracy keeps in float."""
        return frozenset(self.decisions.float_layers or ())

    @property
    def requantize_points(self) -> frozenset[str]:
        """Tensors that have a scale of their own on purpose though their values come from points."""
        return frozenset(self.decisions.requantize_points)

    # ------------------------------------------------------------------ pairs

    @cached_property
    def activation_pairs(self) -> dict[str, list[Pair]]:
        """Tensor -> its pairs, constants left out."""
        return {name: pairs for name, pairs in self.view.pairs.items() if not self.view.is_constant(name)}

    @cached_property
    def pair_of(self) -> dict[str, Pair]:
        """Output of a DequantizeLinear -> its pair."""
        return {pair.dequantize.outputs[0]: pair for pairs in self.view.pairs.values() for pair in pairs}

    @cached_property
    def flow(self) -> Flow:
        """The walk across what a pair may be moved across."""
        return commuting(self.view, self.rules)

    @cached_property
    def int8_consumers(self) -> frozenset[int]:
        """`id` of every node that reads INT8 by the rules."""
        return frozenset(id(node) for node, _ in RuleIndex(self.rules.consumers, self.rules).nodes(self.view))

    def scale_of(self, pair: Pair) -> np.ndarray[Any, Any] | None:
        """The scale of a pair as it is stored, None where it is computed or cannot be read."""
        node = pair.quantize or pair.dequantize
        return self.constant(node.inputs[1]) if len(node.inputs) > 1 else None

    @cached_property
    def half_constants(self) -> dict[str, str]:
        """Constant of the file in FP16 or BF16 -> its type in words; in `view` they are FP32."""
        graph = self.proto.graph
        held = {tensor.name: tensor for tensor in graph.initializer}
        held.update((node.output[0], item.t) for node in graph.node for item in node.attribute if item.HasField("t"))
        halves = ((name, int(one.data_type)) for name, one in held.items())
        return {name: onnx.TensorProto.DataType.Name(kind).lower() for name, kind in halves if kind in HALF_TYPES}

    def zero_point(self, pair: Pair) -> np.ndarray[Any, Any] | None:
        """The zero point of either half; for stored integers without one a zero of their type."""
        for node in (pair.quantize, pair.dequantize):
            if node is not None and len(node.inputs) > 2 and node.inputs[2]:
                return self.constant(node.inputs[2])
        stored = None if pair.quantize is not None else self.view.constant_tensor(pair.dequantize.inputs[0])
        return None if stored is None else np.zeros((), onnx.helper.tensor_dtype_to_np_dtype(stored.data_type))

    def format_of(self, pair: Pair) -> NumberFormat | None:
        """The number format of a pair's codes; None where no row of rules/formats.toml has their type."""
        zero = self.zero_point(pair)
        if zero is None:
            return INT8
        return format_of_element(onnx.helper.np_dtype_to_tensor_dtype(zero.dtype))

    @cached_property
    def number_format(self) -> str:
        """The format of the pairs as `--format` names it; INT8 where there is none, or that has no word for them."""
        rows = {one for pair in self.all_pairs if (one := self.format_of(pair)) is not None}
        found = {one.name for one in rows if one.has_two_levels} or {one.name for one in rows}  # their scales are FP8
        mixed = {one.name for one in formats_of(MIXED)}
        return found.pop() if len(found) == 1 else MIXED if found and found <= mixed else INT8.name

    def range_of(self, name: str) -> np.float32 | None:
        """The one scale of what a node reads: of its pairs, or of those before what commutes; None for several."""
        pairs = self.activation_pairs.get(self.view.root(name)) or self.carriers(name) or []
        scales = [scale for pair in pairs if (scale := self.scale_of(pair)) is not None and scale.size == 1]
        values = {scale.reshape(-1)[0].tobytes(): np.float32(scale.reshape(-1)[0]) for scale in scales}
        return next(iter(values.values())) if len(values) == 1 and len(scales) == len(pairs) else None

    def constant(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a constant, None where it is none or cannot be read."""
        try:
            return self.view.array(name)
        except (QdqError, ValueError, RuntimeError, NotImplementedError):
            return None

    def carriers(self, name: str) -> list[Pair] | None:
        """The pairs that bring INT8 to a tensor as a node reads it: its own, or those before what commutes."""
        found: dict[int, Pair] = {}
        for tensor in self.flow.origins(name, self.pair_of.__contains__):
            pair = self.pair_of.get(tensor)
            if pair is None:
                return None
            found[id(pair)] = pair
        return list(found.values())

    def through(self, pair: Pair) -> list[Use]:
        """The reads that go through one pair directly."""
        output = pair.dequantize.outputs[0]
        return [use for use in self.view.consumers(self.view.root(output)) if use.node.inputs[use.index] == output]

    # ------------------------------------------------------------------ weighted operators

    @cached_property
    def weighted(self) -> list[tuple[Node, int]]:
        """Every weighted operator with the index of its weight, in file order."""
        found = [(node, weight_index(self.view, node)) for node in self.view.nodes]
        return [(node, index) for node, index in found if index is not None]

    def has_int8_weight(self, node: Node, index: int) -> bool:
        """Whether an operator reads its weight through a pair, or integers through a DequantizeLinear."""
        return self.weight_pair(node, index) is not None

    def weight_pair(self, node: Node, index: int) -> Pair | None:
        """The pair that a weight comes out of, what moves it on its way seen through."""
        return pair_behind(self.view, node.inputs[index])

    @cached_property
    def int8_nodes(self) -> frozenset[str]:
        """First outputs of the weighted operators that run in INT8: as it stands, or as planned for a plain model."""
        if self.view.pairs:
            return frozenset(node.key for node, index in self.weighted if self.has_int8_weight(node, index))
        return frozenset(self.planned)

    @cached_property
    def planned(self) -> frozenset[str]:
        """First outputs of the weighted operators that the plan quantizes and nobody keeps in float."""
        return frozenset(read.node for point in self.plan.weights for read in point.reads) - self.float_layers


def is_other_format(zero: np.ndarray[Any, Any]) -> bool:
    """Whether a zero point is of a format beside INT8 that TensorRT reads, for which none of INT8's rules holds."""
    return zero.dtype.name in _OTHER_FORMATS


def number_of(node: Node, name: str, default: int) -> int:
    """An integer attribute, of files before IR 2 too, which give attributes no type."""
    return next((int(item.i) for item in node.proto.attribute if item.name == name), default)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Words:
    """Operators by what is made of them.

    Attributes:
        integer: operators on integers, which TensorRT does not import.
        sizes: operators that give sizes, of rules/common.toml.
        roundings: operators by which a float becomes a size or place, or the other way round.
        places: op -> its inputs that hold sizes, places or counts.
        biases: op -> its input that holds the bias.
    """

    integer: frozenset[str]
    sizes: frozenset[str]
    roundings: frozenset[str]
    places: Mapping[str, tuple[int, ...]]
    biases: Mapping[str, int]


def load_words() -> Words:
    """The words of rules/lint.toml, and the sets of rules/common.toml beside them."""
    with (rules_folder() / "lint.toml").open("rb") as file:
        table = tomllib.load(file)["lint"]
    places = {op: tuple(indices) for op, indices in table["places"].items()}
    return Words(
        frozenset(table["integer"]),
        operator_set("sizes"),
        frozenset(table["roundings"]),
        places,
        dict(table["biases"]),
    )
