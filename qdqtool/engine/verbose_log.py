# SPDX-License-Identifier: Apache-2.0
"""The layers of an engine from a verbose build log: as listed at its end, or by replaying the fusions that it tells.

Time is linear in the log: lines are cut at fixed words, and no pattern here can begin to match in more places than it
can end. Names of tensors and nodes stand in the lines, and those are whatever a model's author wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from qdqtool.engine.built_layers import parse_layers
from qdqtool.engine.layer_info import MAX_RANK, EngineInfo, EngineLayer, LayerTensor
from qdqtool.errors import QdqError

_VERSION = re.compile(r"TensorRT version: ([\d.]+)|\[TensorRT v(\d+)\]")
_LISTED = re.compile(r"^Layer\((?P<kind>[^)]*)\): (?P<name>.*?), Tactic: (?P<tactic>[^,]*), (?P<ports>.*)$")
_PORT = re.compile(r"\[(\w+)\(([^()\[\]]*)\)\]")
_PREFIX = re.compile(r"^(?:\[[^\]]*\]\s*)*(?=Name: )")  # [03/24/2026-12:56:13] [V] [TRT]
_DIGITS = 10  # of the size of a dimension
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
    listed = _listing(lines) or _detailed(text)
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
        layers.append(EngineLayer(found["name"], found["kind"], inputs=_tensors(read), outputs=_tensors(written)))
    return layers


def _detailed(text: str) -> list[EngineLayer]:
    """The layers that Myelin's compiler lists in detail, one `Name: N, LayerType: K, Inputs: [...]` a line."""
    records = (_PREFIX.sub("", line, count=1) for line in text.split("\n") if ", LayerType: " in line)
    return list(parse_layers("\n".join(record.rstrip("\r") for record in records)))


def _tensors(text: str) -> tuple[LayerTensor, ...]:
    """What `x[Half(1,256,180,180)], y[Int8(1,3)]` tells; the name before it may be anything, and is left out."""
    return tuple(LayerTensor(kind, shape=_shape(sizes)) for kind, sizes in _PORT.findall(text))


def _shape(text: str) -> tuple[int, ...] | None:
    """`1,256,180,180`; None where a size is spelled in another way, as that of packed channels is."""
    sizes = text.split(",")
    plain = all(size.isascii() and size.isdigit() and len(size) <= _DIGITS for size in sizes)
    return tuple(map(int, sizes)) if plain and len(sizes) <= MAX_RANK else None


class _FusionReplay:
    """Layers by their present names, each with the ONNX nodes in it, in the order of the parser."""

    def __init__(self) -> None:
        self.parsed: dict[str, str] = {}
        self.integer: set[str] = set()
        self.registered: list[str] = []
        self._places: dict[str, int] = {}
        self._layers: dict[int, EngineLayer] = {}  # a layer that is replaced keeps its place
        self._places_used = 0

    @property
    def layers(self) -> list[EngineLayer]:
        """Those with ONNX nodes in them."""
        return [layer for layer in self._layers.values() if layer.parts]

    def restart(self) -> None:
        """Begin again from what was parsed: TensorRT runs its passes a first time to find the tensors to calibrate."""
        self._places, self._layers = {}, {}
        for name in self.registered:
            if name not in self.integer and name not in self._places:
                self._put(self._new_place(), EngineLayer(name, parts=(name,) if name in self.parsed else ()))

    def join(self, names: list[str], into: str) -> None:
        """Make one layer of several, which stands where the first of them did."""
        places = [place for name in dict.fromkeys(names) if (place := self._places.pop(name, None)) is not None]
        nodes = tuple(node for place in places for node in self._layers[place].parts)
        for place in places[1:]:
            del self._layers[place]
        self.remove(into)
        self._put(places[0] if places else self._new_place(), EngineLayer(into, parts=nodes))

    def remove(self, name: str) -> None:
        """Take a layer away, if it is there."""
        place = self._places.pop(name, None)
        if place is not None:
            del self._layers[place]

    def _new_place(self) -> int:
        self._places_used += 1
        return self._places_used

    def _put(self, place: int, layer: EngineLayer) -> None:
        self._places[layer.name] = place
        self._layers[place] = layer


def _replay(lines: Iterable[str]) -> list[EngineLayer]:
    state = _FusionReplay()
    for line in lines:
        if parsed := _parsed(line):
            state.parsed[parsed[0]] = parsed[1]
        elif layer := _behind(line, "Registering layer: ").rpartition(" for ONNX node: ")[0]:
            state.registered.append(layer)
        elif node := _integer_node(line):
            state.integer.add(node)
        if _RESTART.search(line):
            state.restart()
        elif fused := _fusing(line):
            by, first, second = fused
            state.join([first, second], f"PWN({first}, {second})" if by == "PointWiseFusion" else f"{first} + {second}")
        elif names := _behind(line, "Merging layers: "):
            state.join(names.split(" || "), names)
        elif name := _behind(line, "Eliminating concatenation "):
            state.remove(name)
    return state.layers


def _behind(line: str, words: str) -> str:
    """The rest of a line behind some words, without white space at its end; "" where they do not stand in it."""
    return line.partition(words)[2].rstrip()


def _parsed(line: str) -> tuple[str, str] | None:
    """Name and operator of `Parsing node: <name> [<operator>]`."""
    name, _, op = _behind(line, "Parsing node: ").rpartition(" [")
    return (name, op[:-1]) if name and op.endswith("]") and _is_word(op[:-1]) else None


def _integer_node(line: str) -> str:
    """The node of `[V] [TRT] <name> [<operator>] outputs: [<tensor> -> (<shape>)[INT32]], ...`; "" for any other."""
    made, _, outputs = line.rpartition("] outputs: ")
    node, _, op = made.rpartition(" [")
    return node.rpartition("] ")[2] if _is_word(op) and _NOT_FLOAT.search(outputs) else ""


def _fusing(line: str) -> tuple[str, str, str] | None:
    """The pass and the two layers of `<pass>: Fusing <first> with <second>`."""
    head, _, layers = line.partition(": Fusing ")
    first, _, second = layers.rstrip().rpartition(" with ")
    begin = len(head)
    while begin and (head[begin - 1].isalnum() or head[begin - 1] == "_"):
        begin -= 1
    by = head[begin:]
    return (by, first, second) if first and second and "Fusion" in by else None


def _is_word(text: str) -> bool:
    return bool(text) and not any(letter.isspace() for letter in text)
