# SPDX-License-Identifier: Apache-2.0
"""A recipe to commands: models, paths and references resolved, everything checked before the first step runs."""

from __future__ import annotations

import contextlib
import difflib
import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdqtool.errors import QdqError
from qdqtool.recipe.command_line import CommandLine, CommandShape
from qdqtool.recipe.step_store import is_below, is_own
from qdqtool.recipe.values import OptionValue, Recipe, RecipeStep, Scalar
from qdqtool.recipe.verb_files import (
    OUTPUTS,
    READ,
    READ_BY,
    READ_WHERE_THERE,
    REFUSED,
    WITHOUT_EFFECT,
    WRITTEN,
    VerbOutput,
)

_REFERENCE = re.compile(r"\$\{step:([^:}]+)(?::([^}]+))?\}")
_NUMBER = re.compile(r"-\.?\d[^=]*")
_SCRIPT = re.compile(r"(.+\.py):\w+")


@dataclass(frozen=True)
class CommandWord:
    """A word of a command.

    Attributes:
        typed: as it is given to the verb.
        written: as the recipe has it, wherever the recipe lies.
        reads: the files and folders that it names and that are read.
        counts: whether another value makes another result.
        writes: whether it names an output.
    """

    typed: str
    written: str
    reads: tuple[Path, ...] = ()
    counts: bool = True
    writes: bool = False


@dataclass(frozen=True)
class PlannedStep:
    """A step that can run.

    Attributes:
        step: as the recipe has it.
        words: of its command, the verb first.
        models: the models that it reads, in order: files, or outputs of earlier steps.
        outputs: what it is -> file in the run's folder, relative; the main output first, under "".
        report: the file that keeps what it prints, relative to the run's folder.
        is_model: whether the main output is a model.
    """

    step: RecipeStep
    words: tuple[CommandWord, ...]
    models: tuple[Path, ...]
    outputs: Mapping[str, str]
    report: str
    is_model: bool

    @property
    def command(self) -> tuple[str, ...]:
        """The words as they are typed behind `qdqtool`."""
        return tuple(word.typed for word in self.words)


def plan_steps(recipe: Recipe, commands: CommandLine, folder: Path) -> tuple[PlannedStep, ...]:
    """Resolve every step and check it.

    Raises:
        QdqError: an unknown verb, option or step, a file that is missing, two outputs of one name, a step without a
            model, words that the verb refuses.
    """
    planner = _Planner(recipe, commands, folder)
    for step in recipe.steps:
        planner.add(step)
    return tuple(planner.planned)


def is_lowered_later(step: PlannedStep, steps: Sequence[PlannedStep], folder: Path) -> bool:
    """Whether a later step lowers the opset of what a step writes, or of what is made from that."""
    reached = {folder / name for name in step.outputs.values()}
    for later in steps[steps.index(step) + 1 :]:
        if reached.intersection(later.models):
            if any(word.typed == "--lower-opset" for word in later.words):
                return True
            reached.update(folder / name for name in later.outputs.values())
    return False


@dataclass
class _Planner:
    recipe: Recipe
    commands: CommandLine
    folder: Path
    planned: list[PlannedStep] = field(default_factory=list)

    def add(self, step: RecipeStep) -> None:
        shape = self._shape(step)
        models = self._models(step, shape) if shape.takes_model else ()
        if step.models and not shape.takes_model:
            raise self._fault(step, f"{step.verb} takes no model", "leave model out")
        outputs = self._outputs(step)
        words = [CommandWord(text, text) for text in step.verb.split()]
        words += models
        words += [self._argument(step, text) for text in step.arguments]
        for name, value in step.options.items():
            words += self._option(step, shape, name, value)
        words += self._output_words(step, outputs)
        words += self._closing_words(step, shape)
        report = f"{step.name}.{'json' if 'json' in shape.options else 'txt'}"
        self._check_names(step, (*outputs.values(), report))
        is_model = bool(outputs) and OUTPUTS[step.verb].is_model
        reads = tuple(path for word in models for path in word.reads)
        one = PlannedStep(step, tuple(words), reads, outputs, report, is_model)
        try:
            self.commands.check(one.command)
        except QdqError as error:
            raise self._fault(step, error.reason, error.todo) from error
        self.planned.append(one)

    def _closing_words(self, step: RecipeStep, shape: CommandShape) -> Iterator[CommandWord]:
        """What every step is given: folders of an earlier run are written over, results come as JSON."""
        makes_folder = "draw" in step.options or (step.verb in OUTPUTS and OUTPUTS[step.verb].is_folder)
        for name in ("force", "json") if makes_folder else ("json",):
            if name in shape.options and name not in step.options:
                yield CommandWord(shape.options[name][0], shape.options[name][0])

    def _check_names(self, step: RecipeStep, names: Sequence[str]) -> None:
        taken = [name for one in self.planned for name in (*one.outputs.values(), one.report)]
        for name in names:
            if name in taken:
                raise self._fault(step, f"{name} is written by two steps", "give output another name")
            taken.append(name)

    def _fault(self, step: RecipeStep, reason: str, todo: str = "") -> QdqError:
        return QdqError(self.recipe.path, f"step {step.name}: {reason}", todo)

    def _shape(self, step: RecipeStep) -> CommandShape:
        if step.verb.partition(" ")[0] not in REFUSED:
            with contextlib.suppress(KeyError):
                return self.commands.shape(step.verb)
        known = [verb for verb in self.commands.verbs() if verb.split()[0] not in REFUSED]
        if step.verb in REFUSED:
            raise self._fault(step, f"{step.verb} is not a step of a recipe", f"take one of {', '.join(known)}")
        near = difflib.get_close_matches(step.verb, known, 1)
        meant = f", did you mean {near[0]}" if near else ""
        raise self._fault(step, f"no such verb {step.verb!r}{meant}", "see qdqtool -h")

    # ------------------------------------------------------------------------------------------------ what is read

    def _models(self, step: RecipeStep, shape: CommandShape) -> tuple[CommandWord, ...]:
        if step.models:
            return tuple(self._model(step, text) for text in step.models)
        for one in reversed(self.planned):
            if one.is_model:
                return (self._of_step(step, one, ""),)
        if self.recipe.model is None and not shape.needs_model:
            return ()
        if self.recipe.model is None:
            raise self._fault(step, "has no model: no step before it writes one", "give model")
        return (self._file(step, "model", self.recipe.model),)

    def _model(self, step: RecipeStep, text: str) -> CommandWord:
        found = next((one for one in self.planned if one.step.name == text), None)
        if found is not None:
            return self._of_step(step, found, "")
        if any(one.name == text for one in self.recipe.steps) and not (self.recipe.base / text).exists():
            raise self._fault(step, f"takes the model of step {text}, which comes later", "move it after that step")
        return self._argument(step, text) if _REFERENCE.search(text) else self._file(step, "model", text)

    def _argument(self, step: RecipeStep, text: str) -> CommandWord:
        if text.startswith("-") and not _NUMBER.fullmatch(text):  # it could write anywhere
            raise self._fault(step, f"argument {text!r} is an option", "write it below [step.options], without dashes")
        if _REFERENCE.search(text):
            return self._referring(step, text)
        path = self.recipe.base / text
        return self._file(step, "arguments", text) if path.exists() else CommandWord(text, text)

    def _of_step(self, step: RecipeStep, one: PlannedStep, key: str) -> CommandWord:
        if key not in one.outputs:
            known = ", ".join(f"${{step:{one.step.name}:{name}}}" for name in one.outputs if name)
            reason = f"step {one.step.name} ({one.step.verb}) writes no {key or 'file'}"
            raise self._fault(step, reason, f"it writes {known}" if known else "name another step")
        path = self.folder / one.outputs[key]
        return CommandWord(_plain(path), f"${{step:{one.step.name}:{key}}}", (path,))

    def _referring(self, step: RecipeStep, text: str) -> CommandWord:
        reads: list[Path] = []

        def path_of(found: re.Match[str]) -> str:
            one = next((one for one in self.planned if one.step.name == found[1]), None)
            if one is None:
                names = [one.step.name for one in self.planned]
                near = difflib.get_close_matches(found[1], names, 1)
                meant = f", did you mean {near[0]}" if near else ""
                raise self._fault(step, f"{found[0]}: no step of that name comes before it{meant}")
            word = self._of_step(step, one, found[2] or "")
            reads.extend(word.reads)
            return word.typed

        return CommandWord(_REFERENCE.sub(path_of, text), text, tuple(reads))

    def _file(self, step: RecipeStep, what: str, text: str) -> CommandWord:
        """A file or folder that must be there: a path, a script with its function, or a pattern."""
        script = _SCRIPT.fullmatch(text)
        path = self.recipe.base / (script[1] if script else text)
        reads = [path] if path.exists() else []
        if not reads and any(sign in text for sign in "*?["):
            reads = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - relative and absolute alike
        if not reads:
            raise self._fault(step, f"{what}: {path} does not exist", "paths are relative to the recipe")
        return CommandWord(_plain(self.recipe.base / text), text, tuple(reads))

    # --------------------------------------------------------------------------------------------------- options

    def _option(self, step: RecipeStep, shape: CommandShape, name: str, value: OptionValue) -> Iterator[CommandWord]:
        name = "output" if name == "o" else name
        if name not in shape.options:
            near = difflib.get_close_matches(name, shape.options, 1)
            meant = f", did you mean {near[0]}" if near else ""
            raise self._fault(step, f"{step.verb} has no option {name!r}{meant}", f"see qdqtool {step.verb} -h")
        output = OUTPUTS.get(step.verb)
        if name == "output" or (output is not None and name in (output.option, *(key for key, _ in output.beside))):
            raise self._fault(step, f"option {name} names an output", "give the step's output = instead")
        typed, kind = shape.options[name]
        counts = name not in WITHOUT_EFFECT
        if isinstance(value, bool):
            if kind not in ("flag", "switch", "optional"):
                raise self._fault(step, f"option {name} takes a value, not {str(value).lower()}")
            flag = typed if value else f"--no-{name}" if kind == "switch" else ""
            yield from [CommandWord(flag, flag, counts=counts)] if flag else []
            return
        if kind in ("flag", "switch"):
            raise self._fault(step, f"option {name} is true or false, not {value!r}")
        values = value if isinstance(value, tuple) else (value,)
        if kind in ("one", "optional") and len(values) > 1:
            values = (",".join(map(_text, values)),)
        given = [self._value(step, name, _text(one)) for one in values]
        if kind == "many":
            for one in given:
                if one.typed.startswith("-"):
                    raise self._fault(step, f"option {name}: {one.written!r} is an option", "give a file")
            yield CommandWord(typed, typed, counts=counts)
            yield from given
            return
        for one in given:
            yield from _joined(typed, one, counts=counts)

    def _value(self, step: RecipeStep, name: str, text: str) -> CommandWord:
        read = name in READ_BY.get(step.verb, ())
        if name in WRITTEN and not read:
            if _REFERENCE.search(text):
                raise self._fault(step, f"option {name} names an output, not {text}", "give a name")
            return self._written(self._below(step, f"option {name}", text))
        if _REFERENCE.search(text):
            return self._referring(step, text)
        script = _SCRIPT.fullmatch(text)
        there = (self.recipe.base / (script[1] if script else text)).exists()
        if read or name in READ or (name in READ_WHERE_THERE and there):
            return self._file(step, name, text)
        return CommandWord(text, text)

    # --------------------------------------------------------------------------------------------------- outputs

    def _outputs(self, step: RecipeStep) -> dict[str, str]:
        known = OUTPUTS.get(step.verb)
        if known is None or (known.unless and known.unless not in step.options):
            if step.output is not None:
                raise self._fault(step, f"{step.verb} writes no file that output names", "leave output out")
            return {}
        main = f"{step.name}{known.ending}" if step.output is None else self._below(step, "output", step.output)
        stem = Path(main).with_suffix("").as_posix() if step.output is not None else step.name
        return {"": main, **{option: f"{stem}{ending}" for option, ending in known.beside}}

    def _below(self, step: RecipeStep, what: str, text: str) -> str:
        """A file of the run's folder, spelled in one way."""
        path = Path(text)
        if not is_below(path) or is_own(path):
            raise self._fault(step, f"{what} {text!r} is not in the run's folder, or is a record of it", "give a name")
        return path.as_posix()

    def _output_words(self, step: RecipeStep, outputs: Mapping[str, str]) -> list[CommandWord]:
        known: VerbOutput | None = OUTPUTS.get(step.verb)
        if known is None:
            return []
        named = {key or known.option: name for key, name in outputs.items()}
        return [
            word for option, name in named.items() for word in _joined(f"--{option}", self._written(name), counts=True)
        ]

    def _written(self, name: str) -> CommandWord:
        return CommandWord(_plain(self.folder / name), name, writes=True)


def _text(value: Scalar) -> str:
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def _joined(option: str, value: CommandWord, *, counts: bool) -> Sequence[CommandWord]:
    """An option and its value; in one word where the value begins with a minus."""
    if value.typed.startswith("-"):
        typed, written = f"{option}={value.typed}", f"{option}={value.written}"
        return [replace(value, typed=typed, written=written, counts=counts)]
    return [CommandWord(option, option, counts=counts), replace(value, counts=counts)]


def _plain(path: Path) -> str:
    """A file name that is no option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text
