# SPDX-License-Identifier: Apache-2.0
"""Gradients of both back ends beside PyTorch's autograd: the largest relative difference, and which operators."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost import apart, measured
from training_cases import write_case

HERE = Path(__file__).resolve().parent
HEAD = ("network", "operators", "parameters", "back end", "to torch", "torch to float64", "ours to float64", "worst")
_MOST = 1e-5  # of the gradient's largest element


@dataclass(frozen=True)
class Pythons:
    """Interpreters: ours, and those with torch and with onnxruntime-training, None where there is none."""

    own: Path
    torch: Path | None
    train: Path | None


@dataclass(frozen=True)
class GradientRow:
    """One network by one back end: differences, relative to the largest element of each gradient; or a failure."""

    network: str
    backend: str
    operators: int = 0
    parameters: int = 0
    difference: float = float("nan")
    float32: float | None = None
    float64: float | None = None
    worst: str = ""

    @property
    def off(self) -> bool:
        return not self.difference <= _MOST

    def cells(self) -> tuple[str, ...]:
        numbers = [f"{one:.1e}" if one is not None else "" for one in (self.difference, self.float32, self.float64)]
        return self.network, str(self.operators), str(self.parameters), self.backend, *numbers, self.worst


def gradient_rows(work: Path, pythons: Pythons) -> Iterator[GradientRow]:
    """A row per network and back end: a detector of many operators, and one of Q/DQ pairs."""
    if pythons.torch is None:
        print("training: gradients want --torch-python", file=sys.stderr)
        return
    both = [("builtin", pythons.own), *([("ort-training", pythons.train)] if pythons.train else [])]
    for network in ("detector", "detector with pairs"):
        folder = work / "cases" / network.replace(" ", "_")
        said = _make(network, folder, pythons.torch)
        for name, python in both:
            command = [python, HERE / "training_backends.py", "gradients", name, folder]
            cost = measured(command) if not said else None  # type: ignore[arg-type]
            if cost is None or cost.code != 0:
                yield GradientRow(network, name, worst=(said or cost.said if cost else said)[:90])
            else:
                yield apart(compare, network, name, folder)


def _make(network: str, folder: Path, python: Path) -> str:
    """Write the case and PyTorch's gradients; what went wrong, else nothing."""
    torch = [python, HERE / "training_torch.py"]
    if network == "detector with pairs":
        apart(_paired_case, folder)
        cost = measured([*torch, "gradients", folder])
        return "" if cost.code == 0 else cost.said
    cost = measured([*torch, "detector", folder])
    if cost.code != 0:
        return cost.said
    apart(_exported_case, folder)
    return ""


def _exported_case(folder: Path) -> None:
    """A case of what PyTorch exported."""
    import numpy as np
    import onnx

    from qdqtool.training.shapes import make_forward

    feed = dict(np.load(folder / "batch.npz"))
    names = json.loads((folder / "names.json").read_text())
    proto = onnx.load(str(folder / "forward.onnx"))
    _fold(proto, frozenset(names), feed)
    write_case(folder, make_forward(proto, names, "loss", (), feed), feed)


def _fold(proto: Any, trained: frozenset[str], feed: dict[str, Any]) -> None:
    """What constants and shapes alone lead to becomes constant, as an exporter's own folding does."""
    from onnx import numpy_helper

    _tests_on_path()
    from tests.autodiff.running import run_all

    values, graph = run_all(proto, feed), proto.graph
    known, kept = {one.name for one in graph.initializer} - trained, []
    for node in graph.node:
        if node.op_type == "Shape" or all(name in known for name in node.input if name):
            known.update(node.output)
        else:
            kept.append(node)
    made = known & {name for node in kept for name in node.input} - {one.name for one in graph.initializer}
    graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in sorted(made))
    del graph.node[:]
    graph.node.extend(kept)


def _tests_on_path() -> None:
    sys.path[:0] = [str(HERE.parent.parent)]


def _paired_case(folder: Path) -> None:
    """A case of the contract test's detector, pairs around every convolution."""
    _tests_on_path()
    from tests.autodiff.detector_net import detector
    from tests.autodiff.running import feed_of, forward_of

    model, names = detector(False)
    feed = feed_of(model)
    write_case(folder, forward_of(model, names, feed), feed)


def compare(network: str, backend: str, folder: Path) -> GradientRow:
    """What a back end's gradients differ from PyTorch's."""
    import numpy as np
    import onnx

    ours, torch = np.load(folder / f"{backend}.npz"), np.load(folder / "torch.npz")
    wide = np.load(folder / "torch64.npz") if (folder / "torch64.npz").is_file() else None
    names = [name for name in torch.files if name.startswith("g.") and name in ours.files]

    def most(one: object, other: object) -> dict[str, float]:
        return {n: float(np.abs(one[n] - other[n]).max() / max(np.abs(other[n]).max(), 1e-30)) for n in names}  # type: ignore[index]

    found = most(ours, torch)
    worst = max(found, key=lambda name: found[name])
    graph = onnx.load(str(folder / "forward.onnx")).graph
    kinds = len({node.op_type for node in graph.node})
    more = (None, None) if wide is None else (max(most(torch, wide).values()), max(most(ours, wide).values()))
    return GradientRow(network, backend, kinds, len(names), found[worst], *more, worst[2:])


def operator_lines(work: Path, pythons: Pythons) -> Iterator[str]:
    """How many operators each back end has, and which of them no network above held."""
    held = apart(_held, [one for one in sorted((work / "cases").glob("detector*")) if one.is_dir()])
    for name, python in (("builtin", pythons.own), ("ort-training", pythons.train)):
        cost = measured([python, HERE / "training_backends.py", "operators", name]) if python else None
        if cost is not None and cost.code == 0:
            operators: Sequence[str] = json.loads(cost.said)
            missing = [one for one in operators if one.partition("::")[2] not in held and one not in held]
            reported = f"{len(operators)} operators; in no network here: {', '.join(missing)}"
        else:
            reported = cost.said if cost else "not asked for"
        yield f"{name}: {reported}"


def _held(folders: Sequence[Path]) -> set[str]:
    import onnx

    graphs = [onnx.load(str(folder / "forward.onnx")).graph for folder in folders]
    return {node.op_type for graph in graphs for node in graph.node}
