# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a graph the DLA runs and which fall back to the GPU, each with its reasons. Nothing is run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from onnx import TensorProto

from qdqtool.display import counted
from qdqtool.dla import limits, move_limits
from qdqtool.dla.node_context import NodeContext, Shape, check_named, outside, sentence_of
from qdqtool.dla.rules import DlaRules, Limit, Platform, load_dla_rules, platforms_of, usual_platform
from qdqtool.dla.subgraphs import Saving, Subgraphs, count_subgraphs, find_subgraphs
from qdqtool.graph.model import Model
from qdqtool.graph.shapes import known_shapes, sample_shapes
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import weight_index
from qdqtool.match.plan import Plan, PlanOptions
from qdqtool.match.rule_index import RuleIndex
from qdqtool.match.sizes import gives_sizes, made_of_sizes
from qdqtool.passes.channel_selection import find_channel_selections, find_channel_slices
from qdqtool.passes.pooled_resize import find_pooled_resizes
from qdqtool.precision.element_types import infer_types
from qdqtool.precision.islands import computes_float32
from qdqtool.precision.widen import is_typed, widen_named
from qdqtool.trtversion import TrtVersion, require_dla_model

__all__ = ["DlaAssignment", "DlaReport", "Reason", "Saving", "dla_findings"]

Device = Literal["dla", "gpu", "none"]
NO_LAYER = "dla-no-layer"
GUESS, _DOCUMENTED = "guess", "documented"  # of a rule's status; "measured" is the third
_GRAPH_CHECKS = frozenset({"subgraphs"})
# Every module whose checks rules may name fills the table of checks when it is imported.
_ROOMS = (limits, move_limits)

_OPS = 6  # kinds of operators that a summary names
_KINDS = 3  # kinds of cuts that a sentence names


@dataclass(frozen=True)
class Reason:
    """Why a node falls back: the rule, a sentence that goes on after "because", what could be done, how sure it is.

    `status` is that of the rule: documented, measured or guess.
    """

    rule: str
    text: str
    instead: str = ""
    status: str = _DOCUMENTED

    def cited(self) -> str:
        """The sentence with the rule that it is from, and whether that is a guess."""
        return f"{self.text} (rule {self.rule}{', a guess' if self.status == GUESS else ''})"


@dataclass(frozen=True)
class DlaAssignment:
    """Where one node runs.

    Attributes:
        node: its first output.
        name: what to call it.
        op: the operator.
        device: "dla", "gpu", or "none" for what leaves no layer: constants, sizes, Identity.
        reasons: of a fallback, in the order of the rules.
        subgraph: number of its DLA subgraph, from 1; 0 for others.
        layer: the rule that gives the DLA such a layer; "" on the GPU and for what leaves no layer.
        status: of what the verdict rests on: documented, measured or guess. A fallback is a guess where all of its
            reasons are.
    """

    node: str
    name: str
    op: str
    device: Device
    reasons: tuple[Reason, ...] = ()
    subgraph: int = 0
    layer: str = ""
    status: str = _DOCUMENTED

    @property
    def guessed_rules(self) -> tuple[str, ...]:
        """The rules with the status "guess" that the verdict rests on; none where it is sure."""
        if self.status != GUESS:
            return ()
        return tuple(dict.fromkeys(one.rule for one in self.reasons)) or (self.layer,)

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        reasons = [
            {"rule": one.rule, "reason": one.text, "instead": one.instead, "status": one.status} for one in self.reasons
        ]
        return {
            "node": self.name,
            "op": self.op,
            "device": self.device,
            "subgraph": self.subgraph,
            "layer": self.layer,
            "status": self.status,
            "reasons": reasons,
        }


@dataclass(frozen=True)
class DlaReport:
    """What one platform's DLA would run of a graph.

    Attributes:
        platform: "xavier" or "orin".
        version: of TensorRT.
        verdicts: of every node, in file order.
        subgraphs: the contiguous DLA subgraphs and what would save some.
        most: how many loadables a core holds at a time; None where no rule says so.
        free_batch: whether the batch is free: it was taken to be 1, as a profile must fix it.
        parts_without_guesses: how many subgraphs there are where the DLA runs no node that only a guess puts there.
        rewritable: first outputs of the fallbacks that `lint --fix Q030` rewrites.
        has_pairs: whether the model has Q/DQ.
    """

    platform: Platform
    version: TrtVersion
    verdicts: tuple[DlaAssignment, ...]
    subgraphs: Subgraphs = field(default_factory=Subgraphs)
    most: Limit | None = None
    free_batch: bool = False
    parts_without_guesses: int = 0
    rewritable: frozenset[str] = frozenset()
    has_pairs: bool = False

    @property
    def guessed(self) -> tuple[DlaAssignment, ...]:
        """The nodes of which no document says where they run."""
        return tuple(one for one in self.verdicts if one.status == GUESS)

    def guesses(self) -> str:
        """Which verdicts rest on guesses, by rule, and what the graph is without them; "" where none does."""
        if not self.guessed:
            return ""
        devices: dict[str, dict[str, list[str]]] = {}
        for one in self.guessed:
            for rule in one.guessed_rules[:1]:
                devices.setdefault(one.device, {}).setdefault(rule, []).append(one.op)
        named = {
            device: ", ".join(f"{len(ops)} {' and '.join(sorted(set(ops)))} (rule {rule})" for rule, ops in of.items())
            for device, of in devices.items()
        }
        parts = counted(self.parts_without_guesses, "subgraph")
        there = f"{named['dla']} on the DLA, {parts} if it does not run them" if "dla" in named else ""
        back = f"{named['gpu']} on the GPU" if "gpu" in named else ""
        return f"by a guess, as no document at hand says it: {'; '.join(filter(None, [there, back]))}"

    @property
    def fallbacks(self) -> tuple[DlaAssignment, ...]:
        """The nodes that run on the GPU."""
        return tuple(one for one in self.verdicts if one.device == "gpu")

    @property
    def on_dla(self) -> tuple[DlaAssignment, ...]:
        """The nodes that run on the DLA."""
        return tuple(one for one in self.verdicts if one.device == "dla")

    @property
    def too_many(self) -> bool:
        """Whether there are more subgraphs than a core holds at a time."""
        return self.most is not None and len(self.subgraphs.members) > self.most.most

    @property
    def at_most_on_dla(self) -> int:
        """The most nodes that run on the DLA at a time: those of the largest subgraphs that a core holds."""
        sizes = sorted((len(part) for part in self.subgraphs.members), reverse=True)
        return sum(sizes if self.most is None else sizes[: self.most.most])

    def overflow(self) -> list[str]:
        """What more subgraphs than a core holds mean, and what cuts the graph into so many; empty where they fit."""
        if not self.too_many or self.most is None:
            return []
        parts, most = len(self.subgraphs.members), self.most.most
        core = f"a DLA core of {self.platform.capitalize()} holds {most} of them"
        kept = f"at most {self.at_most_on_dla} of the {len(self.on_dla)} nodes that it could run are on the DLA then"
        text = f"{parts} DLA subgraphs, and {core}: the build stops, or TensorRT runs the rest on the GPU; {kept}"
        cuts = cut_places(self)
        cut = f"the graph is cut by {cuts}: {self._lint(self.platform)} says what can be done"
        return [text, *([cut] if cuts else []), *self.rewrites()]

    def rewrites(self) -> list[str]:
        """The command that writes fallbacks as what the DLA runs; none where it finds nothing."""
        if not self.rewritable:
            return []
        what = f"{len(self.rewritable)} of the nodes on the GPU (channel shuffles, Slices, Resizes to smaller maps)"
        fix = f"{self._lint(self.platform)} --fix Q030 -o NEW"
        return [f"before Q/DQ or a cache, {fix} writes {what} as what the DLA runs"]

    def _lint(self, platform: Platform) -> str:
        return f"qdqtool lint MODEL --target dla --trt-version {self.version.text} --platform {platform}"

    def summary(self) -> list[str]:
        """Whether the DLA is for this graph: what it runs, what stands against it, and what of that is a guess."""
        parts, total = len(self.subgraphs.members), len(self.on_dla) + len(self.fallbacks)
        room = "" if self.most is None else f" (a core holds {self.most.most})"
        whose = f"DLA of {self.platform.capitalize()}, TensorRT {self.version.text}, by the rules"
        first = f"{whose}: runs {len(self.on_dla)} of {counted(total, 'node')} in {counted(parts, 'subgraph')}{room}"
        others = [one for one in platforms_of(self.version) if one != self.platform]
        lints = {one.capitalize(): self._lint(one) for one in others}
        boards = [f"{one} runs this version, too: {lint} says what its DLA runs" for one, lint in lints.items()]
        boards += [self.guesses()] if self.guessed else []
        if not self.fallbacks:
            return [first, "no node falls back to the GPU", *boards]
        ops = Counter(one.op for one in self.fallbacks).most_common(_OPS)
        listed = ", ".join(f"{count} {op}" for op, count in ops)
        more = "; too many subgraphs: some will run on the GPU, or the build stops" if self.too_many else ""
        rewrites = [] if self.too_many else self.rewrites()  # else the warning has them
        return [first, f"on the GPU: {listed}{more}; {self._lint(self.platform)} says why", *rewrites, *boards]

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        return {
            "platform": self.platform,
            "trt_version": self.version.text,
            "nodes": [one.to_json() for one in self.verdicts],
            "free_batch": self.free_batch,
            "subgraphs": len(self.subgraphs.members),
            "loadables": None if self.most is None else self.most.most,
            "savings": [{"nodes": list(one.nodes), "subgraphs": one.left} for one in self.subgraphs.savings],
            "guessed": len(self.guessed),
            "subgraphs_without_guesses": self.parts_without_guesses,
        }


def cut_places(report: DlaReport) -> str:
    """The groups of operators on the GPU that cut a graph, the most frequent first, with the first node of each."""
    of = {one.node: one for one in report.verdicts}
    groups: dict[str, list[str]] = {}
    for saving in report.subgraphs.savings:
        ops = [of[key].op for key in saving.nodes]
        listed = ", ".join(ops[:_OPS]) + (f" and {len(ops) - _OPS} more" if ops[_OPS:] else "")
        groups.setdefault(listed, []).append(of[saving.nodes[0]].name)
    most = sorted(groups.items(), key=lambda one: -len(one[1]))[:_KINDS]
    return "; ".join(f"{ops} ({counted(len(nodes), 'place')}, such as {nodes[0]})" for ops, nodes in most)


def dla_findings(
    view: GraphView,
    version: TrtVersion,
    platform: Platform | None = None,
    floats: Collection[str] = (),
    float32: Collection[str] = (),
    rewritable: Collection[str] | None = None,
) -> DlaReport:
    """Say of each node whether the DLA runs it, by the rules of a version and platform.

    The main graph only. Q/DQ pairs are seen through: up to TensorRT 10.7 the DLA gets the model that `peel` gives back,
    and a cache; from 11.4.1 pairs are the types of the tensors.

    Args:
        view: of the model in FP32.
        version: whose rules hold.
        platform: whose DLA; None for that which the version is mostly for.
        floats: first outputs of the weighted operators that do not multiply INT8.
        float32: those of the operators that the file has in FP32 (`in_float32`); rules before 11.4.1 do not read them.
        rewritable: what `rewritable_nodes` finds in the model without pairs; None where `view` has none.

    Raises:
        QdqError: a version without a DLA, or a platform that it does not know.
    """
    require_dla_model(version)
    rules = load_dla_rules(version, platform or usual_platform(version))
    free = any(known_shapes(view).get(name, (1,))[:1] == (None,) for name in view.inputs)
    shapes = _batch_of_one(sample_shapes(view)) if free else known_shapes(view)
    judge = _Judge(view, rules, shapes, frozenset(floats), frozenset(float32))
    verdicts = [judge.verdict(node) for node in view.nodes]
    parts = find_subgraphs(view, {one.node: one.device for one in verdicts})
    sure = {one.node: "gpu" if one.device == "dla" and one.status == GUESS else one.device for one in verdicts}
    number = {key: index for index, members in enumerate(parts.members, 1) for key in members}
    placed = tuple(replace(one, subgraph=number.get(one.node, 0)) for one in verdicts)
    most = next((limit for limit in rules.limits if limit.check in _GRAPH_CHECKS), None)
    paired = bool(view.pairs)
    report = DlaReport(
        rules.platform, version, placed, parts, most, free, count_subgraphs(view, sure), has_pairs=paired
    )
    if not report.fallbacks:
        return report
    known = rewritable_nodes(view) if rewritable is None else rewritable
    return replace(report, rewritable=frozenset(one.node for one in report.fallbacks if one.node in known))


def fixable_nodes(model: Model, options: PlanOptions) -> frozenset[str]:
    """What `lint --fix Q030` would rewrite for a DLA in a model that is about to get pairs; none for another target."""
    asked = options.target == "dla" and options.trt_version is not None
    return rewritable_nodes(model.view) if asked else frozenset()


def on_dla(
    model: Model, plan: Plan, options: PlanOptions, fixable: Collection[str], float32: Collection[str] | None
) -> DlaReport | None:
    """What the DLA runs of a model with the pairs of a plan; None for another target, and where no version is named.

    Args:
        model: with Q/DQ, in FP32.
        plan: what was placed.
        options: the target and its version.
        fixable: what `fixable_nodes` gave before.
        float32: first outputs of what stays FP32 in the file; None where no types were chosen.
    """
    version = options.trt_version
    if options.target != "dla" or version is None:
        return None
    weighted = {node.key for node in model.view.nodes if weight_index(model.view, node) is not None}
    floats = weighted & set(plan.float_nodes)
    kept = in_float32(model, version) if float32 is None else float32
    return dla_findings(model.view, version, floats=floats, float32=kept, rewritable=fixable)


def in_float32(model: Model, version: TrtVersion) -> frozenset[str]:
    """First outputs, as the FP32 form names them, of the operators that a file with pairs or halves has in FP32.

    None of a model with neither, whose types are still to come, and none where the builder chooses the types.
    """
    typed = is_typed(model)
    if not version.has_typed_dla or not (typed or model.view.pairs):
        return frozenset()
    types, names = infer_types(model.proto).types, widen_named(model).names if typed else {}
    found = (node.key for node in model.view.nodes if computes_float32(model.view, node, types))
    return frozenset(names.get(key, key) for key in found)


def rewritable_nodes(view: GraphView) -> frozenset[str]:
    """First outputs of what `lint --fix Q030` can rewrite: shuffles and Slices of channels, Resizes that are poolings.

    Pairs hide them: `view` is of the model without.
    """
    floats = dict.fromkeys(_batch_of_one(sample_shapes(view)), TensorProto.FLOAT)
    chosen = (*find_channel_selections(view, floats), *find_channel_slices(view, floats))
    shuffled = (node for one in chosen for node in one.nodes)
    pooled = (one.node for one in find_pooled_resizes(view, floats))
    return frozenset(node.key for node in (*shuffled, *pooled))


def _batch_of_one(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Shapes with 1 for a free first dimension: what the profile of a network with a free batch fixes."""
    return {name: (1, *shape[1:]) if shape[:1] == (None,) else shape for name, shape in shapes.items()}


class _Judge:
    """Looks at one node after the other; knows which tensors are constant once sizes are."""

    def __init__(
        self,
        view: GraphView,
        rules: DlaRules,
        shapes: Mapping[str, Shape],
        floats: Collection[str],
        float32: Collection[str],
    ) -> None:
        self._view, self._rules, self._shapes, self._floats, self._float32 = view, rules, shapes, floats, float32
        self._layers = RuleIndex(rules.layers, rules)
        self._guessed_elsewhere = RuleIndex(rules.guessed_elsewhere, rules)
        named = [limit for limit in rules.limits if limit.check not in _GRAPH_CHECKS]
        self._limits = [(limit, RuleIndex([limit], rules)) for limit in named]
        self._nothing = frozenset(rules.sets["dla-folded"])
        self._known = self._known_sizes()

    def _known_sizes(self) -> frozenset[str]:
        """Tensors that follow from fixed shapes and constants alone: TensorRT computes them while it builds."""

        def has_fixed_size(node: Node) -> bool:
            return gives_sizes(node) and None not in (self._shapes.get(node.inputs[0]) or (None,))

        return frozenset(made_of_sizes(self._view, has_fixed_size, constants=True))

    def verdict(self, node: Node) -> DlaAssignment:
        """Where a node runs."""
        if node.op in self._nothing or node.key in self._known or self._view.is_constant(node.key):
            return DlaAssignment(node.key, node.name, node.op, "none")
        layer = self._layers.first(self._view, node)
        reasons = tuple(self._reasons(node, has_layer=layer is not None))
        if reasons or layer is None:
            status = GUESS if all(one.status == GUESS for one in reasons) else _DOCUMENTED
            return DlaAssignment(node.key, node.name, node.op, "gpu", reasons, status=status)
        return DlaAssignment(node.key, node.name, node.op, "dla", layer=layer.name, status=layer.status)

    def _reasons(self, node: Node, *, has_layer: bool) -> list[Reason]:
        int8 = weight_index(self._view, node) is None or node.key not in self._floats
        place = NodeContext(self._view, node, self._shapes, int8, node.key in self._float32)
        other = None if has_layer else self._guessed_elsewhere.first(self._view, node)
        found, is_said = list[Reason](), False  # whether a limit says that it has none
        where = f"on {self._rules.platform.capitalize()} with this version"
        for limit, named in self._limits:
            if (limit.check == "never" or has_layer or other) and (
                not limit.steps or named.first(self._view, node) is not None
            ):
                wrong = outside(check_named(limit.check)(place), limit.least, limit.most)
                if wrong is not None:
                    found.append(Reason(limit.name, _sentence(limit, wrong), limit.instead, limit.status))
                    is_said = is_said or limit.check == "never"
        if other is not None and not is_said:
            found.insert(0, Reason(other.name, f"the DLA is taken to have no {node.op} {where}", status=GUESS))
        if has_layer or found:
            return found
        return [Reason(NO_LAYER, f"the DLA has no {node.op} {where}")]


def _sentence(limit: Limit, wrong: list[float]) -> str:
    """What the check says, and the numbers that lie outside."""
    text = sentence_of(limit.check)
    text = text[:1].lower() + text[1:] if not text.startswith("The DLA") else "the" + text[3:]
    if not wrong:
        return text
    shown = ", ".join(f"{number:g}" if number % 1 else f"{number:.0f}" for number in dict.fromkeys(wrong))
    takes = "it takes whole numbers of" if any(number % 1 for number in wrong) else "it takes"
    return f"{text} ({shown}; {takes} {limit.least} to {limit.most})"
