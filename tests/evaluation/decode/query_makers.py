# SPDX-License-Identifier: Apache-2.0
"""Outputs of detectors by queries, made from known boxes: DETR, RT-DETR, RF-DETR, D-FINE. No tests here."""

from __future__ import annotations

import numpy as np

from tests.evaluation.decode.head_makers import Known, Outputs, logit

QUERIES = 30


def fractions(known: list[Known], size: tuple[int, int]) -> np.ndarray:
    """Centers and sides as fractions of the input; queries without an object say something small somewhere."""
    draw = np.random.default_rng(len(known))
    boxes = draw.uniform((0.3, 0.3, 0.01, 0.01), (0.7, 0.7, 0.2, 0.2), (1, QUERIES, 4)).astype(np.float32)
    for row, one in zip(places(known), known, strict=True):
        boxes[0, row] = *(np.array(one.center) / size), *(np.array(one.sides) / size)
    return boxes


def places(known: list[Known]) -> list[int]:
    """The queries that found something: not the first ones, and not in the order of their scores."""
    return [QUERIES - 3 - 2 * index for index in range(len(known))]


def detr(known: list[Known], size: tuple[int, int], classes: int, *, ready: bool = False) -> Outputs:
    """Chances of the classes and of no object, as logits or as they are."""
    chances = np.full((1, QUERIES, classes + 1), 0.01 / classes, np.float32)
    chances[..., -1] = 0.99
    for row, one in zip(places(known), known, strict=True):
        chances[0, row] = (1 - one.score) * 0.01 / classes
        chances[0, row, one.label] = one.score
        chances[0, row, -1] = 1 - chances[0, row, :-1].sum()
    return {"logits": chances if ready else np.log(chances) + 3, "pred_boxes": fractions(known, size)}


def _chances(known: list[Known], classes: int) -> np.ndarray:
    chances = np.full((1, QUERIES, classes), 0.01, np.float32)
    for row, one in zip(places(known), known, strict=True):
        chances[0, row, one.label] = one.score
    return chances


def rtdetr(known: list[Known], size: tuple[int, int], classes: int, *, form: str = "pair") -> Outputs:
    """`pair`: logits and boxes; `rfdetr`: the same by RF-DETR's names; `rows`; `picked`; `parts` in pixels."""
    chances, boxes = _chances(known, classes), fractions(known, size)
    logits = np.vectorize(logit)(chances).astype(np.float32)
    if form == "pair":
        return {"logits": logits, "pred_boxes": boxes}
    if form == "rfdetr":
        return {"dets": boxes, "labels": logits}
    if form == "rows":
        return {"output0": np.concatenate((boxes, chances), -1)}
    best, label = chances.max(-1), chances.argmax(-1)
    if form == "picked":
        return {"output0": np.concatenate((boxes, best[..., None], label[..., None].astype(np.float32)), -1)}
    corners = np.concatenate((boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2), -1)
    return {"labels": label, "boxes": corners * np.array(size * 2, np.float32), "scores": best}
