# SPDX-License-Identifier: Apache-2.0
"""Which operators of a model TensorRT's ONNX parser does not import, and why. No findings and no printing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import onnx

from qdqtool.graph.validate import subgraphs_of
from qdqtool.parser_rules import ParserRules, load_parser_rules
from qdqtool.trtversion import NEWEST, TrtVersion

Verdict = Literal["refused", "own plugin"]
_DEFAULT = ("", "ai.onnx")


@dataclass(frozen=True)
class Foreign:
    """An operator that the parser has no importer for, nor TensorRT a plugin.

    Attributes:
        op: its name, with the domain where that is not the default one.
        nodes: names of its nodes, or their first outputs, in the order of the graph.
        verdict: "refused": TensorRT stops there; "own plugin": unless there is a plugin of one's own.
        reason: a clause that goes on from the operator's name.
        todo: what to do.
    """

    op: str
    nodes: tuple[str, ...]
    verdict: Verdict
    reason: str
    todo: str

    @property
    def counted(self) -> str:
        """The operator and the number of its nodes."""
        return f"{self.op} ({len(self.nodes)} node{'s'[: len(self.nodes) != 1]})"


def foreign_operators(proto: onnx.ModelProto, version: TrtVersion | None) -> list[Foreign]:
    """The operators of a model that TensorRT cannot parse, in the order in which they first stand there.

    Bodies of control flow and of local functions are looked into; a call of a local function is not an operator.
    """
    rules = load_parser_rules()
    called = {(function.domain, function.name) for function in proto.functions}
    verdicts: dict[tuple[str, str], tuple[Verdict, str, str] | None] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for node in _every_node(proto):
        key = node.domain, node.op_type
        if key not in verdicts:
            verdicts[key] = None if key in called else _judge(rules, _domain_of(node), node.op_type, version)
        if verdicts[key] is not None:
            found.setdefault((_domain_of(node), node.op_type), []).append(_name_of(node))
    judged = ((domain, op, nodes, _judge(rules, domain, op, version)) for (domain, op), nodes in found.items())
    return [
        Foreign(f"{domain}::{op}" if domain else op, tuple(nodes), *verdict)
        for domain, op, nodes, verdict in judged
        if verdict is not None
    ]


def parser_warnings(proto: onnx.ModelProto, version: TrtVersion | None) -> tuple[str, ...]:
    """What a verb that leads to TensorRT says of what the parser refuses: at most one sentence for each verdict."""
    rules = load_parser_rules()
    found = foreign_operators(proto, version)
    if version is None:  # the plugin that one version lacks is there with the one that may be meant
        found = [one for one in found if not rules.ships(one.op.rpartition("::")[2])]
    refused = [one.counted for one in found if one.verdict == "refused"]
    plugins = [one.counted for one in found if one.verdict == "own plugin"]
    notes = []
    if refused:
        notes.append(f"TensorRT cannot parse {', '.join(refused)}: qdqtool lint says why")
    notes += empty_input_warnings(proto)
    if plugins:
        notes.append(f"TensorRT needs a plugin of your own for {', '.join(plugins)}")
    return tuple(notes)


def empty_input_warnings(proto: onnx.ModelProto) -> tuple[str, ...]:
    """A sentence on operators that the parser refuses for an empty input at their end; nothing where there are none."""
    found = [node for node in _every_node(proto) if ends_empty(node)]
    if not found:
        return ()
    where = f"{found[0].op_type} {_name_of(found[0])}" + (f" and {len(found) - 1} more" if found[1:] else "")
    return (f"TensorRT's parser refuses the empty last input of {where}: qdqtool lint --fix drops it",)


def ends_empty(node: onnx.NodeProto) -> bool:
    """Whether an operator has an empty optional input at its end for which the parser refuses it."""
    return bool(node.input) and not node.input[-1] and node.op_type in load_parser_rules().counted


def runs_as_plugin(op: str) -> bool:
    """Whether an operator is none that the parser of any version makes layers of: a plugin runs it, on the GPU."""
    return not load_parser_rules().imports(op)


def _every_node(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    stack: list[onnx.GraphProto | onnx.FunctionProto] = [*reversed(proto.functions), proto.graph]
    while stack:
        for node in stack.pop().node:
            yield node
            if node.attribute:
                stack.extend(subgraphs_of(node))


def _domain_of(node: onnx.NodeProto) -> str:
    return "" if node.domain in _DEFAULT else node.domain


def _name_of(node: onnx.NodeProto) -> str:
    return node.name or next(filter(None, node.output), "")


def _judge(rules: ParserRules, domain: str, op: str, version: TrtVersion | None) -> tuple[Verdict, str, str] | None:
    """Verdict, reason and what to do; None where TensorRT knows the operator."""
    if rules.imports(op, version) or rules.ships(op, version or NEWEST):
        return None
    name = f"TensorRT {version.text}" if version is not None else "TensorRT"
    if rules.imports(op):
        there = _list_ranges(rules.operators[op])
        return "refused", f"the parser of {name} does not import it ({there} does)", "export the model without it"
    if rules.ships(op):
        there = _list_ranges(rules.plugins[op])
        lacking = name if version is not None else f"TensorRT {NEWEST.text}"
        return "own plugin", f"{lacking} ships no plugin of that name ({there} does)", "load your own plugin"
    if domain in rules.domains:
        return "refused", f"{name} imports no operator and ships no plugin of that name", rules.domains[domain]
    if not domain and (op in rules.removed or onnx.defs.has(op)):
        return "refused", f"{name} does not import this operator of ONNX", "export the model without it"
    return "own plugin", f"{name} imports no operator and ships no plugin of that name", "load your own plugin"


def _list_ranges(ranges: tuple[str, ...]) -> str:
    """Ranges of versions in words: `>=7.1,<11.0` is `7.1 to before 11.0`."""
    parts = (one.removeprefix(">=").partition(",<") for one in ranges)
    return " or ".join(f"{first} to before {end}" if end else f"{first} or later" for first, _, end in parts)
