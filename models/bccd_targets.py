# SPDX-License-Identifier: Apache-2.0
"""Blood cells with what each cell of the detector should say, for `qdqtool finetune --data models/bccd_targets.py`.

The folder of the data set is named by the environment variable BCCD.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bccd import augmented, load, targets, whole

WINDOWS = 3  # other windows of each photograph, beside the whole of it
_TENTH = 10  # finetune holds every tenth sample out: whole tens keep all views of one photograph on one side of that


def load_data() -> Iterator[dict[str, np.ndarray]]:
    """`images`, `quality`, `classes` and `corners` of the training split, sample by sample, the same ones each time.

    The photographs as they are calibrated and judged, then a window of each, three times over. The last five of the
    205 are left out, so that no photograph is both held out and trained on.
    """
    if not os.environ.get("BCCD"):
        raise ValueError("set the environment variable BCCD to the folder of the data set, which holds JPEGImages")
    photos = load(Path(os.environ["BCCD"]), "train")
    photos = photos[: len(photos) // _TENTH * _TENTH]
    for turn in range(1 + WINDOWS):
        rng = np.random.default_rng(turn)
        for photo in photos:
            pixels, boxes, labels = augmented(photo, rng) if turn else whole(photo)
            wanted = targets(boxes, labels)._asdict()
            yield {"images": pixels[None], **{name: value[None] for name, value in wanted.items()}}
