# SPDX-License-Identifier: Apache-2.0
"""Whose INT8 is meant: target and TensorRT version, as options have them, checked once. What a target does: rules/.

Classes below these repeat the field `trt_version`, word for word: mypy forgets the type that a frozen base's field has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qdqtool.errors import QdqError
from qdqtool.options import RequiredTextOption, TextOption
from qdqtool.rtxversion import NO_CACHES, RTX_TARGET, refuse_trt_version
from qdqtool.trtversion import TrtVersion, parse

if TYPE_CHECKING:
    from qdqtool.rulebook import RuleBook

TARGETS: tuple[str, ...] = ("gpu", "rtx", "dla")
"""Targets of verbs that place pairs or look at them, a file in rules/ each."""

CACHE_TARGETS: tuple[str, ...] = ("gpu", "dla")
"""Those that read calibration caches."""


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
    """

    trt_version: RequiredTextOption[TrtVersion] = RequiredTextOption(TrtVersion, parse)
    target: str = "gpu"
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
