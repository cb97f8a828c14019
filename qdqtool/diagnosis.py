# SPDX-License-Identifier: Apache-2.0
"""What `doctor` gives back: what was looked at, what is wrong, and how it is shown. It looks at nothing itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from qdqtool.display import Cells, Displayed, counted, named

Section = Literal["program", "needed", "optional", "machine"]
State = Literal["ok", "missing", "note", "wrong"]

_HEADS = {"needed": "packages that every verb needs", "optional": "packages for some verbs", "machine": "machine"}
# Without these most of what users come for ends with exit code 3.
_MOST_NEED = ("onnxruntime", "pillow")


@dataclass(frozen=True)
class Item:
    """One thing that was looked at.

    Attributes:
        section: the program itself, packages it needs, packages it can use, the machine.
        name: what it is.
        state: "ok"; "missing" (optional, and not here); "note" (works, but read this); "wrong".
        version: of a package, where it is known.
        text: what there is to say.
        todo: what to do about it.
    """

    section: Section
    name: str
    state: State
    version: str = ""
    text: str = ""
    todo: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis(Displayed):
    """Everything that was looked at, in the order to be read."""

    items: tuple[Item, ...]

    @property
    def wrong(self) -> tuple[Item, ...]:
        """What is broken, or clashes."""
        return tuple(item for item in self.items if item.state == "wrong")

    @property
    def ok(self) -> bool:
        """Whether no problem found."""
        return not self.wrong

    def headline(self) -> str:
        """Whether anything that is installed is wrong, and what."""
        if self.ok:
            return self.verdict()[0]
        return f"{counted(len(self.wrong), 'fault')}: {named(item.name for item in self.wrong)}"

    def summary(self) -> list[str]:
        """What `qdqtool doctor` prints."""
        return [*self.lines(), *self.verdict()]

    def lines(self) -> list[str]:
        """A line for each thing that was looked at, below the head of its section."""
        names = max(len(item.name) for item in self.items)
        versions = max(len(_version(item)) for item in self.items)
        lines: list[str] = []
        section = "program"
        for item in self.items:
            if item.section != section:
                section = item.section
                lines.append(f"{_HEADS[section]}:")
            line = f"  {item.name:<{names}}  {_version(item):<{versions}}  {_said(item)}"
            lines.append(line.rstrip() if section != "program" else " ".join(line.split()))
        return lines

    def verdict(self) -> list[str]:
        """What is wrong, and what to do about it."""
        if self.ok:
            lacking = [item for item in self.items if item.state == "missing" and item.name in _MOST_NEED]
            if not lacking:
                return ["no problem found"]
            missing = (f"  {item.name} is missing, {item.text}; {item.todo}" for item in lacking)
            return ["no problem found in the installed packages", *missing]
        faults = (f"  {item.name}: {item.text}; {item.todo}" for item in self.wrong)
        return [f"{counted(len(self.wrong), 'fault')}:", *faults]

    def rows(self) -> Cells:
        """One row for each thing that was looked at."""
        rows = [(item.section, item.name, _version(item), _said(item)) for item in self.items]
        return [("section", "name", "version", "note"), *rows]

    def to_json(self) -> dict[str, object]:
        """As `qdqtool doctor --json` prints it."""
        return {"schema": 1, "ok": self.ok, "items": [asdict(item) for item in self.items]}


def _version(item: Item) -> str:
    return item.version or ("missing" if item.state == "missing" else "")


def _said(item: Item) -> str:
    if item.state == "wrong":
        return "WRONG, see below"
    return "; ".join(filter(None, (item.text, item.todo)))
