# SPDX-License-Identifier: Apache-2.0
"""How often the 95 % interval of a difference of mAP holds the truth: by draws of the images, and of rare classes, too.

A script, not a test: see README.md here. The evaluation images of a model stand for all images there are: samples are
drawn from them with replacement, and the interval of each is held against the difference on all of them. Without models
figures are made: 40 classes that a given share of the images shows, two models that differ by chance.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from accuracy_subjects import SUBJECTS, AccuracySubject

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Each = Callable[[Int64], Float64]  # weights of images -> figure of each class [b, k], NaN where none is shown

CLASSES, TRIALS, DRAWS = 40, 500, 200
SHOWN = (0.02, 0.1, 0.5)


def held(each: tuple[Each, Each], shows: npt.NDArray[np.bool_], sample: Int64, truth: float, seed: int) -> list[bool]:
    """Whether the intervals of a sample hold the truth: by images alone, and with classes.

    Args:
        each: of the two models.
        shows: bool[images, classes], what the images show.
        sample: int64[images], how often each image is in the sample.
        truth: the difference on all images.
        seed: of the draws.
    """
    from qdqtool.evaluation.bootstrap import interval
    from qdqtool.evaluation.metrics import with_drawn_classes

    size = int(sample.sum())
    draws = np.random.default_rng(seed).multinomial(size, sample / size, size=DRAWS)
    images_of = (sample @ shows).astype(int)
    there = images_of > 0

    def with_mean(one: Each, weights: Int64) -> Float64:
        found = one(weights)[:, there]
        return np.concatenate([np.nanmean(found, 1, keepdims=True), found], 1)

    value = float(np.diff([with_mean(one, sample[None])[0, 0] for one in each])[0])
    drawn = [with_mean(one, draws) for one in each]
    classes = [with_drawn_classes(one, images_of[there].tolist(), seed) for one in drawn]
    spans = [interval(value, two[:, 0] - one[:, 0]) for one, two in (drawn, classes)]
    return [span.low <= truth <= span.high for span in spans]


def of_values(values: Float64, shows: npt.NDArray[np.bool_]) -> Each:
    """The mean of each class over the images that show it."""

    def each(weights: Int64) -> Float64:
        count = weights @ shows
        return np.where(count > 0, weights @ (values * shows) / np.maximum(count, 1), np.nan)

    return each


def made(seen: float, images: int = 24) -> Float64:
    """The share of intervals that hold the truth, of models that were made up: each class in one image at least."""
    values, found = np.random.default_rng(5), []
    for trial in range(TRIALS):
        shows = values.random((images, CLASSES)) < seen
        shows[values.integers(images, size=CLASSES), np.arange(CLASSES)] = True
        one, two = (of_values(values.normal(0.5, 0.1, shows.shape), shows) for _ in range(2))
        found.append(held((one, two), shows, np.ones(images, np.int64), 0.0, trial))
    return np.asarray(np.mean(found, axis=0))


def read(subject: AccuracySubject, corpus: Path, models: Sequence[Path]) -> list[Any]:
    """What each model finds in the evaluation images, with the truth beside it."""
    from qdqtool.data.loader import DataOptions, inputs_of
    from qdqtool.evaluation.class_names import parse_names
    from qdqtool.evaluation.coco_names import shown_names
    from qdqtool.evaluation.samples import open_samples
    from qdqtool.evaluation.tasks import TaskOptions, choose_task
    from qdqtool.graph.io import open_model
    from qdqtool.precision.rounded import open_to_run
    from qdqtool.runtime.executor import Executor

    plain = open_model(corpus / "models" / f"{subject.name}.onnx")
    how = DataOptions(preprocess=subject.preprocess)
    samples = open_samples(corpus / "datasets" / subject.data[1], inputs_of(plain.proto.graph), how)
    names = (
        parse_names(",".join(shown_names("coco"))) if subject.data[3] == "coco" else parse_names(subject.data[3] or "")
    )
    options = TaskOptions(corpus / "datasets" / str(subject.data[2]), names=names)
    outputs, task, every = [value.name for value in plain.proto.graph.output], None, []
    for model in models:
        opened = open_to_run(model)
        runner, found, first = Executor(opened, outputs, model.name), [], 0
        for chunk in samples.chunks():
            values = runner.run(chunk.batch)
            task = task or choose_task(values, chunk, samples, options).task
            found += task.read(values, {}, chunk, first)
            first += len(chunk.geometries)
        every.append(found)
        print(f"{model.name}: {first} images", file=sys.stderr, flush=True)
    return every


def measured(found: Sequence[Any], size: int) -> list[tuple[float, float]]:
    """For each two models the share of intervals that hold the difference on all images, in samples of a size."""
    from qdqtool.evaluation.detection_ap import coco

    boxes, truths = zip(*((zip(*one, strict=True)) for one in found), strict=True)
    figures = [coco(own, truths[0]) for own in boxes]
    shows = np.array(
        [[label in set(one.labels[one.counted].tolist()) for label in figures[0].classes] for one in truths[0]]
    )
    each: list[Each] = [lambda weights, one=one: one.resampled(weights)[:, 0, 1:] for one in figures]  # type: ignore[misc]
    images = len(truths[0])
    drawn = np.random.default_rng(1).multinomial(size, np.full(images, 1 / images), size=TRIALS // 5)
    shares = []
    for a, b in combinations(range(len(figures)), 2):
        truth = float(figures[b].values[0, 0] - figures[a].values[0, 0])
        pair = each[a], each[b]
        shares.append(np.mean([held(pair, shows, one, truth, number) for number, one in enumerate(drawn)], axis=0))
    return [(float(one), float(two)) for one, two in shares]


def main() -> int:
    """Print the shares; exit code 1 where less than 9 in 10 intervals of made figures hold the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("QDQTOOL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
    parser.add_argument("--shared", type=Path, default=default)
    parser.add_argument("--subject", default="nanodet_m_320_coco", help="the detector that the models are of")
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="two models of it, or more")
    parser.add_argument("--sizes", type=int, nargs="*", default=[48, 128], help="images in a sample")
    args = parser.parse_args()
    rows = [(seen, made(seen)) for seen in SHOWN]
    for seen, (images, classes) in rows:
        print(
            f"made, {CLASSES} classes, each in {seen:.0%} of 24 images: images {images:.3f}, classes too {classes:.3f}"
        )
    if args.models:
        found = read(SUBJECTS[args.subject], args.shared / "corpus", args.models)
        for size in args.sizes:
            for (one, two), shares in zip(combinations(args.models, 2), measured(found, size), strict=True):
                print(f"{one.stem}, {two.stem}, {size} images: images {shares[0]:.2f}, classes too {shares[1]:.2f}")
    return 0 if all(shares[1] > 0.9 for _, shares in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
