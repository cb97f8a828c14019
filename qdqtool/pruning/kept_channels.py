# SPDX-License-Identifier: Apache-2.0
"""Which channels of the original a pruned model still has, noted in its metadata: what it can be held against.

The entry is JSON: axis -> mask of the original's channels -> tensors. A mask is `COUNT:HEX`, its bits most significant
first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.graph.channels.atoms import Int64
from qdqtool.graph.edit import PRUNED, get_metadata, set_metadata
from qdqtool.pruning.cut import Cut

_MOST_AXES, _MOST_CHANNELS = 16, 1 << 24  # a note of another hand may say anything


@dataclass(frozen=True, eq=False)
class KeptChannels:
    """What is left of one axis of a tensor.

    Attributes:
        axis: of the tensor.
        places: the channels of the original that stay, sorted.
        total: how many the original has.
    """

    axis: int
    places: Int64
    total: int


def note_kept(pruned: onnx.ModelProto, cut: Cut) -> None:
    """Write into a pruned model's metadata which channels of each float tensor stay; earlier notes are followed."""
    before = kept_of(pruned)
    noted: dict[int, dict[str, list[str]]] = {}
    left = {name for node in pruned.graph.node for name in node.output}
    made = dict.fromkeys(name for node in cut.channels.view.nodes for name in node.outputs if name in left)
    for name in made:
        kept = cut.kept(name) if not cut.channels.view.is_constant(name) else {}
        first = before.get(name)
        if len(kept) > 1 or (first is not None and kept and first.axis not in kept):
            continue  # along two axes: such a tensor is held against nothing
        axis, places = next(iter(kept.items()), (0, None))
        total = (cut.channels.atoms.shape(name) or ())[axis] or 0 if kept else 0
        if first is not None:
            axis, total = first.axis, first.total
            places = first.places if places is None else first.places[places]
        if places is not None:
            noted.setdefault(axis, {}).setdefault(_mask(places, total), []).append(name)
    set_metadata(pruned, PRUNED, json.dumps(noted, separators=(",", ":")))


def _mask(places: Int64, total: int) -> str:
    bits = np.zeros(total, bool)
    bits[places] = True
    return f"{total}:{np.packbits(bits).tobytes().hex()}"


def kept_of(model: onnx.ModelProto) -> dict[str, KeptChannels]:
    """Tensor -> what is left of it, as `prune` noted; empty for a model without such a note, or one of another hand."""
    try:
        noted = json.loads(get_metadata(model, PRUNED) or "{}")
        return {
            str(name): _parsed(int(axis), mask)
            for axis, masks in noted.items()
            for mask, names in masks.items()
            for name in names
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _parsed(axis: int, mask: str) -> KeptChannels:
    count, _, text = mask.partition(":")
    total = int(count)
    held: npt.NDArray[np.uint8] = np.frombuffer(bytes.fromhex(text), np.uint8)
    if not 0 <= axis < _MOST_AXES or not 0 < total <= _MOST_CHANNELS or len(held) != -(-total // 8):
        raise ValueError(mask)
    return KeptChannels(axis, np.flatnonzero(np.unpackbits(held)[:total]), total)
