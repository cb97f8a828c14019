# SPDX-License-Identifier: Apache-2.0
"""The project file of a folder: options that every verb takes where its command does not give them. Runs no verb."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from qdqtool.cli.output import write_error
from qdqtool.command_lines import file_word, shell_line
from qdqtool.errors import QdqError

FILE = "qdqtool.toml"
_OPTIONS = {"data": "--data", "preprocess": "--preprocess", "labels": "--labels", "names": "--names", "boards": "--for"}
_KEYS = ("model", *_OPTIONS)
_VERBS = frozenset(  # those that have one of the options, or take the model first
    [
        "deploy",
        "insert",
        "peel",
        "ptq",
        "graft",
        "calibrate",
        "amp",
        "build",
        "evaluate",
        "compare",
        "lint",
        "forecast",
        "bench",
        "report",
        "improve",
        "condition",
        "finetune",
        "sensitivity",
        "prune",
        "infer",
        "simulate",
    ]
)
_MODELS = frozenset(["model", "models", "reference"])  # dests of a first word that is a model
_REFERENCES = {"evaluate": "--baseline", "report": "--model", "improve": "--source"}
# Verbs with an option of that name that is another thing, is refused mostly, or asks for more work than the verb has.
_NOT_FOR = {
    "model": ("peel", "improve", "finetune"),  # take a model with Q/DQ
    "data": ("peel", "graft"),
    "labels": ("finetune",),  # which learns from itself in float without any
    "names": ("peel", "ptq", "compare"),
}
_NO_DATA = frozenset(["scales", "merge"])  # dests of options that stand for --data


def with_project(argv: Sequence[str], parser_of: Callable[[str], tuple[argparse.ArgumentParser, object]]) -> list[str]:
    """A command with what the project file of this folder adds to it, right after the verb; that is said on stderr.

    Raises:
        QdqError: a file that is not TOML, an unknown key, a value of another type.
    """
    verb, *words = argv or [""]
    if verb not in _VERBS or {"-h", "--help"} & set(words) or not Path(FILE).is_file():
        return list(argv)
    added = _added(verb, words, parser_of(verb)[0], read_project(Path(FILE)))
    if added and not {"-q", "--quiet"} & set(words):
        write_error(f"qdqtool: note: {FILE} adds {shell_line(*added)}")
    return [verb, *added, *words]


def read_project(path: Path) -> dict[str, list[str]]:
    """Key -> its values, one for all keys but `boards`.

    Raises:
        QdqError: see `with_project`.
    """
    from qdqtool.limited_reading import FileKind, read_toml

    found, kind = dict[str, list[str]](), FileKind("a project file", 1 << 20, "qdqtool init MODEL FOLDER writes one")
    for key, value in read_toml(path, kind).items():
        if key not in _KEYS:
            raise QdqError(path, f"has the unknown key {key!r}", f"known keys: {', '.join(_KEYS)}")
        values = value if key == "boards" and isinstance(value, list) else [value]
        if not all(isinstance(one, str) and one for one in values):
            form = "a list of words" if key == "boards" else "a text in quotes"
            raise QdqError(path, f"{key} = {value!r} is not {form}", f'write {key} = "..." or leave the line out')
        found[key] = values
    return found


def _added(
    verb: str, words: Sequence[str], parser: argparse.ArgumentParser, project: dict[str, list[str]]
) -> list[str]:
    known = {flag: action for action in parser._actions for flag in action.option_strings}
    places = [action for action in parser._actions if not action.option_strings]
    given, first = _given(words, known)
    model, added = project.get("model", []), list[str]()
    if places and places[0].dest in _MODELS and len(first) < len(places):
        added += [] if verb in _NOT_FOR["model"] or "merge" in given else map(file_word, model)
    elif model and (option := _REFERENCES.get(verb)) and known[option].dest not in given:
        added += [] if Path(first[0]).resolve() == Path(model[0]).resolve() else [f"{option}={model[0]}"]
    reads = "data" in given or ("data" in project and verb not in _NOT_FOR["data"] and not given & _NO_DATA)
    for key, option in _OPTIONS.items():
        action = known.get(option)
        if key not in project or action is None or action.dest in given or verb in _NOT_FOR.get(key, ()):
            continue
        if key != "boards" and not reads:
            continue  # it says how data is used
        if key == "labels" and given & {"data", "eval_data"}:
            continue  # it belongs to the data of the project
        if len(project[key]) == 1 or isinstance(action, argparse._AppendAction):
            added += [f"{option}={one}" for one in project[key]]
    return added


def _given(words: Sequence[str], known: dict[str, argparse.Action]) -> tuple[set[str], list[str]]:
    """The dests of the options that a command gives, and its words that are no options."""
    dests, others, left = set[str](), list[str](), 0
    for word in words:
        if word.startswith("-") and word != "-":
            flag, equals, _ = word.partition("=")
            action = known.get(flag)
            left = 0
            if action is not None:
                dests.add(action.dest)
                most = {None: 1, "?": 1, "*": len(words), "+": len(words)}
                left = 0 if equals else action.nargs if isinstance(action.nargs, int) else most[action.nargs]
        elif left:
            left -= 1
        else:
            others.append(word)
    return dests, others
