# SPDX-License-Identifier: Apache-2.0
"""A calibration cut into shards of its batches, on any number of machines, and put together again. No network here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qdqtool.amax.histogram_kinds import all_mergeable
from qdqtool.amax.method_table import Method, parse_method
from qdqtool.data.loader import Data, DataLoader, DataOptions, inputs_of, open_loader
from qdqtool.errors import QdqError
from qdqtool.evaluation.known_preprocess import apply_known, known_preprocess
from qdqtool.graph.io import ModelSource
from qdqtool.observers.collect import WHOLE, count_batches
from qdqtool.observers.observer_state import ObserverState
from qdqtool.observers.options import CalibrationOptions, with_method
from qdqtool.observers.state_file import State, read_state
from qdqtool.observers.table import read_table
from qdqtool.precision.widen import open_fp32
from qdqtool.scales import ScaleTable


def parse_shard(text: str) -> tuple[int, int]:
    """``3/8`` as (number from 0, of how many).

    Raises:
        QdqError: it is not that.
    """
    number, slash, total = text.partition("/")
    if slash and number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total):
        return int(number) - 1, int(total)
    raise QdqError("--shard", f"{text!r} is not the i-th of n", "write it as 1/8 to 8/8")


def calibrate_shard(
    model: ModelSource,
    data: Data | DataLoader,
    shard: tuple[int, int],
    options: CalibrationOptions | None = None,
    data_options: DataOptions | None = None,
) -> State:
    """Count every n-th batch of a calibration; `merge_shards` makes the table of all of them.

    Raises:
        QdqError: what `calibrate` refuses; the method `entropy`, which needs all batches in file order.
    """
    options = with_method(options)
    mergeable_method(options.method)
    opened = open_fp32(model)
    digest = opened.sha256 or ""
    known = [known_preprocess(opened.proto)]
    reading, _ = apply_known(opened.name, data, data_options or DataOptions(), known, anew=True)
    loader = open_loader(data, inputs_of(opened.proto.graph), reading)
    state = count_batches(opened, loader, replace(options, where=opened.name), shard=shard)
    return replace(state, provenance=replace(state.provenance, model_sha256=digest))


def merge_shards(states: Iterable[State], method: str = "mse", names: Sequence[str] = ()) -> ScaleTable:
    """The table that one calibration over all batches would give, to the bit.

    Raises:
        QdqError: a shard is missing, comes twice or is not complete; they are not of one calibration; no samples.
    """
    chosen = mergeable_method(method)
    total = ShardSum()
    for place, state in enumerate(states):
        total.add(state, names[place] if place < len(names) else f"state {place}")
    return total.table(chosen)


class ShardSum:
    """The sum of the shards of one calibration, in any order; memory is that of one state, however many come."""

    def __init__(self) -> None:
        self._sum: State | None = None
        self._named: dict[int, str] = {}

    def add(self, state: State, name: str) -> None:
        """Take a shard in.

        Raises:
            QdqError: it is of another calibration than the first, not complete, or came before.
        """
        if self._sum is None:
            self._sum = replace(state, observation=ObserverState(state.plan))
        _check_same(name, state, self._sum)
        number, total = state.shard
        if number in self._named:
            reason = f"is shard {number + 1}/{total}, as {self._named[number]} is"
            raise QdqError(name, reason, "give each shard once")
        self._sum.observation.merge(state.observation)
        self._named[number] = name

    def table(self, method: Method) -> ScaleTable:
        """The table of all shards.

        Raises:
            QdqError: a shard is missing; no samples.
        """
        if self._sum is None:
            raise QdqError("--merge", "names no states", "give the files that --shard wrote")
        total = self._sum.shard[1]
        missing = [f"{number + 1}/{total}" for number in range(total) if number not in self._named]
        if missing:
            raise QdqError("--merge", f"lacks shard {', '.join(missing[:8])}", f"run calibrate --shard {missing[0]}")
        if not self._sum.observation.samples:
            raise QdqError("data", "gives no samples", "calibration needs data")
        if method.row.keeps_range and self._sum.plan.follows:
            reason = "needs each tensor's largest value, which these shards do not have"
            raise QdqError(f"--method {method}", reason, f"run calibrate --shard with --method {method}")
        return read_table(replace(self._sum, shard=WHOLE), method)


def merge_files(paths: Sequence[Path], method: str = "mse") -> ScaleTable:
    """`merge_shards` of state files.

    Raises:
        QdqError: see `read_state` and `merge_shards`.
    """
    return merge_shards((read_state(path) for path in paths), method, [str(path) for path in paths])


def _check_same(name: str, state: State, first: State) -> None:
    reason = state.identity.differs(first.identity)
    if not reason and state.plan.to_json() != first.plan.to_json():
        reason = "set of tensors"
    if not reason and state.shard[1] != first.shard[1]:
        reason = f"number of shards ({state.shard[1]}, the first {first.shard[1]})"
    if reason:
        raise QdqError(name, f"was made with a different {reason} than the first", "merge shards of one calibration")
    if not state.complete:
        raise QdqError(name, "is not complete", "finish it: the same command with --checkpoint and --resume")


def mergeable_method(text: str) -> Method:
    """A method that shards can be counted for.

    Raises:
        QdqError: no such method; one that depends on the order of batches, or whose consumers walk the data once more.
    """
    method = parse_method(text)
    if not all_mergeable([method.row.histogram]):
        reason = f"is TensorRT's {method}, which needs the batches in file order and cannot be sharded"
        raise QdqError(f"--method {method}", reason, "use entropy-stable, or mse")
    if method.row.by_consumers:
        reason = "needs samples of the whole data once more, which shards do not have"
        raise QdqError(f"--method {method}", reason, f"use {method.alone}, or calibrate in one piece")
    return method
