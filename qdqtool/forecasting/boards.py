# SPDX-License-Identifier: Apache-2.0
"""What `--for` names: a board and the version on it, or a version alone. The boards are data in rules/devices.toml."""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qdqtool.display import named
from qdqtool.errors import QdqError
from qdqtool.forecasting.devices import MODE, Device, device_rules, known_devices, load_device
from qdqtool.formats import MIXED, NumberFormat, formats_of, number_formats
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.rule_files import common_words, rules_folder
from qdqtool.trtversion import RELEASES, TrtVersion, in_range, parse

_MEMORY = re.compile(r"[ _-]\d{1,3} ?gb$", re.ASCII | re.I)
_MAKERS = ("nvidia", "geforce", "jetson")
_UPGRADED = " with "  # of a platform a part of which was replaced
_KEYS = frozenset({"aliases", "title", "software", "sm", "int8", "fp8", "dla", "rtx"})
_SHORT_PLATFORM = re.compile(r"(?:jp|jetpack|drive)[ _-]?(\d{1,2}(?:\.\d{1,2})?)", re.ASCII | re.I)
_HEADER = re.compile(r"^(?:trt|tensorrt)[ _-]?(?=\d{1,2}(?:\.|$))", re.ASCII | re.I)
_SHORT_VERSION = re.compile(r"\d{1,2}\.\d{1,2}", re.ASCII)

DlaPlatform = Literal["xavier", "orin"]


@dataclass(frozen=True)
class Board:
    """One row of the boards.

    Attributes:
        name: as it is typed.
        aliases: other spellings.
        title: as it is printed.
        software: the beginnings of the platforms that it runs, such as "JetPack 5"; empty for a card.
        trt: the versions that support it.
        sm: compute capability without the dot.
        int8: whether its GPU runs INT8.
        fp8: whether it runs FP8.
        dla: the generation of its DLA; None for none.
        rtx: whether TensorRT for RTX is for it.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    software: tuple[str, ...]
    trt: str
    sm: str
    int8: bool
    fp8: bool
    dla: DlaPlatform | None
    rtx: bool

    def versions(self) -> list[tuple[TrtVersion, tuple[str, ...]]]:
        """The versions that it runs with the platforms that ship them, the newest first; of a card all releases."""
        found: dict[TrtVersion, tuple[str, ...]] = {}
        for release in RELEASES:
            if in_range(release.version, self.trt):
                ships = tuple(p for p in release.platforms if any(_begins(p, word) for word in self.software))
                found[release.version] = (*found.get(release.version, ()), *ships)
        kept = {version: platforms for version, platforms in found.items() if platforms or not self.software}
        return sorted(kept.items(), reverse=True)


@dataclass(frozen=True)
class Destination:
    """Where a model is to run.

    Attributes:
        board: None where only a version was named: any GPU of it.
        version: of TensorRT; None for TensorRT for RTX.
        platform: the software that ships it there, such as "JetPack 4.6.1"; "" where none does.
        others: the other versions of the board that the name would allow, newest first, as they are printed.
        notes: what was taken where the name leaves a choice, a sentence each.
        card: as it was typed, where the board is a series of cards; else "".
    """

    board: Board | None
    version: TrtVersion | None
    platform: str = ""
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    card: str = ""

    @property
    def title(self) -> str:
        """`Jetson Xavier NX, JetPack 4.6.1: TensorRT 8.2.1`, `rtx4090, GeForce RTX 40 (Ada): TensorRT 11.5.0`."""
        place = self.board.title if self.board is not None else "any GPU"
        place = f"{self.card}, {place}" if self.card else place
        if self.version is None:
            return f"{place}: TensorRT for RTX"
        return f"{place}{f', {self.platform}' if self.platform else ''}: TensorRT {self.version.text}"


def find_place(text: str) -> Destination:
    """The board and version that `--for` names: `xavier-nx`, `orin:jp6@30W`, `rtx4090:rtx`, `jp4.6.1`, `11.4`.

    Raises:
        QdqError: no such board or version, a version that the board does not run, or no such power mode; what is known
            is named.
    """
    place, mode, _ = text.strip().partition(MODE)
    if mode and device_of(text) is None:
        raise QdqError(f"--for {text}", "has no power modes that qdqtool knows", f"leave {mode}... out")
    name, colon, wanted = place.partition(":")
    board = _board_of(name)
    if board is None:
        if colon:
            raise _unknown(name)
        return _any_gpu(name)
    own = {_plain(board.name), _plain(board.title)}
    card = "" if board.software or _plain(name) in own else name.strip()
    if wanted.strip().lower() == RTX_TARGET:
        if not board.rtx:
            raise QdqError(f"--for {text}", f"TensorRT for RTX is not for {board.title}", "leave :rtx out")
        return Destination(board, None, card=card)
    return replace(_on_board(board, _HEADER.sub("", wanted.strip()), text), card=card)


def device_of(text: str) -> Device | None:
    """The device whose figures are those of what `--for` names, in its power mode; None where none are known.

    A row of the name that was typed comes first, then one of the board: a series of cards has no figures in common.

    Raises:
        QdqError: no such power mode.
    """
    place, _, mode = text.strip().partition(MODE)
    name = place.partition(":")[0]
    board = _board_of(name)
    if board is None:
        return None
    known = {_plain(one): one for one in known_devices()}
    words = (name, _MEMORY.sub("", name.strip()), board.name)
    row = next((known[_plain(word)] for word in words if _plain(word) in known), None)
    return None if row is None else load_device(f"{row}{MODE}{mode}" if mode else row)


@functools.cache
def known_boards() -> tuple[Board, ...]:
    """The boards of this installation, in the order of the file.

    Raises:
        QdqError: a row that is not of the schema.
    """
    return tuple(_board(entry) for entry in device_rules(rules_folder())["board"])


@functools.cache
def known_places() -> tuple[tuple[str, Destination, Device], ...]:
    """Every device by its name, with the newest version that its board runs."""
    return tuple((name, find_place(name), load_device(name)) for name in known_devices())


def boards_of(platform: str) -> list[Board]:
    """The boards that run a software, such as "JetPack 6.1"; none where none is named."""
    return [one for one in known_boards() if any(_begins(platform, word) for word in one.software)]


def require_format(name: str, target: str, version: TrtVersion | None) -> tuple[NumberFormat, ...]:
    """The number formats of a word of `--format` that run at a version and on a board of its software.

    Raises:
        QdqError: the word's one format is not written, or not there; the formats that run there are named.
    """
    boards = [] if version is None or target == RTX_TARGET else boards_of(version.platform)
    most = max((int(one.sm) for one in boards), default=0)

    def lacks(one: NumberFormat) -> str:
        if version is not None and target != RTX_TARGET and (version.major, version.minor) < one.since:
            return f"TensorRT {version.text} does not read {one.title}, which {'.'.join(map(str, one.since))} does"
        if most and most < one.sm:
            there = f"{version.platform if version else ''} runs on {named([board.title for board in boards])}"
            return f"{there}: {one.title} needs compute capability {one.sm / 10}, and they have up to {most / 10}"
        return ""

    rows = formats_of(name)
    if name != MIXED and (reason := lacks(rows[0])):
        fitting = [one.name for one in number_formats().values() if not lacks(one)]
        raise QdqError(f"--format {name}", reason, f"choose {', '.join([*fitting, MIXED])}")
    return tuple(row for row in rows if not lacks(row))


def _board(entry: Mapping[str, Any]) -> Board:
    path = rules_folder() / "devices.toml"
    common = common_words(path, entry, frozenset({"title", "sm", "int8"}), _KEYS)
    return Board(
        common["name"],
        tuple(entry.get("aliases", ())),
        str(entry["title"]),
        tuple(entry.get("software", ())),
        common["trt"],
        str(entry["sm"]),
        bool(entry["int8"]),
        bool(entry.get("fp8", False)),
        entry.get("dla"),
        bool(entry.get("rtx", False)),
    )


def _board_of(name: str) -> Board | None:
    """The board of a name; a size of memory at its end, such as 16gb, makes no difference here."""
    known = _spellings()
    return known.get(_plain(name)) or known.get(_plain(_MEMORY.sub("", name.strip())))


@functools.cache
def _spellings() -> Mapping[str, Board]:
    """Boards by their names, aliases and titles as they are compared; the first row of a spelling has it."""
    boards = reversed(known_boards())
    return {_plain(one): board for board in boards for one in (board.name, *board.aliases, board.title)}


def _plain(name: str) -> str:
    """A name as it is compared."""
    word = re.sub(r"[ _-]+", "", name.strip().lower())
    for maker in _MAKERS:
        rest = word.removeprefix(maker)
        word = rest if rest else word
    return word


def _begins(platform: str, word: str) -> bool:
    """Whether a platform is of a series: `JetPack 4.6.1` of `JetPack 4.6`, and not `JetPack 4.60`."""
    return platform == word or platform.startswith((f"{word}.", f"{word} "))


def _on_board(board: Board, wanted: str, text: str) -> Destination:
    """A version of a board; without one, the newest of the newest software."""
    known = board.versions()
    if not known:
        raise QdqError(f"--for {text}", f"no TensorRT is known for {board.title}", "give a version alone")
    allowed = _of_series(known, wanted)
    if not allowed:
        with contextlib.suppress(QdqError):  # no version at all is none that the board runs
            version = parse(wanted)
            allowed = [(one, platforms) for one, platforms in known if one == version]
        if not allowed:
            raise QdqError(
                f"--for {text}", f"{board.title} does not run {wanted}", f"it runs {named(_listed(known), 8)}"
            )
    version, platforms = next((one for one in allowed if _plain_releases(one[1])), allowed[0])
    rest = [one for one in (allowed if wanted else known) if one[0] != version]
    platform = _platform_in(platforms, wanted)
    others = tuple(_listed(rest))
    taken = platform or f"TensorRT {version.text}"
    notes = (f"{board.title}: {taken} was taken; others: {named(others)}",) if others and len(allowed) > 1 else ()
    return Destination(board, version, platform, others, notes)


def _of_series(
    known: Sequence[tuple[TrtVersion, tuple[str, ...]]], wanted: str
) -> list[tuple[TrtVersion, tuple[str, ...]]]:
    """All versions where nothing is wanted, those of a series such as jp6, or of 8.6; none for anything else."""
    if not wanted:
        return list(known)
    if match := _SHORT_PLATFORM.fullmatch(wanted):
        exact = [(v, names) for v, names in known if any(name.split()[-1] == match[1] for name in names)]
        if exact:
            return exact
        family = "DRIVE OS" if wanted.lower().startswith("drive") else "JetPack"
        found = [(v, tuple(p for p in names if _begins(p, f"{family} {match[1]}"))) for v, names in known]
        return [(version, names) for version, names in found if names]
    if re.fullmatch(r"\d{1,2}(\.\d{1,2})?", wanted, re.ASCII):
        return [(version, names) for version, names in known if f"{version.text}.".startswith(f"{wanted}.")]
    return []


def _plain_releases(platforms: Sequence[str]) -> bool:
    """Whether a version comes with the software itself, or with none; not with an upgrade of a part of it."""
    return not platforms or any(_UPGRADED not in name for name in platforms)


def _platform_in(platforms: Sequence[str], wanted: str) -> str:
    """The platform that was named, or the newest of them."""
    plain = re.sub(r"[^0-9.]", "", wanted)
    named = [one for one in platforms if plain and one.split()[-1] == plain]
    return named[0] if named else max(platforms, key=_numbers, default="")


def _numbers(platform: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", platform)))


def _listed(versions: Sequence[tuple[TrtVersion, tuple[str, ...]]]) -> list[str]:
    """Versions as they are printed, each with its newest platform."""
    return [
        f"{max(names, key=_numbers)} (TensorRT {version.text})" if names else version.text
        for version, names in versions
    ]


def _any_gpu(text: str) -> Destination:
    """A version alone. Of a series with several patches the newest that is documented and of no board is taken."""
    if _SHORT_VERSION.fullmatch(text.strip()):
        major, minor = map(int, text.strip().split("."))
        series = [one for one in RELEASES if (one.version.major, one.version.minor) == (major, minor)]
        several = len({one.version for one in series}) > 1 and series[0].version.has_caches
        plain = [one for one in series if not one.platforms] or series
        if several:
            best = max(plain, key=lambda one: (one.status == "documented", one.version)).version
            others = sorted({one.version.text for one in series} - {best.text})
            note = f"TensorRT {best.text} was taken for {text.strip()}; others: {named(others)}"
            return Destination(None, best, notes=(note,))
    try:
        version = parse(text)
    except QdqError as error:
        raise (error if any(c.isdigit() for c in text) and not text[:1].isalpha() else _unknown(text)) from None
    platform = _platform_in(version.platforms, text) if text[:1].isalpha() else ""
    return Destination(None, version, platform)


def _unknown(name: str) -> QdqError:
    names = [word for board in known_boards() for word in (board.name, *board.aliases)]
    near = difflib.get_close_matches(name.lower(), names, 1)
    known = ", ".join(board.name for board in known_boards())
    hint = f"did you mean {near[0]}" if near else f"known are {known}, and versions such as 8.6, 11.4 or jp6.1"
    return QdqError(f"--for {name}", "is neither a board nor a version that qdqtool knows", hint)
