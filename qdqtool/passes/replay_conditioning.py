# SPDX-License-Identifier: Apache-2.0
"""Repeats in a source model the edits of `condition` that add something: a Mul or Add, a bias, a copy of a constant.

The values come from the model that was made from the source, bit for bit, and the result is byte for byte what
`condition` made of the source. Weights that changed in place are `restore_weights.py`'s, Relu cut at six `relu6.py`'s.
Enters the main graph only, as `condition` does.
"""

from __future__ import annotations

from typing import Any

from qdqtool.errors import QdqError
from qdqtool.graph.edit import CONDITIONED, Editor, count_uses, edits_of, get_metadata, release, set_metadata
from qdqtool.graph.model import Model
from qdqtool.graph.tensors import array_of
from qdqtool.graph.view import GraphView, Node, Use, attribute
from qdqtool.passes.condition.constants import list_as_inputs

_TODO = "give the model that condition read or wrote, or peel without --source"
_BEHIND = {"smooth": "Mul", "shift": "Add"}  # step -> the operator that it puts after a tensor


def replay_additions(source: Model, edited: Model) -> list[str]:
    """Add to a source model what `condition` added to it; and note its edits there, too.

    Raises:
        QdqError: what was conditioned is not there, or is made by another operator in the source.
    """
    edits = edits_of(edited.proto)
    if not edits or edits == edits_of(source.proto):
        return []
    behind = frozenset(str(edit["added"]) for edit in edits if edit["step"] in _BEHIND and edit.get("added"))
    replay = _Replay(source.view, edited.view, behind)
    for edit in edits:
        if edit["step"] in _BEHIND and edit.get("added"):
            replay.put_behind(edit)
    for node in replay.view.every:
        replay.constants(node)
    for edit in edits:
        if edit["step"] == "correct" and edit.get("added"):
            replay.check_bias(edit)
    added = replay.finish()
    list_as_inputs(source.proto)
    set_metadata(source.proto, CONDITIONED, str(get_metadata(edited.proto, CONDITIONED)))
    return added


class _Replay:
    """The edits of one source graph."""

    def __init__(self, view: GraphView, edited: GraphView, behind: frozenset[str]) -> None:
        self.view, self.edited, self.editor, self.behind = view, edited, Editor(view), behind
        self.nodes = {node.key: node for node in view.every}
        self.sources: dict[str, str] = {}  # what an added node gives out -> the tensor of the source that it comes from
        self.added: dict[str, None] = {}
        self.uses = count_uses(view)

    def put_behind(self, edit: dict[str, Any]) -> None:
        """A Mul or an Add after a tensor, read by those that read it in the other model."""
        site, made, op = edit["site"], edit["added"], _BEHIND[edit["step"]]
        if made in self.view.producers:
            return
        node = self.edited.producers.get(made)
        pad = None if node is None else self.edited.producers.get(node.inputs[0])
        pad = pad if pad is not None and pad.op == "Pad" and pad.inputs[0] == site and op == "Add" else None
        source = self.sources.get(site, site)
        here = source in self.view.producers or source in self.view.inputs
        reads = site if pad is None else pad.key
        if not here or node is None or node.op != op or node.inputs[0] != reads or len(node.inputs) != 2:
            what = "which the source lacks" if not here else "which the model does not hold"
            article = "an" if op == "Add" else "a"
            raise QdqError(str(site), f"got {article} {op} from condition, {what}", _TODO)
        producer = self.view.producers.get(source)
        trace = (("rule", edit["step"]), ("origin", "condition"))
        if pad is not None:
            self.editor.add_node("Pad", [site, pad.inputs[1]], reads, beside=producer, after=True, trace=trace)
            self.sources[reads], self.added[pad.inputs[1]] = source, None
        self.editor.add_node(op, [reads, node.inputs[1]], made, beside=producer, after=True, trace=trace)
        self.sources[made], self.added[node.inputs[1]] = source, None
        for reader in self.edited.every:
            for index, name in enumerate(reader.inputs):
                if name == made and not self._is_behind(reader):
                    self._reread(reader, index, source, made)

    def _is_behind(self, reader: Node) -> bool:
        """Whether a node was put after a tensor itself: it is not in the source, and comes with an edit of its own."""
        uses = self.edited.consumers(reader.key) if reader.op == "Pad" else ()
        return bool({reader.key, *(use.node.key for use in uses)} & self.behind) and reader.key not in self.nodes

    def _reread(self, edited: Node, index: int, site: str, made: str) -> None:
        node = self.nodes.get(edited.key)
        if node is None or index >= len(node.inputs) or node.inputs[index] != site:
            raise QdqError(edited.key, f"reads {made} after condition, and not {site} in the source", _TODO)
        self.editor.reroute(Use(node, index), made)
        if attribute(node, "pads") is not None and attribute(edited, "pads") is None:
            self.editor.drop_attribute(node, "pads")

    def constants(self, node: Node) -> None:
        """The constants that `condition` made for this node alone, under the names that it gives."""
        edited = self.edited.producers.get(node.key)
        if edited is None or edited.op != node.op:
            return
        for index, name in enumerate(edited.inputs):
            old = node.inputs[index] if index < len(node.inputs) else ""
            made_here = name.startswith(f"{old}_conditioned" if old else f"{node.key}_bias")
            if name == old or not made_here or name not in self.edited.initializers or name in self.view.initializers:
                continue
            self.editor.set_input(node, index, name)
            self.added[name] = None
            if old:
                release(self.editor, self.uses, old)

    def check_bias(self, edit: dict[str, Any]) -> None:
        """Refuse a source whose operator has no bias where one was added."""
        node, edited = self.nodes.get(edit["site"]), self.edited.producers.get(edit["site"])
        if edited is not None and (node is None or len(node.inputs) < len(edited.inputs)):
            raise QdqError(str(edit["site"]), "got a bias from condition, which the source lacks", _TODO)

    def finish(self) -> list[str]:
        """Put the constants in, in the order in which they were added, and commit."""
        order = [name for name in self.edited.initializers if name in self.added]
        for name in order:
            self.editor.add_initializer(name, array_of(self.edited.initializers[name], self.edited.folder))
        self.editor.commit()
        return [*order, *self.sources]
