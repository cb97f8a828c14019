# SPDX-License-Identifier: Apache-2.0
"""rules/wrong_builds.toml as frozen values: builds that are known to compute wrongly. Not what a model holds."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass

from qdqtool.rule_files import choice, common_words, rules_folder
from qdqtool.trtversion import TrtVersion, in_range

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class WrongBuild:
    """One build that is known to compute wrongly, or to fail.

    Attributes:
        name: of the row.
        pattern: what a model must hold; "not-known" for what is found in none.
        trt: the range of versions.
        severity: warning where the pattern is that of the reports, note where it is wider.
        half: whether only FP16 is concerned.
        why: what goes wrong, without the version.
        unknown: what nobody has tried or told.
        todo: what to do.
        see: where it was told.
    """

    name: str
    pattern: str
    trt: str
    severity: str
    half: bool
    why: str
    unknown: str
    todo: str
    see: str

    def holds_for(self, version: TrtVersion) -> bool:
        """Whether a version is among those of the row."""
        return in_range(version, self.trt)


@functools.cache
def load_wrong_builds() -> tuple[WrongBuild, ...]:
    """The rows of this installation.

    Raises:
        QdqError: a row that is not of the schema, named.
    """
    path = rules_folder() / "wrong_builds.toml"
    with path.open("rb") as file:
        entries = tomllib.load(file)["build"]
    asked = frozenset({"pattern", "trt", "severity", "unknown", "todo"})
    found = []
    for entry in entries:
        words = common_words(path, entry, asked, frozenset({"types"}))
        severity = choice(path, entry, "severity", ("warning", "note"))
        half = "types" in entry and choice(path, entry, "types", ("half",)) == "half"
        texts = (words["why"], entry["unknown"], entry["todo"], words["see"])
        found.append(WrongBuild(words["name"], entry["pattern"], words["trt"], severity, half, *texts))
    return tuple(found)
