# SPDX-License-Identifier: Apache-2.0
"""The names of COCO's classes, and the names that a picture is labeled with. What labels mean is in class_names.py."""

from __future__ import annotations

from qdqtool.evaluation.class_names import Names, parse_names

_LISTED = """
person | bicycle | car | motorcycle | airplane | bus | train | truck | boat | traffic light | fire hydrant |
stop sign | parking meter | bench | bird | cat | dog | horse | sheep | cow | elephant | bear | zebra | giraffe |
backpack | umbrella | handbag | tie | suitcase | frisbee | skis | snowboard | sports ball | kite | baseball bat
| baseball glove | skateboard | surfboard | tennis racket | bottle | wine glass | cup | fork | knife | spoon |
bowl | banana | apple | sandwich | orange | broccoli | carrot | hot dog | pizza | donut | cake | chair | couch |
potted plant | bed | dining table | toilet | tv | laptop | mouse | remote | keyboard | cell phone | microwave |
oven | toaster | sink | refrigerator | book | clock | vase | scissors | teddy bear | hair drier | toothbrush
"""
COCO = tuple(" ".join(word.split()) for word in _LISTED.split("|"))
_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)  # numbers, from 1, that COCO's annotations leave out


def _with_gaps() -> tuple[str, ...]:
    left = iter(COCO)
    return tuple("" if number in _GAPS else next(left) for number in range(1, len(COCO) + len(_GAPS) + 1))


COCO90 = _with_gaps()


def shown_names(text: str | None, classes: int | None = None) -> tuple[str, ...]:
    """Class names by number for `--names`.

    Raises:
        QdqError: no such file, no names in it.
    """
    if text is None:
        return ()
    if text == "coco90" or (text == "coco" and classes is not None and classes >= len(COCO90)):
        return COCO90
    return COCO if text == "coco" else parse_names(text).shown


def model_names(text: str | None) -> Names | None:
    """The model's classes for `--names`, with the label words of each; the names of COCO's classes are known.

    Raises:
        QdqError: see `parse_names`.
    """
    if text not in ("coco", "coco90"):
        return None if text is None else parse_names(text)
    shown = shown_names(text)
    return Names(shown, {word: number for number, word in enumerate(shown) if word})
