# SPDX-License-Identifier: Apache-2.0
"""The check of builds that are known to compute wrongly. Which, and what is known of them: rules/wrong_builds.toml."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from qdqtool.decisions import Decisions
from qdqtool.graph.shapes import known_shapes
from qdqtool.graph.view import GraphView, Node, attribute
from qdqtool.graph.weighted import weight_dims
from qdqtool.linting.checks import CheckFault, check
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext
from qdqtool.match.attention import find_attentions
from qdqtool.match.flow import value_names
from qdqtool.rule_files import choice, common_words, rules_folder
from qdqtool.rulebook import load_rules
from qdqtool.trtversion import TrtVersion, in_range

NOT_KNOWN = "not-known"
_FAR = 6  # operators that a walk passes at most
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Tanh"})
_TOKENS = frozenset({"Reshape", "Transpose"})


@check("Q063", "wrong-build", "warning", targets=("gpu",))
def wrong_build(context: LintContext) -> Iterator[CheckFault]:
    """The TensorRT that was asked for is known to build such a model wrongly: it computes something else, in silence.

    Users reported these builds, and nothing in the model is wrong. Each has a row with its links in
    rules/wrong_builds.toml, which says what is not known, too. Where the cause is known, the pattern is that of the
    cause, else that of the reported model: other models with it may be built right. A note where the pattern is wider
    than the report.
    """
    for place, row in wrong_builds_in(context, half=context.has_halves or not context.reads_types):
        severity = cast("Severity", row.severity)
        yield CheckFault(place, wrong_build_text(row, context.version.text), row.todo, severity=severity)


def wrong_builds_in(context: LintContext, *, half: bool) -> list[tuple[str, WrongBuild]]:
    """Where a model holds the pattern of a build that is known to go wrong with the version, and its row."""
    rows = [row for row in load_wrong_builds() if row.holds_for(context.version) and (half or not row.half)]
    found = []
    for row in rows:
        place = PATTERNS[row.pattern](context.view)
        if place:
            found.append((place, row))
    return found


def wrong_build_text(row: WrongBuild, version: str) -> str:
    """What is known of a build, what is not, and the source."""
    return f"known of TensorRT {version}: {row.why}; not known: {row.unknown} ({row.see})"


def _grid_sample_mode(view: GraphView) -> str:
    modes = ("linear", "cubic")
    return _first(node for node in view.every if node.op == "GridSample" and attribute(node, "mode") in modes)


def _deformable_attention(view: GraphView) -> str:
    """The samples of several feature maps, joined."""
    for node in view.nodes:
        if node.op == "Concat":
            samples = [_behind(view, name, _TOKENS | {"Unsqueeze", "Flatten"}) for name in node.inputs]
            made = [one for one in samples if one is not None and one.op == "GridSample"]
            if len(made) > 1:
                return made[0].name
    return ""


def _dense_vit_of_14(view: GraphView) -> str:
    """DINOv2 with patches of 14 x 14, and what makes an image of its tokens."""
    if not any(node.op in ("Resize", "ConvTranspose") for node in view.nodes) or not _attentions(view):
        return ""
    return _first(node for node in view.nodes if _strides(node) == [14, 14] and _fills_strides(view, node))


def _convolutional_attention_and_top_k(view: GraphView) -> str:
    ops = {node.op for node in view.nodes}
    others = ops & {"GridSample", "LayerNormalization", "ReduceMean"}
    return "" if "TopK" not in ops or "Conv" not in ops or others else next(iter(_attentions(view)), "")


def _tanh_silu_and_residual(view: GraphView) -> str:
    """An Add of what a convolution and an activation with a Tanh make, and of what a Concat reads, too."""
    for node in view.nodes:
        for made, other in (node.inputs[:2], node.inputs[1::-1]) if node.op == "Add" and len(node.inputs) == 2 else ():
            joined = any(use.node.op == "Concat" for use in view.consumers(other))
            if joined and _is_tanh_of_convolution(view, made):
                return node.name
    return ""


def _is_tanh_of_convolution(view: GraphView, name: str) -> bool:
    reached, ops, steps = [name], set[str](), 0
    while reached and steps < 2 * _FAR:
        steps += 1
        node = view.producer(reached.pop())
        if node is not None:
            ops.add(node.op)
            reached += [one for one in node.inputs if node.op in _ARITHMETIC and not view.is_constant(one)]
    return {"Tanh", "Conv"} <= ops


def _strided_tokens_and_a_batch(view: GraphView) -> str:
    """Keys and values of a convolution over tokens that strides by its kernel, and a batch that is not 1."""
    shapes = known_shapes(view)
    batches = [axes[0] for name in view.inputs if (axes := shapes.get(name)) and len(axes) > 1]
    if not batches or batches[0] == 1 or not _attentions(view):
        return ""
    strided = [node for node in view.nodes if max(_strides(node), default=1) > 1 and _fills_strides(view, node)]
    makers = [view.producer(node.inputs[0]) for node in strided]
    return next((one.name for one, by in zip(strided, makers, strict=True) if by is not None and by.op in _TOKENS), "")


def _pair_before_transpose_and_slice(view: GraphView) -> str:
    for name in view.pairs:
        ops, reached = set[str](), [name]
        for _ in range(_FAR):
            uses = view.consumers(reached[-1])
            if len(uses) != 1 or uses[0].node.op not in _TOKENS | {"Slice", "Split"}:
                break
            ops.add(uses[0].node.op)
            reached.append(uses[0].node.key)
        if "Transpose" in ops and ops & {"Slice", "Split"} and not view.is_constant(name):
            return name
    return ""


PATTERNS: Mapping[str, Callable[[GraphView], str]] = {
    "grid-sample-mode": _grid_sample_mode,
    "deformable-attention": _deformable_attention,
    "dense-vit-of-14": _dense_vit_of_14,
    "convolutional-attention-and-top-k": _convolutional_attention_and_top_k,
    "tanh-silu-and-residual": _tanh_silu_and_residual,
    "strided-tokens-and-a-batch": _strided_tokens_and_a_batch,
    "pair-before-transpose-and-slice": _pair_before_transpose_and_slice,
    NOT_KNOWN: lambda view: "",
}


def _first(nodes: Iterator[Node]) -> str:
    node = next(nodes, None)
    return "" if node is None else node.name


def _strides(node: Node) -> list[int]:
    return cast("list[int]", attribute(node, "strides", [])) if node.op == "Conv" else []


def _fills_strides(view: GraphView, node: Node) -> bool:
    return _strides(node) == list(weight_dims(view, node.inputs[1]))[2:]


def _attentions(view: GraphView) -> list[str]:
    return [one.name for one in find_attentions(view, load_rules("gpu"), "int8", Decisions())]


def _behind(view: GraphView, name: str, movers: frozenset[str]) -> Node | None:
    """What makes a tensor, operators that only give it another form left out."""
    for _ in range(_FAR):
        node = view.producer(name)
        if node is None or node.op not in movers:
            return node
        name = value_names(node)[0]
    return None


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class WrongBuild:
    """One build that is known to compute wrongly, or to fail.

    Attributes:
        name: of the row.
        pattern: what a model must hold; "not-known" for what is found in none.
        trt: the range of versions.
        severity: warning where the pattern is that of the reports, note where it is wider.
        half: whether only FP16 is concerned.
        why: what goes wrong, without the version.
        unknown: what is not documented and was not tried.
        todo: what to do.
        see: the source.
    """

    name: str
    pattern: str
    trt: str
    severity: str
    half: bool
    why: str
    unknown: str
    todo: str
    see: str

    def holds_for(self, version: TrtVersion) -> bool:
        """Whether a version is among those of the row."""
        return in_range(version, self.trt)


@functools.cache
def load_wrong_builds() -> tuple[WrongBuild, ...]:
    """The rows of this installation.

    Raises:
        QdqError: a row that is not of the schema, named.
    """
    path = rules_folder() / "wrong_builds.toml"
    with path.open("rb") as file:
        entries = tomllib.load(file)["build"]
    asked = frozenset({"pattern", "trt", "severity", "unknown", "todo"})
    found = []
    for entry in entries:
        words = common_words(path, entry, asked, frozenset({"types"}))
        severity = choice(path, entry, "severity", ("warning", "note"))
        half = "types" in entry and choice(path, entry, "types", ("half",)) == "half"
        texts = (words["why"], entry["unknown"], entry["todo"], words["see"])
        found.append(WrongBuild(words["name"], entry["pattern"], words["trt"], severity, half, *texts))
    return tuple(found)
