# SPDX-License-Identifier: Apache-2.0
"""The samples that `deploy` and `improve` calibrate by, choose by and report by: none judges what it calibrated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qdqtool.data.loader import Data, DataOptions
from qdqtool.data.model_inputs import Input
from qdqtool.data.parts import cut_parts, part_between, sample_digest, samples_in
from qdqtool.data.pixel_arrays import holds_images
from qdqtool.data.sources import digests_of, open_source
from qdqtool.deploying.options import Effort
from qdqtool.errors import QdqError
from qdqtool.evaluation.samples import open_samples
from qdqtool.file_digest import file_sha256

# How many samples of each part are used at most.
_MOST: dict[Effort, tuple[int, int, int]] = {
    "fast": (128, 64, 2000),
    "default": (512, 256, 5000),
    "best": (1024, 1000, 5000),
}
_SHARES = (0.5, 0.25, 0.25)
# How many samples of each half `cross_fitted` calibrates by and judges at most.
_MOST_OF_HALF: dict[Effort, tuple[int, int]] = {"fast": (64, 128), "default": (256, 500), "best": (512, 2500)}


@dataclass(frozen=True)
class SplitData:
    """Data and how it is read, for each purpose.

    Attributes:
        calibrate: the samples that scales come from, and that training sees.
        choose: those that a candidate is chosen by.
        report: those that the figures describe.
        counts: purpose -> how many.
        parts: purpose -> the range of digests, as `--part` takes it; "" for all of `--eval-data`.
        digest: of all samples.
    """

    calibrate: tuple[Data, DataOptions]
    choose: tuple[Data, DataOptions]
    report: tuple[Data, DataOptions]
    counts: dict[str, int]
    parts: dict[str, str]
    digest: str = ""


def split_data(
    data: Data, eval_data: Data | None, inputs: Sequence[Input], options: DataOptions, effort: Effort
) -> SplitData:
    """Split data by what the samples hold.

    Raises:
        QdqError: too few different samples, or samples of `eval_data` that are in `data`, too.
    """
    own = options if holds_images(data) else replace(options, preprocess=None)  # arrays are the input itself
    digests = _digests(data, inputs, own)
    calibrate, choose, report = _MOST[effort]
    others: list[str] = []
    if eval_data is None:
        cut = cut_parts(digests, _SHARES, (calibrate, choose, report))
        pairs = [(data, replace(own, part=part)) for part, _ in cut]
        counts = [count for _, count in cut]
        parts = [str(part) for part, _ in cut]
    else:
        others = _digests_to_report(eval_data, inputs, options)
        _refuse_shared(digests, others)
        cut = cut_parts(digests, (2 / 3, 1 / 3), (calibrate, choose))
        pairs = [*((data, replace(own, part=part)) for part, _ in cut), (eval_data, options)]
        counts = [*(count for _, count in cut), len(others)]
        parts = [*(str(part) for part, _ in cut), ""]
    names = ("calibrate", "choose", "report")
    named = dict(zip(names, counts, strict=True)), dict(zip(names, parts, strict=True))
    digest = hashlib.sha256(" ".join([*digests, "", *others]).encode("ascii")).hexdigest()
    return SplitData(pairs[0], pairs[1], pairs[2], *named, digest)


def cross_fitted(
    data: Data, eval_data: Data | None, inputs: Sequence[Input], options: DataOptions, effort: Effort
) -> tuple[SplitData, SplitData, SplitData]:
    """Split data into halves, each to calibrate by where the other one chooses; and what both calibrate by, together.

    So every sample chooses, and none chooses a model that it calibrated. The third one chooses by nothing of its own.

    Raises:
        QdqError: fewer than two different samples, or samples of `eval_data` that are in `data`, too.
    """
    own = options if holds_images(data) else replace(options, preprocess=None)
    ordered = sorted(set(_digests(data, inputs, own)))
    if len(ordered) < 2:
        raise QdqError("--data", "holds one sample, and two or more are needed", "give more")
    others = [] if eval_data is None else _digests_to_report(eval_data, inputs, options)
    _refuse_shared(ordered, others)
    calibrate, judged = _MOST_OF_HALF[effort]
    middle = min(len(ordered) // 2, judged)
    end = min(len(ordered), 2 * judged)
    first, last = max(0, middle - calibrate), min(end, middle + calibrate)
    digest = hashlib.sha256(" ".join([*ordered, "", *others]).encode("ascii")).hexdigest()

    def split(calibrate: tuple[int, int], choose: tuple[int, int]) -> SplitData:
        spans = {"calibrate": calibrate, "choose": choose}
        parts = {name: part_between(ordered, *span) for name, span in spans.items()}
        counts = {name: stop - start for name, (start, stop) in spans.items()}
        read = [(data, replace(own, part=part)) for part in parts.values()]
        report = read[1] if eval_data is None else (eval_data, options)
        counts["report"] = len(others) or counts["choose"]
        return SplitData(read[0], read[1], report, counts, {name: str(part) for name, part in parts.items()}, digest)

    halves = split((first, middle), (middle, end)), split((middle, last), (0, middle))
    return *halves, split((first, last), (0, end))


_SCRIPT = """# The samples to calibrate by, of data that was given in Python: {digest}
from pathlib import Path

import numpy as np

NAMES = {names!r}


def load_data():
    for file in sorted(Path(__file__).parent.glob("*.npz")):
        with np.load(file) as arrays:
            yield {{name: arrays[f"arr_{{number}}"] for number, name in enumerate(NAMES)}}
"""


def write_samples(split: SplitData, inputs: Sequence[Input], folder: Path) -> tuple[Path, DataOptions]:
    """Write the preprocessed samples to calibrate by, one after the other; the script that loads them, and how."""
    data, options = split.calibrate
    names = [one.name for one in inputs]
    source = open_source(data, inputs, options.preprocess, options.max_bytes, options.part)
    for number, item in enumerate(source.items()):
        np.savez(folder / f"{number:08}.npz", *(item[name] for name in names))
    script = folder / "data.py"
    script.write_text(_SCRIPT.format(digest=split.digest, names=names), encoding="utf-8")
    return script, replace(options, preprocess=None)


def _digests(data: Data, inputs: Sequence[Input], options: DataOptions) -> list[str]:
    source = open_source(data, inputs, options.preprocess, options.max_bytes)
    if source.once:
        raise QdqError("data", "is a generator, which can be iterated only once", "give a function that returns it")
    return digests_of(source, inputs)


def _digests_to_report(data: Data, inputs: Sequence[Input], options: DataOptions) -> list[str]:
    """The digests of samples that may have labels beside them."""
    samples = open_samples(data, inputs, options)
    if samples.images is not None:
        return [file_sha256(file) for file in samples.images]
    return [sample_digest(one) for chunk in samples.chunks() for one in samples_in(chunk.batch)]


def _refuse_shared(digests: Sequence[str], others: Sequence[str]) -> None:
    shared = len(set(digests) & set(others))
    if shared:
        reason = f"holds {shared} samples that are also in --data: the reported figures would not be independent"
        raise QdqError("--eval-data", reason, "give samples that are not in --data")
