# SPDX-License-Identifier: Apache-2.0
"""Detection heads: the last weighted operators before outputs or post-processing, distinguished by what follows.

A *terminal* operator is a weighted one from which some way leads to an output or a marker (NMS, TopK, ...) without
another weighted operator, and after which no weighted operator lies but across a marker. A box head whose box is the
reference of the next decoder layer is terminal too. Its *tail* is what lies on those ways. Source of the definitions:
the survey of TAO, modelopt, NNCF and YOLO tools; see docs/heads.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from qdqtool.graph.channels.parts import Part, PartFollower
from qdqtool.graph.channels.sizes import TensorSizes
from qdqtool.graph.last_layers import LastLayers, is_log_odds, made_of_constants
from qdqtool.graph.validate import nodes_within
from qdqtool.graph.view import GraphView, Node, Use, captured_names, may_have_bodies, node_bodies
from qdqtool.graph.weighted import is_product, weight_index
from qdqtool.rule_kinds import HeadRules

Label = Literal["regression", "score", "mixed", "last layer"]
# What a value on a way is: as the operator gave it, a probability, computed on with anchors or a reference, or features
# that are normalized.
_Kind = Literal["raw", "bounded", "decoded", "normalized"]

# These give sizes, indices or truth values: what they read goes no further as a value.
_CHOICES = frozenset(
    {"ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "NonZero"}
)

_WIDEST_BOX = 4 * 64  # numbers of a box that is given as four distributions


@dataclass(frozen=True)
class Head:
    """One terminal operator.

    Attributes:
        key: first output of the node.
        name: what to call it.
        label: bounded tails are a score; classes of images, tokens or pixels and features are a last layer, which is no
            detection head; anything else, raw logits of a detector among it, is a regression; a tensor that is cut
            into both is mixed and treated as a regression.
        evidence: what the label rests on.
        outputs: the graph outputs and markers that it leads to; where its values are only compared, what does so.
        decoded: whether on some way its values are bounded, or decoded or refined to a box; raw values alone are not.
    """

    key: str
    name: str
    label: Label
    evidence: str
    outputs: tuple[str, ...]
    decoded: bool = False


@dataclass(frozen=True)
class _Way:
    """A tensor that holds values of a terminal operator: where in it, and what has become of them."""

    tensor: str
    kind: _Kind = "raw"
    part: Part = ()


@dataclass
class _Tail:
    """What was met on the ways from one terminal operator: operators, ends and choices by name, how values end.

    `cut`: parts were left behind; `integrated`: the mean of a distribution was taken.
    """

    ops: dict[str, None] = field(default_factory=dict)
    ends: dict[str, None] = field(default_factory=dict)
    kinds: set[_Kind] = field(default_factory=set)
    cut: bool = False
    integrated: bool = False
    chosen: dict[str, None] = field(default_factory=dict)


def find_heads(view: GraphView, rules: HeadRules) -> list[Head]:
    """Every terminal operator with its label, in file order."""
    walk = _HeadWalk(view, rules)
    terminals = [(node, walk.tail(node)) for node in _terminals(view, rules, walk)]
    walk.terminals = [node for node, _ in terminals]
    walk.met = {op for _, tail in terminals for op in tail.ops}
    return [_head(walk, node, tail) for node, tail in terminals]


def outputs_of(node: Node) -> list[str]:
    """The tensors that a node makes."""
    return [name for name in node.outputs if name]


def nodes_behind(
    view: GraphView, starts: Iterable[str], onward: Callable[[Node], Iterable[str]], met: set[int] | None = None
) -> Iterator[Node]:
    """Every node on the ways from tensors towards the outputs, depth first, each once.

    The one walk between heads and outputs: what a caller wants of it, it says by where the ways end.
    """
    met = set() if met is None else met
    stack = [use for name in starts for use in view.consumers(name)]
    while stack:
        node = stack.pop().node
        if id(node) not in met:
            met.add(id(node))
            yield node
            stack.extend(use for name in onward(node) for use in view.consumers(name))


def nodes_before_weights(view: GraphView, values: Callable[[Node], Iterable[str]]) -> set[int]:
    """`id` of every node from which some way leads to a weighted operator, be it inside a body of control flow."""
    found: set[int] = set()
    stack = [node for node in view.nodes if weight_index(view, node) is not None or _holds_products(node)]
    while stack:
        for name in values(stack.pop()):
            source = view.producer(name)
            if source is not None and id(source) not in found:
                found.add(id(source))
                if weight_index(view, source) is None:  # the others are on the stack from the start
                    stack.append(source)
    return found


def _holds_products(node: Node) -> bool:
    """Whether a body of control flow multiplies."""
    bodies = [body for _, body in node_bodies(node)] if may_have_bodies(node) else []
    return any(is_product(Node(proto, 0)) for body in bodies for proto in nodes_within(body.node))


def _plain(op: str) -> str:
    """An operator's name without its domain."""
    return op.rpartition("::")[2]


def _value_inputs(node: Node, rules: HeadRules) -> list[str]:
    """The inputs by which values reach a node's outputs: none of a size or choice, the features of a marker.

    What the bodies of control flow read from outside is an input too.
    """
    op = _plain(node.op)
    if node.op in rules.sizes or node.op in _CHOICES:
        return []
    if op in rules.markers:
        return [node.inputs[rules.features[op]]] if op in rules.features else []
    return _reads(node)


def _reads(node: Node) -> list[str]:
    """What a node reads, what the bodies of control flow read from outside after its own inputs."""
    captured = sorted(captured_names(node)) if may_have_bodies(node) else []
    return [name for name in (*node.inputs, *captured) if name]


def _terminals(view: GraphView, rules: HeadRules, walk: _HeadWalk) -> list[Node]:
    """Weighted operators met first on the ways back from outputs and markers, less those that feed another one.

    A box that is the reference of the next layer feeds that layer, and is refined to the next box: it stays.
    """
    behind = nodes_before_weights(view, lambda node: _value_inputs(node, rules))  # not across a marker or a choice
    found: set[int] = set()
    seen: set[str] = set()
    stack = [view.root(name) for name in view.outputs]
    for node in view.nodes:
        op = _plain(node.op)
        if op in rules.markers:
            stack.extend(view.root(n) for i, n in enumerate(node.inputs) if n and rules.features.get(op) != i)
    while stack:
        name = stack.pop()
        producer = view.producer(name)
        if name in seen or producer is None or view.is_constant(name):
            continue
        seen.add(name)
        if weight_index(view, producer) is not None:
            found.add(id(producer))
        elif producer.op not in rules.sizes:
            stack.extend(map(view.root, _reads(producer)))
    return [node for node in view.nodes if id(node) in found and (id(node) not in behind or _refines(walk, node))]


def _refines(walk: _HeadWalk, node: Node) -> bool:
    """Whether four numbers for each query, or four distributions, are what the next box is refined from."""
    width = walk.sizes.made_by_weight(node) if walk.last.is_over_sequence(node) else None
    if width is None or width % 4 or width > _WIDEST_BOX:
        return False
    tail = walk.tail(node)
    if tail.integrated or (width == 4 and ("decoded" in tail.kinds or {"Log", "Exp"} & set(tail.ops))):
        walk.references.add(node.key)
        return True
    return False


class _HeadWalk:
    """The ways from terminal operators of one graph."""

    def __init__(self, view: GraphView, rules: HeadRules) -> None:
        self.view, self.rules = view, rules
        self.sizes = TensorSizes(view)
        self.parts = PartFollower(self.sizes)
        self.last = LastLayers(view, rules, self.sizes)
        self.terminals: list[Node] = []
        self.met: set[str] = set()  # operators after any terminal
        self.references: set[str] = set()  # boxes that the next layer's are refined from
        self.capturing = [(node, captured_names(node)) for node in view.every if may_have_bodies(node)]
        self.outputs: dict[str, str] = {}
        for name in view.outputs:
            self.outputs.setdefault(view.root(name), name)

    @cached_property
    def boxes(self) -> set[str]:
        """First outputs of the terminals that give four numbers for each query."""
        wide = [node for node in self.terminals if self.sizes.made_by_weight(node) == 4]
        return {node.key for node in wide if self.last.is_over_sequence(node)}

    @cached_property
    def class_maps(self) -> bool:
        """Whether the terminals give classes of pixels, by their width and by what is done with them."""
        return self.last.give_class_maps(self.terminals, self.met)

    def tail(self, start: Node) -> _Tail:
        """Follow the values of an operator to every output and marker, not through another weighted operator."""
        tail = _Tail()
        stack = [_Way(name) for name in start.outputs if name]
        seen = set(stack)
        while stack:
            way = stack.pop()
            if way.tensor in self.outputs:
                tail.ends[self.outputs[way.tensor]] = None
                tail.kinds.add(way.kind)
            steps = [step for use in self.view.consumers(way.tensor) for step in self._step(use, way, tail)]
            fresh = [step for step in dict.fromkeys(steps + self._through_bodies(way)) if step not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return tail

    def _through_bodies(self, way: _Way) -> list[_Way]:
        """Control flow that reads a tensor from inside: what only moves values leaves their kind, all else is raw."""
        ways = []
        for node, captured in self.capturing if way.tensor in self.view.captured else ():
            if way.tensor in captured:
                ops = {proto.op_type for _, body in node_bodies(node) for proto in body.node}
                kind = way.kind if ops <= self.rules.moves | {"Constant"} else "raw"
                ways += [_Way(name, kind) for name in node.outputs if name]
        return ways

    def _step(self, use: Use, way: _Way, tail: _Tail) -> list[_Way]:
        node, op = use.node, _plain(use.node.op)
        if node.op in self.rules.sizes or weight_index(self.view, node) is not None:
            return []
        steps = self.parts.follow(use, way.part)
        if not steps and node.outputs:
            return []
        tail.ops[node.op] = None
        if node.op in _CHOICES:
            tail.chosen[node.name] = None
            return []
        if op in self.rules.markers and self.rules.features.get(op) != use.index:
            tail.ends[node.name] = None
            tail.kinds.add("bounded" if self.rules.scores.get(op) == use.index else way.kind)
            return []
        tail.cut = tail.cut or any(step.cut for step in steps)
        kind = self._kind(use, way.kind)
        tail.integrated = tail.integrated or (way.kind == "bounded" and self._is_integral(node))
        return [_Way(step.tensor, kind, step.part) for step in steps]

    def _kind(self, use: Use, kind: _Kind) -> _Kind:
        """What a value is after one more operator."""
        node = use.node
        if kind in ("raw", "normalized") and node.op in self.rules.bounded:
            return "bounded"
        if kind == "raw" and self._normalizes(node):
            return "normalized"
        if kind == "raw" and node.op == "Add" and is_log_odds(self.view, node.inputs[1 - use.index]):
            return "decoded"
        if kind == "bounded" and is_product(node):
            return "decoded"
        if kind == "bounded" and node.op in self.rules.arithmetic:
            other = self.view.root(node.inputs[1 - use.index])
            if other not in self._computed:
                return "decoded"
            return "raw" if other in self._unbounded else kind
        return kind

    @cached_property
    def _computed(self) -> set[str]:
        """Tensors that a weight had a part in: no anchors, strides, grids made of sizes, inputs of the graph."""
        return self._behind_weights(self.rules.sizes)

    @cached_property
    def _unbounded(self) -> set[str]:
        """Those of them that are neither a probability nor a mask, nor made of such alone."""
        return self._behind_weights(self.rules.sizes | _CHOICES | self.rules.bounded)

    def _behind_weights(self, halts: frozenset[str]) -> set[str]:
        """What is reached from weighted operators without passing an operator of `halts`."""

        def onward(node: Node) -> list[str]:
            return [] if node.op in halts else outputs_of(node)

        weighted = (node for node in self.view.nodes if weight_index(self.view, node) is not None)
        reached = [name for node in weighted for name in outputs_of(node)]
        return {*reached, *(name for node in nodes_behind(self.view, reached, onward) for name in onward(node))}

    def _normalizes(self, node: Node) -> bool:
        """Whether it is a normalization of features, or the last step of one that is written out."""
        if node.op in self.rules.normalizations:
            return True
        return node.op in ("Div", "Mul") and len(node.inputs) == 2 and self.last.is_length(node.inputs[1])

    def _is_integral(self, node: Node) -> bool:
        """Whether it is a product with constant numbers that are no weight: the mean of a distribution."""
        numbers = self.view.root(node.inputs[1]) if is_product(node) else ""
        return bool(numbers) and (self.view.is_constant(numbers) or numbers in self._of_constants)

    @cached_property
    def _of_constants(self) -> set[str]:
        """Tensors that are computed of constants alone, such as the bins of a distribution."""
        return made_of_constants(self.view)


def _head(walk: _HeadWalk, node: Node, tail: _Tail) -> Head:
    label, evidence = _label(walk, node, tail)
    # Four raw numbers whose exponents are taken are a box's: its size is one by that of a reference.
    box = walk.sizes.made_by_weight(node) == 4 and bool({"Log", "Exp"} & set(tail.ops))
    decoded = box or node.key in walk.references or not tail.kinds.isdisjoint(("bounded", "decoded"))
    return Head(node.key, node.name, label, evidence, tuple(tail.ends or tail.chosen), decoded)


def _label(walk: _HeadWalk, node: Node, tail: _Tail) -> tuple[Label, str]:
    ways, alone = ", ".join(tail.ops) or "the output itself", len(walk.terminals) == 1
    if alone and "decoded" not in tail.kinds and walk.last.gives_one_vector(node, tail.ops):
        return "last layer", f"the only head, one vector per image: {ways}"
    if node.key in walk.references:
        return "regression", f"a box that the next layer refines: {ways}"
    if tail.kinds == {"bounded"}:
        if not alone and "Sigmoid" in tail.ops and node.key in walk.boxes:
            return "regression", f"four bounded numbers for each query, a box: {ways}"
        return "score", f"bounded on every path: {ways}"
    if not tail.kinds and tail.chosen:
        return "score", f"only compared: {ways}"
    if "bounded" in tail.kinds and tail.cut:
        return "mixed", f"split into bounded and other parts: {ways}"
    if "decoded" in tail.kinds:
        return "regression", f"decoded after a bounded activation: {ways}"
    if "normalized" in tail.kinds and "bounded" not in tail.kinds:
        return "last layer", f"features after a normalization: {ways}"
    if walk.last.gives_classes_of_tokens(node, tail.ops, walk.boxes):
        return "last layer", f"classes of each token or query: {ways}"
    if walk.class_maps and all(map(walk.last.is_fine, tail.ends)):
        return "last layer", f"classes or features of each pixel: {ways}"
    return "regression", f"unbounded: {ways}"
