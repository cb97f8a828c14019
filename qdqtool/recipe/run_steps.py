# SPDX-License-Identifier: Apache-2.0
"""Run the steps that are not done yet, one after the other, and record each when its files are there."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdqtool.errors import QdqError
from qdqtool.files import replacing
from qdqtool.forecasting.devices import Device
from qdqtool.recipe.content_hash import ContentHashes
from qdqtool.recipe.figures import figures_of
from qdqtool.recipe.model_facts import NO_DEVICE, model_facts
from qdqtool.recipe.plan_steps import PlannedStep, is_lowered_later
from qdqtool.recipe.step_store import MODEL, StepRecord, StepStore, held, key_of
from qdqtool.recipe.verb_files import RESUMED

Tell = Callable[[str], None]
Call = Callable[[Sequence[str]], int]  # runs a command, as `CommandLine.call`

_CONTINUE = "run the same command to continue"


@dataclass(frozen=True)
class DoneStep:
    """A step that is done.

    Attributes:
        planned: what it is.
        ran: whether it ran in this run; else its files were there already.
        facts: `model` (see `ModelFacts`), `bytes` of another main output, `figures` of what it printed.
    """

    planned: PlannedStep
    ran: bool
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class SharedSteps:
    """What runs in several folders have in common.

    Attributes:
        hashes: of the files that they read.
        done: the hash of what a step of one file was made from, whatever that is called -> its folder and file, and
            the file with what it printed.
    """

    hashes: ContentHashes
    done: dict[str, tuple[Path, Path]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRequest:
    """What a run is.

    Attributes:
        steps: in order.
        folder: where outputs go.
        version: of qdqtool, whose steps are not those of another.
        model: the model that the recipe begins with, which the table shows too; None where it has none.
        again: run every step, whatever is there.
        device: whose latency is forecast; None for none.
        typed: whether the table counts every float in the type of its file, as TensorRT 11 does; else as FP16.
        shared: with runs in other folders, which take over the steps of each other; None where there are none.
        described: whether facts of models are computed for the table.
    """

    steps: Sequence[PlannedStep]
    folder: Path
    version: str
    model: Path | None = None
    again: bool = False
    device: Device | None = None
    typed: bool = False
    shared: SharedSteps | None = None
    described: bool = True


def run_steps(request: RunRequest, call: Call, tell: Tell) -> tuple[list[DoneStep], Mapping[str, Any]]:
    """Run what must run.

    Raises:
        QdqError: a step failed, which is named; its exit code is that of the step. Steps before it are kept.
        KeyboardInterrupt: interrupted; it says at which step, and that the same command continues.
    """
    shared = request.shared
    with held(request.folder, None if shared is None else shared.hashes) as store, _named(None):
        try:
            facts = _facts_of_model(store, request)
            done = []
            for number, step in enumerate(request.steps, 1):
                tell_step = _prefixed(tell, f"step {number} of {len(request.steps)}, {step.step.name}: ")
                with _named(step):
                    done.append(_step(store, step, request, call, tell_step))
        finally:
            store.hashes.save()
    return done, facts


def _prefixed(tell: Tell, prefix: str) -> Tell:
    return lambda text: tell(prefix + text)


def _facts_of_model(store: StepStore, request: RunRequest) -> Mapping[str, Any]:
    """The facts of the recipe's model, kept as those of a step are."""
    if request.model is None or request.model.suffix != ".onnx":
        return {}
    key = store.hashes.of(request.model)
    record = store.record(MODEL)
    if record is None or record.key != key or not _is_forecast_for(record.facts, request):
        facts = model_facts(request.model, request.device, typed=request.typed)
        record = StepRecord(key, {}, {}, {"model": facts.to_json()})
        store.keep(MODEL, record)
    return record.facts


def _step(store: StepStore, step: PlannedStep, request: RunRequest, call: Call, tell: Tell) -> DoneStep:
    made_from = _made_from(store, step, request.version)
    key, record = key_of(made_from), store.record(step.step.name)
    twin = None if request.shared is None else _key_of_twin(step, made_from, request.folder)
    if record is not None and not request.again and store.is_current(record, key):
        tell("is up to date")
        _share(step, record, twin, request)
        if request.described and not _is_forecast_for(record.facts, request):
            record = replace(record, facts={**record.facts, **_facts_of_output(store, step, request)})
            store.keep(step.step.name, record)
        return DoneStep(step, False, record.facts)
    checkpoint = store.checkpoint(step.step.name, key) if _is_resumed(step) else None
    store.forget(step.step.name, None if request.again else checkpoint)
    before = store.listing()
    for name in step.outputs.values():
        (store.folder / name).parent.mkdir(parents=True, exist_ok=True)
    resumed = () if checkpoint is None else ("--keep-checkpoint", "--checkpoint", str(checkpoint), "--resume")
    tell(shlex.join(("qdqtool", *step.command)))
    printed = _taken_over(step, twin, request)
    if printed is None:
        printed = _called(step, (*_silenced(step, request), *resumed), call, store.folder / step.report)
    facts = _facts(store, step, request, printed)
    record = StepRecord(key, made_from, store.written(before), facts)
    store.keep(step.step.name, record)
    _share(step, record, twin, request)
    if checkpoint is not None:  # until here an interrupted step goes on from it
        checkpoint.unlink(missing_ok=True)
    return DoneStep(step, True, facts)


def _made_from(store: StepStore, step: PlannedStep, version: str) -> dict[str, Any]:
    """All that the step's results follow from: words as the recipe has them, and the content of what they name."""
    inputs = {
        f"{word.written}#{index}": store.hashes.of(path) for word in step.words for index, path in enumerate(word.reads)
    }
    words = [word.written for word in step.words if word.counts]
    return {"qdqtool": version, "words": words, "inputs": inputs}


def _key_of_twin(step: PlannedStep, made_from: Mapping[str, Any], folder: Path) -> str | None:
    """What a step is made from, whatever its outputs are called; None where it reads those of another step."""
    if any(folder in path.parents for word in step.words for path in word.reads):
        return None
    words = [word.written for word in step.words if word.counts and not word.writes]
    return key_of({**made_from, "words": words})


def _share(step: PlannedStep, record: StepRecord, twin: str | None, request: RunRequest) -> None:
    """Offer a step that wrote one file to other runs; the data file of a model is bound to its name."""
    main = step.outputs.get("")
    if request.shared is not None and twin is not None and record.files.keys() == {main, step.report} - {None}:
        request.shared.done[twin] = request.folder / str(main), request.folder / step.report


def _taken_over(step: PlannedStep, twin: str | None, request: RunRequest) -> str | None:
    """What the same step of another run printed, whose file becomes that of this one; None where there is none."""
    made = None if request.shared is None or twin is None else request.shared.done.get(twin)
    if made is None:
        return None
    for source, name in zip(made, (step.outputs[""], step.report), strict=True):
        with contextlib.suppress(OSError):
            (request.folder / name).unlink()
        try:
            (request.folder / name).hardlink_to(source)
        except OSError:  # a file system that knows no second names
            shutil.copyfile(source, request.folder / name)
    return made[1].read_text(encoding="utf-8")


def _is_resumed(step: PlannedStep) -> bool:
    """Whether a step that was killed goes on where it was."""
    unless = RESUMED.get(step.step.verb)
    return unless is not None and not unless & step.step.options.keys()


def _silenced(step: PlannedStep, request: RunRequest) -> tuple[str, ...]:
    """The word by which `insert` does not warn of an opset that a later step lowers."""
    lowered = step.step.verb == "insert" and is_lowered_later(step, request.steps, request.folder)
    return ("--opset-lowered-later",) if lowered else ()


def _called(step: PlannedStep, more: tuple[str, ...], call: Call, report: Path) -> str:
    """Run the command, with more words, and keep what it printed, as a whole."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        code = call((*step.command, *more))
    printed = stream.getvalue()
    if report.suffix == ".json":  # a loader script may print, too, before the document
        printed = printed[printed.rfind("\n{\n") + 1 :]
    with replacing(report) as file:
        file.write(printed.encode("utf-8", "backslashreplace"))
    if code:
        error = QdqError(_where(step), f"ends with exit code {code}", f"{report} has what it printed")
        error.exit_code = code
        raise error
    return printed


@contextlib.contextmanager
def _named(step: PlannedStep | None) -> Iterator[None]:
    """A fault of a step says which step it is of; an interrupted one, how it goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        if str(error).endswith(_CONTINUE):
            raise
        raise KeyboardInterrupt(_CONTINUE if step is None else f"{_where(step)} is not done; {_CONTINUE}") from error
    except QdqError as error:
        if step is None or error.where == _where(step):
            raise
        named = QdqError(_where(step), f"{error.where}: {error.reason}", error.todo)
        named.exit_code = error.exit_code
        raise named from error


def _where(step: PlannedStep) -> str:
    return f"step {step.step.name} ({step.step.verb})"


def _facts(store: StepStore, step: PlannedStep, request: RunRequest, printed: str) -> dict[str, Any]:
    if not request.described:
        return {}
    facts = _facts_of_output(store, step, request)
    if step.report.endswith(".json"):
        facts["figures"] = figures_of(step.step.verb, json.loads(printed))
    return facts


def _facts_of_output(store: StepStore, step: PlannedStep, request: RunRequest) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    main = store.folder / step.outputs[""] if step.outputs else None
    if main is not None and step.is_model:
        whole = "cache" not in step.outputs
        facts["model"] = model_facts(main, request.device, whole=whole, typed=request.typed).to_json()
    elif main is not None and main.is_file():
        facts["bytes"] = main.stat().st_size
    return facts


def _is_forecast_for(facts: Mapping[str, Any], request: RunRequest) -> bool:
    """Whether what is known of a model, if it is of one, has the forecast of this device and these types."""
    wanted = NO_DEVICE if request.device is None else request.device.name
    model = facts.get("model")
    return model is None or (model.get("forecast_for"), model.get("typed")) == (wanted, request.typed)
