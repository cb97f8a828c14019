# SPDX-License-Identifier: Apache-2.0
"""All blocks one after the other, from the input to the outputs: those before a block are frozen in INT8.

Each block learns to give what the float network gives, from what the blocks before make of the samples: BRECQ (Li 2021)
with a straight-through estimator, whose weights may move by more than one step, in place of AdaRound's rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import onnx

from qdqtool.autodiff.backend import GradientBackend
from qdqtool.data.loader import Batch
from qdqtool.errors import QdqError
from qdqtool.graph.model import Model
from qdqtool.progress import steps
from qdqtool.training.batches import Batches
from qdqtool.training.blocks.block_cuts import Block, cut_blocks
from qdqtool.training.blocks.block_importance import measure_importance
from qdqtool.training.blocks.block_samples import (
    BlockSample,
    BlockSamples,
    fitting_samples,
    forget,
    give_exact,
    give_rounded,
)
from qdqtool.training.blocks.block_training import LOSS, BlockLoss, BlockOptions, TrainedBlock, train_block
from qdqtool.training.log import Reporter
from qdqtool.training.losses.teacher import float_twin
from qdqtool.training.shapes import SeenTensor, run_once
from qdqtool.training.start_checks import check_same_forward
from qdqtool.training.training_graph import TrainingGraph

Float32 = npt.NDArray[np.float32]
Report = Callable[[int], Reporter]

_COPIES = 4  # of each picture, changed otherwise each time
_FEWEST = 4  # samples, however large what passes between blocks is
_HELD = 4  # one of so many samples is held out, at most


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What came of all blocks.

    Attributes:
        values: parameter of the form -> value, of those blocks that came out better.
        blocks: those that were trained, in the order of the graph.
        samples, held_samples: how many were learned from, and how many were measured on.
        seconds: CPU seconds.
        checked: largest relative differences of the checks: forward, gradients of the first block.
        notes: for the user, a sentence each.
    """

    values: Mapping[str, Float32]
    blocks: tuple[TrainedBlock, ...]
    samples: int
    held_samples: int
    seconds: float
    checked: tuple[float, float]
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> float:
        """The mean error of the blocks as they were, each after the reconstructed ones."""
        return float(np.mean([one.before for one in self.blocks])) if self.blocks else 0.0

    @property
    def after(self) -> float:
        """The same of the blocks as they came out."""
        return float(np.mean([one.after for one in self.blocks])) if self.blocks else 0.0

    @property
    def gained(self) -> int:
        """How many blocks came out better."""
        return sum(bool(one.values) for one in self.blocks)


@dataclass(frozen=True, eq=False)
class _Cut:
    """A form in blocks, and the samples in front of the first one."""

    blocks: Sequence[Block]
    samples: BlockSamples


def reconstruct(
    form: TrainingGraph,
    batches: Batches,
    backend: GradientBackend,
    options: BlockOptions,
    memory: int,
    report: Report,
) -> Reconstruction:
    """Train the blocks of a form; what passes between blocks, of all samples together, takes at most `memory` bytes.

    Raises:
        QdqError: a form that computes something else than its file; what the back end refuses of every block.
    """
    start = time.process_time()
    scales = tuple(name for name in form.scales if name in form.activations)
    given = {tensor.name for tensor in form.proto.graph.initializer}
    inputs = [value.name for value in form.proto.graph.input if value.name not in given]
    first = {name: batches.held[0][name] for name in inputs}
    forward_error = check_same_forward(form, first)
    seen = run_once(Model(form.proto), first)
    blocks = cut_blocks(form.proto, (*form.weights, *scales), seen)
    cut = _with_samples(blocks, batches, inputs, fitting_samples(blocks, seen, memory))
    unknown = _count_by_importance(form, seen, cut, backend, options)
    how = options.sessions
    trained = sum(bool(block.parameters) for block in blocks)
    reporter = report(trained * options.steps)
    values: dict[str, Float32] = {}
    done: list[TrainedBlock] = []
    refused: dict[str, QdqError] = {}
    for index, block in steps(enumerate(blocks), "block", len(blocks)):
        give_exact(block, float_twin(block.proto, form.quantized.proto), cut.samples.every, how)
        if block.parameters:
            try:
                found = train_block(BlockLoss(block, cut.samples, seen), form, backend, options, reporter)
            except QdqError as error:  # it is not changed, and that is said
                refused[block.gives[-1]] = error
            else:
                done.append(found)
                values.update(found.values)
        give_rounded(block, _with_values(block.proto, values), cut.samples.every, how)
        forget(cut.samples.every, {name for later in blocks[index + 1 :] for name in later.takes})
    if refused and not done:
        raise next(iter(refused.values()))
    checked = (forward_error, max((one.checked for one in done), default=0.0))
    seconds = time.process_time() - start
    notes = (*unknown, *_left(refused), *_notes(cut, batches, form))
    return Reconstruction(values, tuple(done), len(cut.samples.learned), len(cut.samples.held), seconds, checked, notes)


def _with_samples(blocks: Sequence[Block], batches: Batches, inputs: Sequence[str], room: int) -> _Cut:
    """As many samples as fit: held-out ones, and the first of the shuffled sequence."""
    room = max(room, _FEWEST)
    held = batches.held[: max(1, room // _HELD)]
    each = _COPIES if batches.changes else 1
    wanted = -(-batches.count * each // batches.batch)
    learned = islice(batches.from_batch(0), max(1, min(room - len(held), wanted)))
    samples = BlockSamples([_sample(batch, inputs) for batch in learned], [_sample(batch, inputs) for batch in held])
    return _Cut(blocks, samples)


def _count_by_importance(
    form: TrainingGraph,
    seen: Mapping[str, SeenTensor],
    cut: _Cut,
    backend: GradientBackend,
    options: BlockOptions,
) -> tuple[str, ...]:
    """Measure the importance of what blocks give; a note where that cannot be, and all values count alike."""
    gives = [name for block in cut.blocks for name in block.gives if seen[name].elem_type == onnx.TensorProto.FLOAT]
    try:
        measure_importance(form, seen, gives, cut.samples, backend, options)
    except QdqError as error:
        return (f"all values inside count alike: what they do to the outputs is unknown, {error.where} {error.reason}",)
    return ()


def _sample(batch: Batch, inputs: Sequence[str]) -> BlockSample:
    return BlockSample.of({name: batch[name] for name in inputs})


def _with_values(proto: onnx.ModelProto, values: Mapping[str, Float32]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values[tensor.name], np.float32), tensor.name))
    return copy


def _left(refused: Mapping[str, QdqError]) -> tuple[str, ...]:
    """What to say of blocks that could not be trained, each by a tensor that it gives."""
    for given, first in refused.items():
        what = "its loss" if first.where == LOSS else f"{first.where}:"
        stay = "1 block stays as it was," if len(refused) == 1 else f"{len(refused)} blocks stay as they were, such as"
        return (f"{stay} that of {given}: {what} {first.reason}",)
    return ()


def _notes(cut: _Cut, batches: Batches, form: TrainingGraph) -> tuple[str, ...]:
    notes = []
    if len(cut.samples.learned) * batches.batch < batches.count:
        used = len(cut.samples.learned)
        notes.append(f"only {used} batches were used: the activations between blocks of more do not fit into memory")
    owned = {name for block in cut.blocks for name in block.parameters}
    shared = [name for name in form.weights if name not in owned]
    if shared:
        notes.append(f"{len(shared)} weights shared by several blocks are not trained, such as {shared[0]}")
    return tuple(notes)
