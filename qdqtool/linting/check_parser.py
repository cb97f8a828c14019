# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's own parser says of the model, beside what the other checks say of the same place. It asks nobody.

The verdict comes from `tensorrt_rtx/parser.py`; the verb decides whether it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import NodeProto

from qdqtool.engine.onnx_nodes import OnnxNodes
from qdqtool.errors import QdqError
from qdqtool.graph.view import DEQUANTIZE, QUANTIZE
from qdqtool.limited_reading import RULES, read_toml
from qdqtool.linting.checks import CheckFault, check, check_named
from qdqtool.linting.finding import Severity
from qdqtool.linting.lint_context import LintContext
from qdqtool.rule_files import rules_folder
from qdqtool.tensorrt_rtx.parser import ParserMessage

FIRST_WITH_THIS_PARSER = (10, 15)  # TensorRT's own parser from there on says the same


@check("Q050", "parser-refusal", "error")
def parser_refusal(context: LintContext) -> Iterator[CheckFault]:
    """NVIDIA's ONNX parser refuses a node: TensorRT for RTX itself, asked in a child process (`--parser`).

    Its parser is that of TensorRT 10.15 to 11, the newest, which holds where no version is given. For an older one its
    refusals are notes; for TensorRT so is that of an operator which may be a plugin, as TensorRT for RTX brings none.
    It names every operator that it does not know, and of the other faults the first alone. Beside it stand the codes
    of the checks that say the same of that node.
    """
    if context.verdict is None:
        return
    places = _Places(context)
    for refusal in context.verdict.refusals:
        codes, reason = beside(places, refusal)
        agreeing = f" ({' and '.join(codes)} {'say' if len(codes) > 1 else 'says'} the same)" if codes else reason
        text = f"{_name(context)} refuses {places.label(refusal) or 'the model'}: {_plain(refusal)}{agreeing}"
        todo = f"see what {codes[0]} says to do" if codes else "export it in a form that the parser takes"
        yield CheckFault(places.of(refusal), text, todo, severity=_severity(context, refusal))


@check("Q051", "parser-warning", "note")
def parser_warning(context: LintContext) -> Iterator[CheckFault]:
    """NVIDIA's ONNX parser reads something otherwise than the model says, and goes on (`--parser`).

    Such as a uint8 zero point that it takes for int8, or two nodes of one name.
    """
    if context.verdict is None:
        return
    places = _Places(context)
    for warning in context.verdict.warnings:
        label = places.label(warning)
        text = f"{_name(context)} warns{f' at {label}' if label else ''}: {_plain(warning)}"
        yield CheckFault(places.of(warning), text, "see whether the model means it so")


def agreeing_codes(context: LintContext) -> tuple[str, ...]:
    """The codes of the checks that say of the refused node what the parser says; empty where it refuses nothing."""
    places = _Places(context)
    refusals = context.verdict.refusals if context.verdict is not None else ()
    return tuple(dict.fromkeys(code for refusal in refusals for code in beside(places, refusal)[0]))


class _Places:
    """Where a message of the parser belongs in a model, its nodes indexed once."""

    def __init__(self, context: LintContext) -> None:
        self.context = context
        self._nodes = OnnxNodes(context.proto)
        self._tensors: dict[str, str] = {}  # output of a node of a pair -> the pair's tensor
        for tensor, pairs in context.view.pairs.items():
            for node in (node for pair in pairs for node in pair.nodes):
                self._tensors.update(dict.fromkeys(node.outputs, tensor))

    def node(self, message: ParserMessage) -> NodeProto | None:
        """The node that a message is about; None where it names none, or one that is not found."""
        return self._nodes.producer(message.tensor) or self._nodes.find(message.node)

    def label(self, message: ParserMessage) -> str:
        """Operator and name of the node; "" where the message names none."""
        node = self.node(message)
        name = message.tensor or message.node if node is None else node.name or next(iter(node.output), "")
        return f"{message.operator} {name}".strip()

    def of(self, message: ParserMessage) -> str:
        """The tensor that a Q or DQ is about, so that it stands beside our findings; else the node, or the model."""
        node = self.node(message)
        tensor = next((self._tensors[name] for name in node.output if name in self._tensors), "") if node else ""
        where = (node.name or next(iter(node.output), "")) if node else message.node or message.tensor
        return tensor or where or self.context.proto.graph.name or "the model"

    def names(self, message: ParserMessage) -> frozenset[str]:
        """Every name under which a check may tell of the node; none where the node is not known."""
        node = self.node(message)
        if node is None:
            return frozenset()
        producers = [self.context.view.producers.get(name) for name in node.input]
        behind = [one.inputs for one in producers if one is not None and one.op in (QUANTIZE, DEQUANTIZE)]
        near = [node.name, *node.input, *node.output, *(name for names in behind for name in names)]
        return frozenset(name for one in near for name in (one, self._tensors.get(one, "")) if name)


def beside(places: _Places, refusal: ParserMessage) -> tuple[tuple[str, ...], str]:
    """The codes that say the same of a refused node, and where there is none what the table says of that."""
    rule = load_parser_messages().kind_of(refusal.message)
    if rule is None:
        return (), ""
    names = places.names(refusal)
    found = {code: check_named(code).findings(places.context) for code in rule.codes}
    codes = tuple(code for code, faults in found.items() if any(not names or one.where in names for one in faults))
    return codes, f" ({rule.reason.rstrip('.')})" if rule.reason and not codes else ""


def _severity(context: LintContext, refusal: ParserMessage) -> Severity:
    target: str = context.target
    if target == "rtx":
        return "error"
    rule = load_parser_messages().kind_of(refusal.message)
    new = (context.version.major, context.version.minor) >= FIRST_WITH_THIS_PARSER
    return "error" if new and not (rule is not None and rule.plugin) else "note"


def _name(context: LintContext) -> str:
    return f"the parser of TensorRT for RTX {context.verdict.version}" if context.verdict is not None else ""


def _plain(message: ParserMessage) -> str:
    """What it says, without the name of the node before it."""
    return message.message.removeprefix(f"{message.node}: ") if message.node else message.message


@dataclass(frozen=True)
class RefusalRule:
    """One kind of refusal.

    Attributes:
        name: what to call it.
        says: words that all stand in the parser's message.
        codes: checks that find the same.
        reason: why no check does; "" where one does.
        exact: the whole message, where words would be in others too.
        plugin: whether TensorRT may have a plugin for what TensorRT for RTX refuses.
    """

    name: str
    says: tuple[str, ...]
    codes: tuple[str, ...]
    reason: str = ""
    exact: str = ""
    plugin: bool = False

    def covers(self, message: str) -> bool:
        """Whether a message is of this kind."""
        return message == self.exact if self.exact else all(words in message for words in self.says)


@dataclass(frozen=True)
class ParserMessages:
    """The table."""

    refusals: tuple[RefusalRule, ...]
    accepted: Mapping[str, str]

    def kind_of(self, message: str) -> RefusalRule | None:
        """The kind of a refusal; None for one that is not in the table."""
        return next((rule for rule in self.refusals if rule.covers(message)), None)


@functools.cache
def load_parser_messages() -> ParserMessages:
    """The table of this installation.

    Raises:
        QdqError: an entry that has neither codes nor a reason, or no words.
    """
    path = rules_folder() / "parser_messages.toml"
    document = read_toml(path, RULES)
    refusals = tuple(
        RefusalRule(
            entry["name"],
            tuple(entry["says"]),
            tuple(entry["codes"]),
            entry.get("reason", ""),
            entry.get("exact", ""),
            entry.get("plugin", False),
        )
        for entry in document["refusal"]
    )
    for rule in refusals:
        if not (rule.codes or rule.reason) or not (rule.says or rule.exact):
            raise QdqError(path, f"refusal {rule.name!r}: no words, or neither codes nor a reason", "write them")
    return ParserMessages(refusals, {entry["code"]: entry["reason"] for entry in document["accepted"]})
