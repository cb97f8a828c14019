# SPDX-License-Identifier: Apache-2.0
"""Images per CPU second of QAT steps: PyTorch's fake quantization beside both back ends, in turn, one thread each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cost import apart, measured
from training_nets import NETS, TrainingNet, make_case

HERE = Path(__file__).resolve().parent
HEAD = (
    "net",
    "batch",
    "torch",
    "layout",
    "builtin",
    "/ torch",
    "inside",
    "ort-training",
    "/ torch",
    "inside",
    "losses differ by",
)
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_ROUNDS, _TURNS = 3, 3


@dataclass(frozen=True)
class Pythons:
    """Interpreters: ours, and those with torch and with onnxruntime-training, None where there is none."""

    own: Path
    torch: Path | None
    train: Path | None


@dataclass
class MeasuredTraining:
    """What one tool gave: the cheapest step in CPU seconds, the first loss, the session's part; or why not."""

    seconds: float = float("inf")
    loss: float = float("nan")
    inside: float = 1.0
    failed: str = ""


def commands(pythons: Pythons, folder: Path, net: TrainingNet) -> dict[str, list[str]]:
    """Tool -> what measures it."""
    counts = [str(net.steps), str(_ROUNDS)]
    found = {"builtin": [str(pythons.own), str(HERE / "training_steps.py"), "steps", "builtin", str(folder), *counts]}
    if pythons.train:
        ours = [str(pythons.train), str(HERE / "training_steps.py"), "steps", "ort-training"]
        found["ort-training"] = [*ours, str(folder), *counts]
    for layout in ("contiguous", "channels_last") if pythons.torch else ():
        rival = [str(pythons.torch), str(HERE / "training_torch.py"), "steps", str(folder), *counts]
        found[f"torch {layout}"] = [*rival, layout]
    return found


def speed_rows(corpus: Path, work: Path, pythons: Pythons, names: list[str]) -> Iterator[tuple[str, ...]]:
    """A row per network, as `HEAD` has it."""
    for net in NETS:
        if names and net.name not in names:
            continue
        folder = work / "cases" / net.name
        if not (folder / "case.json").is_file():
            apart(make_case, net, corpus, folder)
        every = commands(pythons, folder, net)
        found = {tool: MeasuredTraining() for tool in every}
        for _ in range(_TURNS):  # in turn: a busy machine slows all of them
            for tool, command in every.items():
                _measure(command, net, found[tool])
        yield _row(net, found)


def _measure(command: list[str], net: TrainingNet, found: MeasuredTraining) -> None:
    cost = measured(command, environment=_THREADS)
    try:
        reported = json.loads(cost.said)
        each = min(reported["seconds"]) / net.steps
    except (ValueError, KeyError, TypeError):
        found.failed = cost.said
        return
    if each < found.seconds:
        found.seconds, found.inside = each, reported.get("inside", 1.0)
    found.loss = reported["loss"]


def _row(net: TrainingNet, found: dict[str, MeasuredTraining]) -> tuple[str, ...]:
    rivals = [tool for tool in found if tool.startswith("torch") and not found[tool].failed]
    best = min(rivals, key=lambda tool: found[tool].seconds, default=None)
    reference = found[best].seconds if best else float("nan")
    cells = [net.name, str(net.batch), f"{net.batch / reference:.1f}", best.partition(" ")[2] if best else ""]
    for tool in ("builtin", "ort-training"):
        one = found.get(tool, MeasuredTraining(failed="not asked for"))
        if one.failed:
            cells += [one.failed[:60], "", ""]
        else:
            cells += [f"{net.batch / one.seconds:.1f}", f"{reference / one.seconds:.2f}", f"{one.inside:.2f}"]
    losses = [one.loss for one in found.values() if one.loss == one.loss]
    spread = (max(losses) - min(losses)) / max(losses) if losses else float("nan")
    return (*cells, f"{spread:.1%}")
