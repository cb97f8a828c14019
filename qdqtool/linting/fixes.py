# SPDX-License-Identifier: Apache-2.0
"""The repairs that are safe: pairs that stand wrong go, scales that must agree do, names become usable.

No repair changes what the float function computes, or makes up a scale. Which places are wrong, the checks say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdqtool.cache.sanitize import sanitized
from qdqtool.display import counted
from qdqtool.errors import QdqError
from qdqtool.formats import INT8
from qdqtool.graph.edit import Editor
from qdqtool.graph.importable import ends_empty
from qdqtool.graph.opset_lower import lower, opset_beyond
from qdqtool.graph.order import read_names
from qdqtool.graph.shapes import shapes_of
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE, GraphView, Node, Pair, Use
from qdqtool.linting.check_placement import decode_reads, idle_pairs, residual_reads, shape_reads, split_reads
from qdqtool.linting.check_scales import is_cached, unequal_classes
from qdqtool.linting.checks import Check, check_named
from qdqtool.linting.finding import Finding
from qdqtool.linting.lint_context import LintContext
from qdqtool.passes.channel_selection import select_by_convolutions
from qdqtool.passes.dead_channels import repair_dead_channels
from qdqtool.passes.fake_quantization import write_pairs
from qdqtool.passes.mask_values import MASK, rewrite_masks
from qdqtool.passes.pooled_resize import pool_resizes
from qdqtool.passes.rename_tensors import rename_tensors, tensor_names

# A repair edits the graph of a context and says what it did; what it is given can be repaired.
Repair = Callable[[LintContext, Sequence[Finding]], str]
# These change names that callers use, the opset of the file, operators, or what a row of attention gives that is masked
# whole: `--fix` does them only by their code.
BY_CODE_ONLY = frozenset({"Q014", "Q017", "Q030", "Q061"})
# These edit the file whatever its types are; the others edit graphs in FP32.
OF_ANY_TYPES = frozenset({"Q010", "Q017", "Q018", "Q060", "Q061"})
_ROUNDS = 8  # one repair may bring another's turn: a pair after a pair


@dataclass(frozen=True)
class Repaired:
    """What repairs did: a sentence for each, and old name -> new name of tensors."""

    notes: tuple[str, ...]
    renamed: Mapping[str, str]


def repair(context: LintContext, checks: Iterable[Check], codes: Sequence[str]) -> Repaired:
    """Repair a model in place.

    Raises:
        QdqError: a code that no check has or that no repair is known for.
    """
    wanted = _wanted(checks, codes)
    proto = context.proto
    before = tensor_names(proto)
    notes: list[str] = []
    for _ in range(_ROUNDS):
        count = len(notes)
        for one in wanted:
            note = _repair_one(context, one)
            if note:
                notes.append(note)
                context = context.again()
        if len(notes) == count:
            break
    now = set(tensor_names(proto))
    return Repaired(tuple(notes), {old: new for old, new in sanitized(before).items() if new in now})


def _wanted(checks: Iterable[Check], codes: Sequence[str]) -> list[Check]:
    if codes == ("all",):
        return [one for one in checks if one.code in REPAIRS and one.code not in BY_CODE_ONLY]
    for code in codes:
        check_named(code)
        if code not in REPAIRS:
            raise QdqError(code, "has no safe repair", f"those that have: {', '.join(sorted(REPAIRS))}")
    return [check_named(code) for code in dict.fromkeys(codes)]


def _repair_one(context: LintContext, check: Check) -> str:
    """What was done about the findings of one check; "" where nothing was, and the context still holds."""
    found = [finding for finding in check.findings(context) if finding.fixable]
    said = REPAIRS[check.code](context, found) if found else ""
    return f"{check.code}: {said}" if said else ""


# ---------------------------------------------------------------------- pairs that go


def _unpair(context: LintContext, uses: Iterable[Use]) -> str:
    """Let reads have the float tensor; pairs that nobody reads any more go, and their constants with them."""
    view, editor = context.view, Editor(context.view)
    number = 0
    for use in uses:
        name = use.node.inputs[use.index]
        if name in context.pair_of:
            editor.reroute(use, view.root(name))
            number += 1
    gone = _drop_unread(view, editor)
    editor.commit()
    _drop_constants(context, {name for node in gone for name in node.inputs})
    return f"{len(gone)} Q/DQ nodes removed, {number} inputs read the float tensor again" if number or gone else ""


def _drop_unread(view: GraphView, editor: Editor) -> list[Node]:
    """Take away Q/DQ nodes, and what lies between them, whose outputs nobody reads; again until none is left."""
    inside = {id(node): node for pairs in view.pairs.values() for pair in pairs for node in pair.nodes}
    inside |= {id(node): node for node in view.every if node.op in (QUANTIZE, DEQUANTIZE)}
    gone: dict[int, Node] = {}
    while True:
        read = {name for node in view.every if id(node) not in gone for name in node.inputs}
        unread = [
            node
            for key, node in inside.items()
            if key not in gone and not any(n in read or n in view.captured or view.is_output(n) for n in node.outputs)
        ]
        if not unread:
            break
        gone.update((id(node), node) for node in unread)
    for node in gone.values():
        editor.remove_node(node)
    return list(gone.values())


def _drop_constants(context: LintContext, names: Collection[str]) -> None:
    """Those of the given scales, zero points and stored integers that nobody reads any more."""
    view = context.model.view
    read = {name for node in view.every for name in read_names(node)}
    read |= set(view.outputs) | {value.name for value in context.proto.graph.input}
    lost = set(names) - read - {""}
    editor = Editor(view)
    editor.drop_initializers(name for name in lost if name in view.initializers)
    for name in sorted(lost):
        node = view.producers.get(name)
        if node is not None and node.op == "Constant":
            editor.remove_node(node)
    editor.commit()


def _join_fusion(context: LintContext, found: Sequence[Finding]) -> str:
    return _unpair(context, [use for _, use, _ in split_reads(context)])


def _free_residual(context: LintContext, found: Sequence[Finding]) -> str:
    return _unpair(context, [fused for _, fused, other in residual_reads(context) if fused is not None and other])


def _free_sizes(context: LintContext, found: Sequence[Finding]) -> str:
    return _unpair(context, [use for _, use in shape_reads(context)])


def _free_decode(context: LintContext, found: Sequence[Finding]) -> str:
    return _unpair(context, [use for _, use, _ in decode_reads(context)])


def _free_heads(context: LintContext, found: Sequence[Finding]) -> str:
    """The float weight for heads, and the float tensor where no INT8 operator reads the pair beside them."""
    names = {finding.where for finding in found}
    keys = {head.key for head in context.heads if head.name in names}
    said = _unpair(context, [Use(node, index) for node, index in context.weighted if node.key in keys])
    now = context.again()
    idle = [pair for _, pair, ends in idle_pairs(now) if any(use.node.key in keys for use in ends)]
    _unpair(now, [use for pair in idle for use in now.through(pair)])
    return f"{said}; these heads are FP32 in the file, and so in its engine" if said and context.reads_types else said


def _free_idle(context: LintContext, found: Sequence[Finding]) -> str:
    names = {finding.where for finding in found}
    pairs = [pair for name, pair, _ in idle_pairs(context) if name in names]
    return _unpair(context, [use for pair in pairs for use in context.through(pair)])


def _drop_loose(context: LintContext, found: Sequence[Finding]) -> str:
    return _unpair(context, [])


# ---------------------------------------------------------------------- values


def _float_bias(context: LintContext, found: Sequence[Finding]) -> str:
    """Float initializers in place of biases after a DQ; pairs on float ones taken away."""
    view, names = context.view, {finding.where for finding in found}
    pairs = [pair for name, pairs in view.pairs.items() if name in names for pair in pairs]
    stored = {pair.tensor: pair for pair in pairs if pair.quantize is None}
    editor, old = Editor(view), set[str]()
    for name, pair in stored.items():
        value = context.constant(name)
        if value is None:
            raise QdqError(name, "an integer bias whose value cannot be read", "fold constants first")
        for node in pair.nodes:
            editor.remove_node(node)
            old.update(node.inputs)
        editor.add_initializer(name, np.ascontiguousarray(value))
    editor.commit()
    _drop_constants(context, old)
    if not stored:
        _unpair(context, [use for pair in pairs for use in context.through(pair)])
    return f"{len(stored or names)} biases are stored in float"


def _as_int8(context: LintContext, found: Sequence[Finding]) -> str:
    """uint8 with the zero point 128 as int8 with 0: q - 128 is the same number."""
    view, names = context.view, {finding.where for finding in found}
    editor, old, zeros = Editor(view), set[str](), dict[tuple[int, ...], str]()
    seen: set[int] = set()
    for pair in (pair for name, pairs in view.pairs.items() if name in names for pair in pairs):
        for node in pair.nodes:
            if id(node) in seen:
                continue
            seen.add(id(node))
            zero = context.constant(node.inputs[2])
            shape = () if zero is None else zero.shape
            if shape not in zeros:
                name = editor.unique_name("qdqtool_zero_point" + "".join(f"_{size}" for size in shape))
                zeros[shape] = editor.add_initializer(name, INT8.zero_point(*shape))
            old.add(node.inputs[2])
            editor.reroute(Use(node, 2), zeros[shape])
        if pair.quantize is None:
            old.add(pair.dequantize.inputs[0])
            _shift_stored(context, editor, pair.dequantize)
    editor.drop_value_info(
        name for node in view.every if id(node) in seen for name in node.outputs if node.op == QUANTIZE
    )
    editor.commit()
    _drop_constants(context, old)
    return f"{len(names)} tensors are int8 in place of uint8, the same numbers"


def _shift_stored(context: LintContext, editor: Editor, node: Node) -> None:
    stored = context.constant(node.inputs[0])
    if stored is None:
        raise QdqError(node.inputs[0], "stored integers that cannot be read", "fold constants first")
    name = editor.unique_name(f"{node.inputs[0]}_int8")
    value = (stored.astype(np.int16) - 128).astype(np.int8)
    editor.reroute(Use(node, 0), editor.add_initializer(name, np.ascontiguousarray(value)))


def _write_pairs(context: LintContext, found: Sequence[Finding]) -> str:
    return "; ".join(write_pairs(context.model, {finding.where for finding in found}))


def _revive(context: LintContext, found: Sequence[Finding]) -> str:
    return "; ".join(repair_dead_channels(context.model.view))


def _equalize(context: LintContext, found: Sequence[Finding]) -> str:
    """The largest scale for all pairs that must have one; classes that overlap are taken together."""
    wanted = {finding.where for finding in found}
    classes = _merged(context, [members for where, _, members in unequal_classes(context) if where in wanted])
    classes = [members for members in classes if not any(map(is_cached, members))]
    editor, old = Editor(context.view), set[str]()
    number = sum(_one_scale(context, editor, members, old) for members in classes)
    editor.commit()
    _drop_constants(context, old)
    return f"{number} Q/DQ nodes now have the largest scale of those around them"


def _merged(context: LintContext, classes: Iterable[list[Pair]]) -> list[list[Pair]]:
    """Classes without overlap, each with all pairs of the Qs that it has."""
    every = [pair for pairs in context.activation_pairs.values() for pair in pairs]
    sets: list[dict[int, Pair]] = []
    for members in classes:
        own = {id(pair.quantize) for pair in members}
        new = {id(pair): pair for pair in (*members, *(pair for pair in every if id(pair.quantize) in own))}
        for one in [one for one in sets if one.keys() & new.keys()]:
            new = one | new
            sets.remove(one)
        sets.append(new)
    return [list(one.values()) for one in sets]


def _one_scale(context: LintContext, editor: Editor, members: list[Pair], old: set[str]) -> int:
    """Give a class its largest scale; how many nodes have another one now. Names of scales left go to `old`."""
    scales = {id(pair): scale for pair in members if (scale := context.scale_of(pair)) is not None and scale.size == 1}
    top = max((pair for pair in members if id(pair) in scales), key=lambda pair: float(scales[id(pair)].reshape(-1)[0]))
    value = scales[id(top)].reshape(())
    others = [pair for pair in members if id(pair) in scales and scales[id(pair)].tobytes() != value.tobytes()]
    if not others:
        return 0
    name = editor.add_initializer(editor.unique_name(f"{top.tensor}_scale"), np.asarray(value))
    changed: set[int] = set()
    for node in (node for pair in others for node in (pair.quantize, pair.dequantize) if node is not None):
        if id(node) not in changed:
            changed.add(id(node))
            old.add(node.inputs[1])
            editor.reroute(Use(node, 1), name)
    return len(changed)


# ---------------------------------------------------------------------- names


def _without_colons(context: LintContext, found: Sequence[Finding]) -> str:
    names = rename_tensors(context.proto, sanitized(tensor_names(context.proto)))
    face = [value.name for value in (*context.proto.graph.input, *context.proto.graph.output)]
    changed = [f"{old} is now {new}" for old, new in names.items() if new in face]
    ends = f"; inputs and outputs: {', '.join(changed)}" if changed else ""
    return f"{len(names)} tensors have '_' instead of ':' in their names, so a cache must be renamed too{ends}"


def _name_nodes(context: LintContext, found: Sequence[Finding]) -> str:
    editor = Editor(context.file_view)
    taken = {node.proto.name for node in context.file_view.every}
    number = 0
    for node in context.file_view.every:
        if not node.proto.name and node.key:
            name = node.key if node.key not in taken else editor.unique_name(node.key)
            taken.add(name)
            editor.name_node(node, name)
            number += 1
    return f"{number} nodes are named after their first outputs" if number else ""


def _drop_empty_inputs(context: LintContext, found: Sequence[Finding]) -> str:
    number = 0
    for view in (context.file_view, *context.file_view.bodies()):
        editor = Editor(view)
        for node in (node for node in view.every if ends_empty(node.proto)):
            editor.cut_inputs(node, max((place for place, name in enumerate(node.inputs, 1) if name), default=0))
            number += 1
    return f"{counted(number, 'operator')} without the empty input at the end"


def _rewrite_masks(context: LintContext, found: Sequence[Finding]) -> str:
    number = rewrite_masks(context.model.view, {finding.where for finding in found})
    what = f"{counted(number, 'mask constant')} of {MASK:g}"
    return f"{what}: the same Softmax in rows with an unmasked key, 1/n in a row that is masked whole"


def _lower(context: LintContext, found: Sequence[Finding]) -> str:
    highest = opset_beyond(context.proto, context.version)
    if highest is None:
        return ""
    done = lower(context.model, highest, found[0].where)
    return "" if done is None else done.note


def _write_for_dla(context: LintContext, found: Sequence[Finding]) -> str:
    """Resizes that make maps smaller as poolings, then channel shuffles and Slices of channels as convolutions."""
    notes = []
    if context.pooled_resizes:
        number = pool_resizes(context.view, context.pooled_resizes)
        notes.append(f"{counted(number, 'Resize')} to smaller maps became as many poolings")
        context = context.again()
    for what in ("channel shuffles", "Slices and Splits of channels"):
        chosen = context.channel_selections if what == "channel shuffles" else context.channel_slices
        if chosen:
            shapes = shapes_of(context.view)
            channels = {one.source: shapes[one.source][1] or 0 for one in chosen}
            number = select_by_convolutions(context.view, chosen, channels)
            notes.append(f"{len(chosen)} {what} are {number} convolutions of 1x1 now, with a constant 0/1 weight")
            context = context.again()
    return "; ".join(notes)


REPAIRS: dict[str, Repair] = {
    "Q001": _join_fusion,
    "Q002": _free_residual,
    "Q003": _drop_loose,
    "Q005": _as_int8,
    "Q006": _float_bias,
    "Q007": _free_sizes,
    "Q008": _free_decode,
    "Q009": _free_heads,
    "Q010": _revive,
    "Q014": _lower,
    "Q017": _without_colons,
    "Q018": _name_nodes,
    "Q020": _equalize,
    "Q030": _write_for_dla,
    "Q026": _free_idle,
    "Q059": _write_pairs,
    "Q060": _drop_empty_inputs,
    "Q061": _rewrite_masks,
}
