# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's own ONNX parser says of a model: accepted or not, and each message with its node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.tensorrt_rtx.installed import RtxLibrary, require_library
from qdqtool.tensorrt_rtx.jobs import run_job

SECONDS = 300.0
_NOISE = ("catchCudaError",)  # says that there is no GPU, beside every fault
_API = "API Usage Error ("
_ASSERTION = "Assertion failed: "
_PLACE = re.compile(r"^(?:\[\d+\] |\w+\.cpp:\d+: )")
_WHERE = re.compile(r" In \w+ at \S+:\d+\)?$")


@dataclass(frozen=True)
class ParserMessage:
    """One message of the parser.

    Attributes:
        kind: "refusal" or "warning".
        code: the parser's error code, such as "INVALID_NODE"; "" for a warning.
        message: the sentence that matters.
        node: name of the node as the parser knows it; "" where it names none. The node itself may have no name or
            share it: `engine/onnx_nodes.py` finds it.
        operator: type of the node.
        tensor: first output of the node; "" where it is unknown.
    """

    kind: Literal["refusal", "warning"]
    code: str
    message: str
    node: str = ""
    operator: str = ""
    tensor: str = ""


@dataclass(frozen=True)
class ParserVerdict:
    """What the parser says of a model: every operator that it does not know, and of the other faults the first alone.

    Attributes:
        accepted: whether it makes a network of the model.
        messages: refusals, then warnings, each once.
        version: of the library.
        network_layers: layers of the network, before the compiler merges any.
    """

    accepted: bool
    messages: tuple[ParserMessage, ...]
    version: str
    network_layers: int

    @property
    def refusals(self) -> tuple[ParserMessage, ...]:
        """Why it is not accepted."""
        return tuple(one for one in self.messages if one.kind == "refusal")

    @property
    def warnings(self) -> tuple[ParserMessage, ...]:
        """What the parser does otherwise than the model says."""
        return tuple(one for one in self.messages if one.kind == "warning")


def parse(source: ModelSource, seconds: float = SECONDS) -> ParserVerdict:
    """Let the parser of TensorRT for RTX read a model, in a child process. No engine is built.

    Args:
        source: a path, a ModelProto, a gs.Graph or a callable.
        seconds: how long it may take.

    Raises:
        MissingPackageError: TensorRT for RTX is not installed.
        QdqError: the model cannot be read; the library crashed or took too long.
    """
    return parse_opened(open_model(source), seconds)


def parse_opened(opened: Model, seconds: float = SECONDS, library: RtxLibrary | None = None) -> ParserVerdict:
    """As `parse`, for a model that is open already."""
    return verdict_of(run_job(library or require_library(), opened, {"action": "parse"}, seconds))


def verdict_of(result: Mapping[str, Any]) -> ParserVerdict:
    """The verdict in a worker's result."""
    messages = [_refusal(error) for error in result["errors"]]
    if not result["accepted"] and not messages:
        reason = next((sentence_of(text) for text in result["log_errors"]), "no output of the graph is left")
        messages.append(ParserMessage("refusal", "", reason))
    messages += [_warning(one) for one in result["warnings"]]
    return ParserVerdict(
        bool(result["accepted"]), tuple(dict.fromkeys(messages)), str(result["version"]), int(result["network_layers"])
    )


def _refusal(error: Mapping[str, Any]) -> ParserMessage:
    return ParserMessage(
        "refusal", error["code"], sentence_of(error["text"]), error["node"], error["operator"], error["tensor"]
    )


def _warning(one: Mapping[str, str]) -> ParserMessage:
    node, _, operator = one["node"].rpartition(" [")
    return ParserMessage("warning", "", sentence_of(one["text"]), node, operator.removesuffix("]"))


def sentence_of(text: str) -> str:
    """The part of a message that says what is wrong, without places in NVIDIA's sources."""
    lines = [line for line in text.splitlines() if line.strip() and not any(word in line for word in _NOISE)]
    line = next((one for one in lines if _API in one or _ASSERTION in one), lines[-1] if lines else "")
    if _API in line:
        line = line.partition(_API)[2]
    elif _ASSERTION in line:
        line = line.partition(_ASSERTION)[2]
    return _WHERE.sub("", _PLACE.sub("", line.strip())).strip()
