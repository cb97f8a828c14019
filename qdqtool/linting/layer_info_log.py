# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine from a verbose build log: as listed at its end, or by replaying the fusions that it tells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.linting.layer_info import EngineInfo, EngineLayer

_VERSION = re.compile(r"TensorRT version: ([\d.]+)|\[TensorRT v(\d+)\]")
_LISTED = re.compile(r"^Layer\((?P<kind>[^)]*)\): (?P<name>.*?), Tactic: (?P<tactic>[^,]*), (?P<ports>.*)$")
_PORT = re.compile(r"\[(\w+)\(")
_PARSED = re.compile(r"Parsing node: (.+) \[(\S+)\]\s*$")
_MADE = re.compile(r"\] (?P<node>.+) \[\S+\] outputs: (?P<outputs>.*)$")
_REGISTERED = re.compile(r"Registering layer: (?P<layer>.+) for ONNX node: (?P<node>.+?)\s*$")
_FUSING = re.compile(r"(?P<by>\w*Fusion\w*): Fusing (?P<first>.+) with (?P<second>.+?)\s*$")
_MERGING = re.compile(r"Merging layers: (?P<names>.+?)\s*$")
_ELIMINATED = re.compile(r"Eliminating concatenation (?P<name>.+?)\s*$")
_RESTART = re.compile(r"After dead-layer removal: \d+ layers")
_NOT_FLOAT = re.compile(r"\[(?:INT32|INT64|BOOL)\]")
_TODO = "give a log of trtexec --verbose that goes on to the fusions, or the JSON of --exportLayerInfo"


def read_log(path: Path, text: str) -> EngineInfo:
    """The layers that a verbose log lists, or, where the build ended before that, those that its fusions leave.

    A replayed layer has no format and no kernel. Operators on integers, which compute shapes, are left out of it.

    Raises:
        QdqError: no log of TensorRT, or one without layers and fusions.
    """
    lines = text.splitlines()
    version = next((found[1] or found[2] for line in lines if (found := _VERSION.search(line))), "")
    listed = _listing(lines)
    if listed:
        return EngineInfo(path, tuple(listed), "listing", version)
    if "[TRT]" not in text:
        raise QdqError(path, "is neither layer information nor a log of TensorRT", _TODO)
    replayed = _replay(lines)
    if not replayed:
        raise QdqError(path, "lists no layer of an engine and no fusion: the log ends before the build", _TODO)
    return EngineInfo(path, tuple(replayed), "fusions", version)


def _listing(lines: Iterable[str]) -> list[EngineLayer]:
    """The first block of `Layer(Type): name, Tactic: ..., in[Half(...)] -> out[Half(...)]` lines."""
    layers: list[EngineLayer] = []
    for line in lines:
        found = _LISTED.match(line)
        if found is None:
            if layers:
                break
            continue
        read, _, written = found["ports"].partition(" -> ")
        layers.append(
            EngineLayer(
                found["name"], found["kind"], inputs=tuple(_PORT.findall(read)), outputs=tuple(_PORT.findall(written))
            )
        )
    return layers


class _Replay:
    """Layers by their present names, each with the ONNX nodes in it, in the order of the parser."""

    def __init__(self) -> None:
        self.parsed: dict[str, str] = {}
        self.integer: set[str] = set()
        self.registered: list[str] = []
        self.layers: dict[str, tuple[str, ...]] = {}

    def restart(self) -> None:
        """Begin again from what was parsed: TensorRT runs its passes a first time to find the tensors to calibrate."""
        self.layers = {
            name: (name,) if name in self.parsed else () for name in self.registered if name not in self.integer
        }

    def join(self, names: list[str], into: list[str]) -> None:
        """Make one layer of several; it is known by every name in `into`, the first of which it is listed by."""
        nodes = tuple(node for name in names for node in self.layers.get(name, ()))
        place = [name for name in names if name in self.layers]
        self.layers = {
            (into[0] if key == place[0] else key): (nodes if key == place[0] else value)
            for key, value in self.layers.items()
            if key == (place[0] if place else "") or key not in names
        }
        if not place:
            self.layers[into[0]] = nodes


def _replay(lines: Iterable[str]) -> list[EngineLayer]:
    state = _Replay()
    for line in lines:
        _note_parsing(state, line)
        if _RESTART.search(line):
            state.restart()
        elif found := _FUSING.search(line):
            state.join([found["first"], found["second"]], [_fused_name(**found.groupdict())])
        elif found := _MERGING.search(line):
            state.join(found["names"].split(" || "), [found["names"]])
        elif found := _ELIMINATED.search(line):
            state.layers.pop(found["name"], None)
    return [EngineLayer(name, parts=nodes) for name, nodes in state.layers.items() if nodes]


def _fused_name(by: str, first: str, second: str) -> str:
    return f"PWN({first}, {second})" if by == "PointWiseFusion" else f"{first} + {second}"


def _note_parsing(state: _Replay, line: str) -> None:
    if found := _PARSED.search(line):
        state.parsed[found[1]] = found[2]
    elif found := _REGISTERED.search(line):
        state.registered.append(found["layer"])
    elif (found := _MADE.search(line)) and _NOT_FLOAT.search(found["outputs"]):
        state.integer.add(found["node"].rpartition("] ")[2])
