# SPDX-License-Identifier: Apache-2.0
"""How data is read, as options have it, and the part of it that `--part` names. `-h` reads this: no numpy here."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdqtool.errors import QdqError
from qdqtool.options import Option, TextOption, option

if TYPE_CHECKING:
    from qdqtool.data.preprocess import Preprocess

_FORM = re.compile(r"([0-9a-f]{0,64}):([0-9a-f]{0,64})", re.ASCII)
_DIGITS = 18  # of a number of bytes: more are no count of anything
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class DataPart:
    """The samples whose digest is at least `low` and below `high`, as hexadecimal text; "" for no bound.

    Raises:
        QdqError: the part can hold nothing.
    """

    low: str = ""
    high: str = ""

    def __post_init__(self) -> None:
        if self.high and self.low >= self.high:
            raise QdqError(f"--part {self}", "holds no sample", "write the lower bound first")

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"

    def holds(self, digest: str) -> bool:
        """Whether a sample of that digest is in the part."""
        return self.low <= digest and (not self.high or digest < self.high)


def parse_part(text: str) -> DataPart:
    """The part that `8a3f:` or `12:8a3f` names.

    Raises:
        QdqError: not two bounds of hexadecimal digits.
    """
    match = _FORM.fullmatch(text.strip().lower())
    if not match:
        raise QdqError(f"--part {text}", "is not LOW:HIGH in hexadecimal digits", "write it like :80 or 80:")
    return DataPart(match[1], match[2])


def count_bytes(text: str) -> int:
    """The number of bytes that `500M` or `8G` is.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper().removesuffix("B"))
    if not match or len(match[1]) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 500M or 8G")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class DataOptions:
    """How data is read.

    Attributes:
        batch: samples grouped into one run, in order; the last group may be smaller. With 1, batches of a loader script
            or of JSON stay as they come. A model that fixes its batch gets that one.
        limit: samples used, from the beginning; None for all.
        preprocess: what is done to images, as text or value; see `parse_preprocess`.
        max_bytes: the most that an archive or a JSON file may unpack to.
        part: only the samples of a range of digests, a `DataPart` or its text; `limit` counts these.
    """

    preprocess: str | Preprocess | None = option(
        None,
        "--preprocess",
        "for images, in files or 8-bit arrays: imagenet, caffe, keras, yolov5, yolov8, yolox, nanodet, fastestdet, "
        "yunet, ssd, ultraface and/or key=value,... "
        "(size=WxH layout= color= scale= mean=a:b:c std=a:b:c resize= pad= interpolation=)",
        metavar="P",
    )
    batch: int = option(1, "--batch", "samples per run (default 1)", metavar="N", read=int)
    limit: int | None = option(None, "--limit", "use the first N samples only", metavar="N", read=int)
    part: TextOption[DataPart] = TextOption(
        DataPart,
        parse_part,
        Option(
            "--part",
            "only samples whose SHA-256 is in this hexadecimal range, such as :80 (the first half) or 80: (the second)",
            metavar="LOW:HIGH",
        ),
    )
    max_bytes: int = option(
        8 << 30, "--max-data", "largest unpacked size of an archive (default 8G)", metavar="BYTES", read=count_bytes
    )

    def __post_init__(self) -> None:
        """Refuse a batch or a limit without samples, and a text that is no preprocessing."""
        if self.batch < 1:
            raise QdqError("--batch", f"{self.batch} is not a number of samples", "give 1 or more")
        if self.limit is not None and self.limit < 1:
            raise QdqError("--limit", f"{self.limit} leaves no samples", "give 1 or more, or leave it out")
        if isinstance(self.preprocess, str):
            from qdqtool.data.preprocess import parse_preprocess  # `-h` does without

            parse_preprocess(self.preprocess)
