# SPDX-License-Identifier: Apache-2.0
"""What the model's classes are called, and which words of the labels mean which class. No label is read here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.limited_reading import FileKind, read_text

LEFT_OUT = -2  # the class of label words that are left out on purpose
_NONE = "none"
_COMPARED = 256  # letters of a word that are looked for among the names
_NAMES = FileKind("a list of class names", 16 << 20, "give a text file with one class per line")
_HINT = "one class per comma or line, in the model's order: car,person or face=masked|bare, and none=WORD to leave out"


@dataclass(frozen=True)
class Names:
    """The classes of a model.

    Attributes:
        shown: what each class is called, in the model's order.
        words: label word, lower case -> class number, or LEFT_OUT.
    """

    shown: tuple[str, ...]
    words: dict[str, int]

    def number(self, where: object, word: str) -> int:
        """The class of a label word, whatever its case; LEFT_OUT for words to be left out.

        Raises:
            QdqError: no class has that name.
        """
        self.require(where, [word])
        return self.words[word.strip().casefold()]

    def require(self, where: object, words: Sequence[str]) -> None:
        """Refuse labels with words that no class has.

        Raises:
            QdqError: such words; for a model of one class with the mapping that takes them all.
        """
        lacking = [word for word in words if word.strip().casefold() not in self.words]
        if not lacking:
            return
        near = difflib.get_close_matches(lacking[0][:_COMPARED].casefold(), self.words, 1)
        guess = f", did you mean {near[0]}" if near else ""
        reason = f"has the class {lacking[0]!r}, which is none of the {len(self.shown)} names{guess}"
        todo = f"add it to --names, or none={'|'.join(lacking)} to leave out"
        if len(self.shown) == 1:
            mine = [word for word in words if self.words.get(word.strip().casefold(), 0) == 0]
            todo = f"--names '{self.shown[0]}={'|'.join(mine)}' counts all as one class; ',none=WORD' leaves a word out"
        raise QdqError(where, reason, todo)

    def checked(self, where: object, number: int) -> int:
        """A class number that labels give, refused where no name has it."""
        if not 0 <= number < len(self.shown):
            raise QdqError(
                where, f"has the class {number}, there are {len(self.shown)} names (0 to {len(self.shown) - 1})", _HINT
            )
        return number


def refuse_too_many(names: int, classes: int | None) -> None:
    """Refuse more names than a model tells classes apart: they are of another model, and all would be wrong.

    Raises:
        QdqError: there are more names.
    """
    if classes is not None and names > classes:
        known = f"{classes} class{'' if classes == 1 else 'es'}"
        raise QdqError("--names", f"lists {names} classes, the model has {known}", _HINT)


def parse_names(text: str) -> Names:
    """Read class names.

    Raises:
        QdqError: an unreadable file, no class, a word given twice.
    """
    path = Path(text)
    if "," not in text and "=" not in text and (path.suffix or _is_file(path)):
        return names_of(_lines(path), path)
    return names_of([part.strip() for part in text.split(",")], "--names")


def names_of(classes: Sequence[str], where: object = "--names") -> Names:
    """Names from a list of classes, each as `parse_names` takes it.

    Raises:
        QdqError: no class, an empty one, a word given twice.
    """
    shown: list[str] = []
    words: dict[str, int] = {}
    for text in classes:
        name, equals, listed = text.partition("=")
        name = name.strip()
        left_out = bool(equals) and name == _NONE
        if not left_out:
            shown.append(name)
        for word in listed.split("|") if equals else name.split("|"):
            key = word.strip().casefold()
            if not key or not name or key in words:
                raise QdqError(where, f"names {word.strip()!r} twice" if key in words else "has an empty name", _HINT)
            words[key] = LEFT_OUT if left_out else len(shown) - 1
    if not shown:
        raise QdqError(where, "names no class", _HINT)
    return Names(tuple(shown), words)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # longer than a file's name may be: reading it says so
        return True


def _lines(path: Path) -> list[str]:
    lines = read_text(path, _NAMES).splitlines()
    return [line.strip() for line in lines if line.strip()]
