# SPDX-License-Identifier: Apache-2.0
"""Whose INT8 is meant: target and TensorRT version, as options have them, checked once. What a target does: rules/.

`require_target` alone refuses a target; a target that only some verbs know stands in `targets` of their options. The
options are bases and not members, so that `SimulateOptions("dla", provider="cuda")` is one object.

Classes below these repeat the field `trt_version`, word for word: mypy forgets the type that a frozen base's field has.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from qdqtool.errors import QdqError
from qdqtool.options import Option, RequiredTextOption, TextOption, option
from qdqtool.rtxversion import NO_CACHES, RTX_TARGET, refuse_trt_version
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.rulebook import RuleBook

TARGETS: tuple[str, ...] = ("gpu", "rtx", "dla")
"""Targets of verbs that place pairs or look at them, a file in rules/ each."""

CACHE_TARGETS: tuple[str, ...] = ("gpu", "dla")
"""Those that read calibration caches."""

_MOST_BATCH = 1 << 16
_FILES = "files for builders"  # title of the group of options of what is written beside a cache


def cache_target(word: str) -> str:
    """The word itself; argparse's one-line error for rtx, which has no caches."""
    if word == RTX_TARGET:
        raise argparse.ArgumentTypeError(f"rtx: {NO_CACHES}")
    return word


def _max_batch(word: str) -> int:
    if not word.isdecimal() or len(word) > len(str(_MOST_BATCH)) or not 1 <= int(word) <= _MOST_BATCH:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of samples, 1 to {_MOST_BATCH}")
    return int(word)


MAX_BATCH = Option(
    "--max-batch", "largest batch of the engine, where the batch is dynamic", metavar="N", read=_max_batch
)

VERSION_OF_CACHE = "such as 8502 or jp4.6; default: that of the cache's header"  # help of --trt-version


def emitted_kinds(texts: Iterable[str]) -> tuple[str, ...]:
    """The kinds of files after `--emit`, given again or with commas between."""
    return tuple(kind.strip() for text in texts for kind in text.split(","))


def require_target(target: str, targets: tuple[str, ...] = TARGETS) -> None:
    """Refuse a target that a verb does not know; the one place where that is said.

    Raises:
        QdqError: it is none of them; for rtx, that it reads no caches.
    """
    if target == RTX_TARGET and target not in targets:
        reason, _, todo = NO_CACHES.partition(": ")
        raise QdqError("--target rtx", reason, todo)
    if target not in targets:
        raise QdqError("--target", f"{target!r} is not one", f"choose {' or '.join(targets)}")


@dataclass(frozen=True)
class TargetOptions:
    """The base of options that ask for a target.

    Attributes:
        target: a file of rules/.
        trt_version: whose rules hold, as a TrtVersion or as text such as "8502" or "jp5.1"; None for the newest.
    """

    target: str = "gpu"
    trt_version: TextOption[TrtVersion] = TextOption(TrtVersion, parse)
    targets: ClassVar[tuple[str, ...]] = TARGETS

    def __post_init__(self) -> None:
        """Refuse a target that these options are not for."""
        require_target(self.target, self.targets)
        if self.target == RTX_TARGET:
            refuse_trt_version(self.trt_version)

    def rule_book(self) -> RuleBook:
        """What the target can do at this version.

        Raises:
            QdqError: a rules file that is missing or not of the schema.
        """
        from qdqtool.rulebook import load_rules  # `-h` does without

        return load_rules(self.target, self.trt_version)


@dataclass(frozen=True)
class CacheTargetOptions:
    """The base of options for which a calibration cache is written, whose format depends on the version.

    Attributes:
        trt_version: whose cache is written: a TrtVersion, or text such as "8502" or "jp5.1".
        target: "gpu" or "dla".
        emit: kinds of files that tell a builder which layers stay in float, see `qdqtool.emit`; beside the cache.
        emit_dir: the folder for these; None for the cache's.
        names: the classes for "deepstream": coco, coco90, a file with one a line, or a,b,c.
    """

    trt_version: RequiredTextOption[TrtVersion] = RequiredTextOption(
        TrtVersion,
        parse,
        Option("--trt-version", "such as 7103, 8.5.2, jp4.6, drive6.0.9", metavar="V", required=True),
    )
    target: str = option(
        "gpu", "--target", "whose cache is written", choices=CACHE_TARGETS, read=cache_target, required=True
    )
    _: KW_ONLY
    emit: tuple[str, ...] = option(
        (),
        "--emit",
        "also write files that keep layers in float when an engine is built, beside the cache: trtexec, "
        "polygraphy-script, deepstream, triton, json; separate several with commas",
        metavar="K",
        repeated=True,
        convert=emitted_kinds,
        group=_FILES,
    )
    max_batch: int | None = option(None, MAX_BATCH)
    emit_dir: str | Path | None = option(
        None, "--emit-dir", "the folder for these (default: the cache's)", metavar="DIR", group=_FILES
    )
    names: str | None = option(
        None,
        "--names",
        "class names for --emit deepstream: coco, coco90, a file with one a line, or a,b,c",
        metavar="N",
        group=_FILES,
    )
    targets: ClassVar[tuple[str, ...]] = CACHE_TARGETS

    def __post_init__(self) -> None:
        """Refuse a target that these options are not for."""
        require_target(self.target, self.targets)

    def rule_book(self) -> RuleBook:
        """What the target can do at this version.

        Raises:
            QdqError: a rules file that is missing or not of the schema.
        """
        from qdqtool.rulebook import load_rules  # `-h` does without

        return load_rules(self.target, self.trt_version)
