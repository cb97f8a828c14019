# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention in a graph: which nodes it is, its sizes, and whether it is built as one quantized kernel.

Rules name the forms (`[[attention]]`): a chain from the product of queries and keys to the product with the values.
INT8 needs a pair on all of queries, keys, what the Softmax gives, values and what comes out; FP8 on what comes out only
where its rule says so. With some of them the kernel falls apart into more layers than float has, so an attention has
all of its pairs or none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from qdqtool.decisions import Decisions
from qdqtool.display import counted
from qdqtool.formats import INT8, number_format
from qdqtool.graph.shape_values import Shape
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node, Use, attribute
from qdqtool.match.fusion_chains import Chain, trie_of
from qdqtool.rule_files import operator_set
from qdqtool.rule_kinds import AttentionForm
from qdqtool.rulebook import RuleBook
from qdqtool.scales import Scale

_SOFTMAX = "Softmax"
_NAMED_SIZES = 4  # sizes of heads that a message lists
_SOFTMAX_SCALE = INT8.scale_of(1.0)  # what a Softmax gives lies in [0, 1]
_UNMEASURED = (
    "auto decides by the loss on --data, which --dry-run and --explain do not measure; --attention int8 quantizes it "
    "without a measurement"
)
_ASKED = "--attention float keeps it in float"
_IN_DECODER = "in a DETR-like decoder, which stays in float; --decoder int8 quantizes it"
_FITS = "one {} kernel, as all of its tensors have pairs"


@dataclass(frozen=True)
class Attention:
    """One attention of a graph, and what was decided about it.

    Attributes:
        rule: of its form.
        nodes: from the first product to the second one.
        weights: the tensor that the Softmax gives; "" where one operator is the whole attention.
        int8: whether it gets its pairs.
        reason: why it does, or does not.
        is_open: whether only a measurement is missing for it to get them.
        points: the tensors on which its pairs stand; known once they are placed.
        output: whether what comes out has one of them.
    """

    rule: str
    nodes: tuple[Node, ...]
    weights: str
    int8: bool = False
    reason: str = ""
    is_open: bool = False
    points: tuple[str, ...] = ()
    output: bool = True

    @property
    def key(self) -> str:
        """What decisions call it: the first output of its second product."""
        return self.nodes[-1].key

    @property
    def name(self) -> str:
        """Its second product by name."""
        return self.nodes[-1].name

    @property
    def operands(self) -> tuple[Use, ...]:
        """Where queries, keys, what the Softmax gives and values are read."""
        first, second = self.nodes[0], self.nodes[-1]
        behind = next(after for node, after in pairwise(self.nodes) if node.key == self.weights)
        return Use(first, 0), Use(first, 1), Use(behind, 0), Use(second, 1)


def find_attentions(
    view: GraphView,
    rules: RuleBook,
    how: str,
    decisions: Decisions,
    floats: Collection[str] = (),
    decoder: Collection[str] = (),
) -> tuple[Attention, ...]:
    """Every attention of a graph in file order, each with what is decided about it.

    Args:
        view: the graph.
        rules: of the target and version.
        how: "int8", "float", or "auto" for what `decisions` say.
        decisions: what was measured.
        floats: keys of attentions that stay in float in this run.
        decoder: first outputs of what computes for each query, in a decoder that stays in float.
    """
    if not rules.attentions or rules.policy.rounds_everything:
        return ()
    trie = trie_of(rules, "attentions")
    chains = [chain for node in view.nodes if (chain := trie.longest(view, node)) is not None]
    forms: dict[str, AttentionForm] = {form.name: form for form in rules.attentions}
    measured, title = decisions.attention or {}, number_format(rules.format).title
    found = []
    for chain in chains:
        form = forms[chain.rule.name]
        made = replace(_attention_of(chain), output=form.output)
        reason = _obstacle(view, chain, form, title, free=how == "int8")
        if not reason and (how == "float" or made.key in floats):
            reason = _ASKED
        if not reason and made.key in decoder:
            reason = _IN_DECODER
        if not reason and how == "auto":
            reason = measured.get(made.key, _UNMEASURED)
        fits = _FITS.format(title)
        found.append(replace(made, int8=not reason, reason=reason or fits, is_open=reason is _UNMEASURED))
    return tuple(found)


def _attention_of(chain: Chain) -> Attention:
    nodes = tuple(node for link in chain.links for node in link.nodes)
    softmax = next((node for node in nodes if node.op == _SOFTMAX), None)
    return Attention(chain.rule.name, nodes, softmax.key if softmax is not None else "")


def _obstacle(view: GraphView, chain: Chain, form: AttentionForm, title: str, *, free: bool) -> str:
    """Why an attention is not built as one kernel of a format, by its form and sizes; "" where it is."""
    made = _attention_of(chain)
    if not form.int8:
        return form.why
    ends = view.is_output(made.key) or made.key in view.captured or not _readers(view, made.key)
    if form.output and ends and made.key not in view.pairs:
        return "no operator after its output leaves room for its last Q/DQ pair"
    shapes = known_shapes(view)
    scores = shapes.get(made.weights, ())
    softmax = next(node for node in made.nodes if node.key == made.weights)
    axis = attribute(softmax, "axis", -1)
    if axis != -1 and (not isinstance(axis, int) or not scores or axis != len(scores) - 1):
        return "its Softmax is not over the last axis"
    found = _sizes(view, made, shapes)
    if found is None:
        return "its Einsum is not a product of queries and keys, or of weights and values, over one axis"
    heads, queries, keys = found
    queries |= {size for size in scores[-2:-1] if size is not None}
    keys |= {size for size in scores[-1:] if size is not None}
    return _size_obstacle(form, title, heads, queries, keys, free=free or (len(scores) > 1 and None not in scores[-2:]))


def _sizes(view: GraphView, made: Attention, shapes: Mapping[str, Shape]) -> tuple[set[int], set[int], set[int]] | None:
    """The sizes of a head and the numbers of queries and of keys, as far as shapes tell them.

    None for a product that is another.
    """
    heads, queries, keys = set[int | None](), set[int | None](), set[int | None]()
    for node, is_second in ((made.nodes[0], False), (made.nodes[-1], True)):
        layout = _layout(node, is_second=is_second)
        if layout is None:
            return None
        for operand, head, token in layout:
            shape = shapes.get(view.root(node.inputs[operand]), ())
            heads.add(_last(shape, head))
            (keys if operand or is_second else queries).add(_last(shape, token))
    known = [{size for size in sizes if size is not None} for sizes in (heads, queries, keys)]
    return known[0], known[1], known[2]


def _layout(node: Node, *, is_second: bool) -> tuple[tuple[int, int, int], ...] | None:
    """Of queries and keys, or of values: the operand, its axis of a head's values, that of tokens, from the last.

    None for an Einsum that is another product. The first one sums over a head's values and gives scores by query and
    key, as `bqhd,bkhd->bhqk`; the second sums over keys, as `bhqk,bkhd->bqhd`.
    """
    if node.op != "Einsum":
        return ((1, 1, 2),) if is_second else ((0, 1, 2), (1, 2, 1))
    terms, _, out = str(attribute(node, "equation", "")).replace(" ", "").partition("->")
    left, _, right = terms.partition(",")
    summed, own = (set(left) & set(right)) - set(out), (set(right) & set(out)) - set(left)
    others = (set(left) & set(out)) - set(right)
    if len(summed) != 1 or len(own) != 1 or len(others) != 1 or "." in terms:
        return None
    (over,), (behind,), (before,) = summed, own, others
    if is_second:
        right_axes = len(right) - right.index(behind), len(right) - right.index(over)
        return ((1, *right_axes),) if left.endswith(before + over) else None
    sides = ((left, before), (right, behind))
    found = tuple(
        (at, len(one) - one.index(over), len(one) - one.index(token)) for at, (one, token) in enumerate(sides)
    )
    return found if out.endswith(before + behind) else None


def _size_obstacle(
    form: AttentionForm, title: str, heads: set[int], queries: set[int], keys: set[int], *, free: bool
) -> str:
    sizes = [str(size) for size in form.head_sizes]
    fitting = f"{sizes[0]}, {sizes[1]} ... {sizes[-1]}" if sizes[_NAMED_SIZES:] else ", ".join(sizes)
    if not heads:
        return f"how many values a head has is not known: {title} needs {fitting}"
    if len(heads) > 1:
        return f"heads of {min(heads)} and {max(heads)} values: {title} needs one size of {fitting}"
    if not heads <= set(form.head_sizes):
        return f"heads of {min(heads)} values: {title} needs {fitting}"
    sides = ("tokens", keys, form.least, form.most), ("queries", queries, form.least_queries, form.most_queries)
    for what, tokens, least, most in sides:
        if tokens and max(tokens) > most:
            return f"{max(tokens)} {what}: {title} takes up to {most}"
        if tokens and min(tokens) < least:
            return f"{counted(min(tokens), 'token')}: {title} needs {least} or more"
    if not free:
        return f"its number of tokens is dynamic, and {title} takes up to {form.most}; --attention int8 quantizes it"
    return ""


def _last(shape: Shape, number: int) -> int | None:
    """The size of an axis counted from the last; None where it is free or the shape unknown."""
    return shape[-number] if len(shape) >= number else None


def _readers(view: GraphView, tensor: str) -> list[Use]:
    """What reads the values of a tensor, not its shape."""
    sizes = operator_set("sizes")
    return [use for use in view.consumers(tensor) if use.node.op not in sizes]


def output_reads(view: GraphView, one: Attention) -> list[Use]:
    """The reads of what an attention gives, which go through its last pair; none where it has none."""
    return _readers(view, one.key) if one.output else []


def with_fixed_weights(scales: Mapping[str, Scale], attentions: Collection[Attention]) -> dict[str, Scale]:
    """The scales, that of what the Softmax of a quantized attention gives being for 1 whatever the data were."""
    fixed = Scale.of(_SOFTMAX_SCALE, origin="bound", method=_SOFTMAX)
    return {**scales, **{one.weights: fixed for one in attentions if one.int8}}
