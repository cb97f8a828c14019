# SPDX-License-Identifier: Apache-2.0
"""What blocks take, sample by sample: as the float network gives it, and as the blocks before give it in INT8.

Only what later blocks still read is held, of as many samples as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.data.loader import Batch
from qdqtool.graph.model import Model
from qdqtool.training.blocks.block_cuts import Block
from qdqtool.training.shapes import SeenTensor
from qdqtool.training.student import Session, SessionOptions

Array = npt.NDArray[Any]


@dataclass(eq=False)
class BlockSample:
    """One batch on its way through the blocks.

    Attributes:
        exact: tensor -> what the float network gives.
        rounded: the same from the blocks as they are by now.
        places: tensor that a block gives -> how much each of its places counts, of a shape that broadcasts with it;
            see `block_importance`.
    """

    exact: dict[str, Array]
    rounded: dict[str, Array]
    places: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch) -> BlockSample:
        """A batch of the data in front of the first block."""
        return cls(dict(batch), dict(batch))


@dataclass(eq=False)
class BlockSamples:
    """All samples on their way through the blocks.

    Attributes:
        learned: those that are learned from.
        held: those held out, to measure on.
        channels: tensor that a block gives -> how much each of its channels counts, of a shape that broadcasts with it.
            Tensors that are not in it count alike everywhere; see `block_importance`.
    """

    learned: Sequence[BlockSample]
    held: Sequence[BlockSample]
    channels: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    @property
    def every(self) -> list[BlockSample]:
        """Both."""
        return [*self.learned, *self.held]


def fitting_samples(blocks: Sequence[Block], seen: Mapping[str, SeenTensor], memory: int) -> int:
    """How many samples can be held at once, by what passes between blocks: one at least."""
    most = 0
    live: set[str] = set()
    for index, block in enumerate(blocks):
        live.update(block.takes)
        live.update(block.gives)
        most = max(most, sum(_bytes(seen[name]) for name in live))
        live &= {name for later in blocks[index + 1 :] for name in later.takes}
    return max(1, memory // max(1, 2 * most))


def _bytes(tensor: SeenTensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize


def give_exact(block: Block, twin: onnx.ModelProto, samples: Iterable[BlockSample], how: SessionOptions) -> None:
    """Let the float network compute what a block gives."""
    session = Session(Model(twin), block.gives, how)
    for sample in samples:
        sample.exact.update(zip(block.gives, session.run(sample.exact), strict=True))


def give_rounded(block: Block, proto: onnx.ModelProto, samples: Iterable[BlockSample], how: SessionOptions) -> None:
    """Let the block, as it is by now, compute what it gives."""
    session = Session(Model(proto), block.gives, how)
    for sample in samples:
        sample.rounded.update(zip(block.gives, session.run(sample.rounded), strict=True))


def forget(samples: Iterable[BlockSample], needed: Iterable[str]) -> None:
    """Drop what no block reads any more."""
    kept = frozenset(needed)
    for sample in samples:
        for held in (sample.exact, sample.rounded):
            for name in [name for name in held if name not in kept]:
                del held[name]
