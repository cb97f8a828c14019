# SPDX-License-Identifier: Apache-2.0
"""What is installed here, which part of qdqtool needs it, and what is wrong with it. It looks, and changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from qdqtool import __version__
from qdqtool.display import Cells, Displayed, counted, named
from qdqtool.errors import QdqError
from qdqtool.import_probe import DRIVER, Loaded, load_apart
from qdqtool.requirements import Requirement, normal_name, own_requirements
from qdqtool.tensorrt_rtx.installed import WHEELS

# A distribution's module, where the name is another.
_MODULES = {"onnx-graphsurgeon": "onnx_graphsurgeon"}
_TENSORRT_WHEELS = ("tensorrt", "tensorrt-cu11", "tensorrt-cu12", "tensorrt-cu13")
_TRIAL = "qdqtool.doctor:try_runtime"
_RTX_TRIAL = "qdqtool.tensorrt_rtx.trial:try_library"
_GPU_PROVIDERS = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider"})

Section = Literal["program", "needed", "optional", "machine"]
State = Literal["ok", "missing", "note", "wrong"]

_HEADS = {"needed": "packages that every verb needs", "optional": "packages for some verbs", "machine": "machine"}
# Without these the first steps end with exit code 3: insert --data IMAGES, evaluate --labels, report.
_FIRST_STEPS = ("onnxruntime", "pillow", "pycocotools")


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
        faults = [f"  {item.name}: {item.text}; {item.todo}" for item in self.wrong]
        lines = [f"{counted(len(faults), 'fault')}:", *faults] if faults else []
        lacking = [item for item in self.items if item.state == "missing" and item.name in _FIRST_STEPS]
        if not lacking:
            return lines or ["no problem found"]
        missing = (f"  {item.name} is missing, {item.text}; {item.todo}" for item in lacking)
        head = "the first steps (insert --data IMAGES, evaluate --labels, report) lack:"
        return [*(lines or ["no problem found in the installed packages"]), head, *missing]

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


@dataclass(frozen=True)
class Extra:
    """A package that an extra brings.

    Attributes:
        name: what to call it.
        module: what is imported to see that it loads, a compiled part, since that breaks first; "" where that takes
            seconds, and only its version is read.
        extra: what to install it with.
        serves: which verbs need it, and for what.
        wheels: distributions that bring it.
    """

    name: str
    module: str
    extra: str
    serves: str
    wheels: tuple[str, ...] = ()


OPTIONAL = (
    Extra("pillow", "PIL.Image", "images", "folders of images as --data", ("pillow",)),
    Extra("shtab", "shtab", "completion", "completion of bash, zsh and fish", ("shtab",)),
    Extra("pycocotools", "pycocotools.mask", "eval", "evaluate, deploy, improve: average precision", ("pycocotools",)),
    Extra("scipy", "", "detr", "finetune --labels of a DETR: Hungarian matching", ("scipy",)),
    Extra("tensorrt", "tensorrt", "tensorrt", "ptq --backend tensorrt, build", _TENSORRT_WHEELS),
    Extra("pycuda", "pycuda.driver", "pycuda", "ptq --backend tensorrt --cuda pycuda", ("pycuda",)),
    Extra("dask", "distributed", "dask", "calibrate --dask", ("distributed",)),
    Extra("mpi4py", "mpi4py.MPI", "mpi", "finetune --workers, by MPI", ("mpi4py",)),
    Extra("torch", "", "distributed", "finetune --workers, by torch.distributed", ("torch",)),
)
# It may be installed in another Python, and is tried by a build.
RTX = Extra("tensorrt-rtx", _RTX_TRIAL, "rtx", "--target rtx, lint --parser, build, engine show", WHEELS)
RUNTIME_SERVES = "every verb that runs a model"


@dataclass(frozen=True)
class _Seen:
    """What the judgments below are made from."""

    requirements: tuple[Requirement, ...]
    loaded: Mapping[str, Loaded]


def diagnose() -> Diagnosis:
    """Look at this Python, qdqtool, the packages it needs or can use, and the machine.

    Packages are imported in a process of their own, so that a broken one is reported only; there onnxruntime runs a
    small model, too. Takes about two seconds.
    """
    requirements = own_requirements()
    base = [one for one in requirements if not one.extra and one.applies]
    modules = [_module_of(one.name) for one in base]
    modules += [
        "onnxruntime",
        *([_TRIAL] if _has_runtime() else []),
        *(one.module for one in OPTIONAL if one.module and _wanted(one)),
        *([RTX.module] if _has_rtx() else []),
        DRIVER,
    ]
    seen = _Seen(requirements, load_apart(modules))
    items = (
        *_program(requirements),
        *(_needed(one, seen) for one in base),
        _runtime(seen),
        *(_optional(one, seen) for one in OPTIONAL),
        _tensorrt_rtx(RTX, seen),
        *_machine(seen),
    )
    return Diagnosis(items)


def _program(requirements: Sequence[Requirement]) -> Iterator[Item]:
    folder = Path(__file__).resolve().parent
    installed = version_of("qdqtool")
    text = f"runs from {folder}" + ("" if installed else ", not installed by pip")
    if installed and installed != __version__:
        text += f", beside the {installed} that pip has recorded"
        yield Item("program", "qdqtool", "note", __version__, text, "pip install it again, or check which one is used")
    elif not requirements:
        text += "; what it needs is not recorded anywhere"
        yield Item("program", "qdqtool", "wrong", __version__, text, "pip install qdqtool")
    else:
        yield Item("program", "qdqtool", "ok", __version__, text)
    yield Item("program", "Python", "ok", platform.python_version(), f"{sys.executable}, {platform.platform()}")


def _needed(one: Requirement, seen: _Seen) -> Item:
    """A package that every installation has."""
    loaded, version = seen.loaded[_module_of(one.name)], version_of(one.name)
    version = version or loaded.version
    todo = f'pip install "{one.spelled}"'
    if loaded.missing:
        return Item("needed", one.name, "wrong", version, "is missing", todo)
    return _judged(Item("needed", one.name, "ok", version), loaded, one)


def _judged(item: Item, loaded: Loaded, requirement: Requirement | None) -> Item:
    """The same item, or what is wrong with it: it does not load, or its version does not do."""
    spelled = requirement.spelled if requirement else item.name
    if loaded.error:
        todo = f'pip install --force-reinstall "{spelled}"'
        return Item(item.section, item.name, "wrong", item.version, f"does not load ({loaded.error})", todo)
    if requirement and item.version and not requirement.allows(item.version):
        text = f"is {item.version}, and qdqtool needs {spelled}"
        return Item(item.section, item.name, "wrong", item.version, text, f'pip install "{spelled}"')
    return item


def _runtime(seen: _Seen) -> Item:
    """The onnxruntime that runs models: one flavor, whole, and the one that pip believes to be there."""
    from qdqtool.runtime.installed import flavor_clash, installed_flavors

    loaded, found = seen.loaded["onnxruntime"], installed_flavors()
    if len(found) > 1:
        clash = flavor_clash(found)
        return Item("optional", "onnxruntime", "wrong", loaded.version, clash.reason, clash.todo)
    if loaded.missing and not found:
        choice = ("cpu", "gpu") if seen.loaded[DRIVER].missing else ("gpu", "cpu")
        todo = 'pip install "qdqtool[{}]" (or [{}]; or [train], in an environment of its own)'.format(*choice)
        return Item("optional", "onnxruntime", "missing", "", f"for {RUNTIME_SERVES}", todo)
    name = found[0] if found else "onnxruntime"
    recorded = version_of(name)
    requirement = _requirement_for_flavor(name, seen.requirements)
    item = _judged(Item("optional", name, "ok", recorded or loaded.version), loaded, requirement)
    if item.state == "wrong":
        return item
    facts = loaded.facts or {}
    again = f"pip install --force-reinstall --no-deps {name}"
    if loaded.missing or not facts.get("whole"):
        return Item("optional", name, "wrong", item.version, "is installed only in part", again)
    if recorded and loaded.version and recorded != loaded.version:
        text = f"pip has recorded {recorded}, the files are of {loaded.version}: another flavor was written over it"
        return Item("optional", name, "wrong", loaded.version, text, again)
    tried = seen.loaded.get(_TRIAL, Loaded())
    if fault := _cannot_run(name, tried):
        todo = f'pip install --force-reinstall "{requirement.spelled if requirement else name}"'
        return Item("optional", name, "wrong", item.version, fault, todo)
    providers = [str(provider) for provider in facts["providers"]]
    text = f"for {RUNTIME_SERVES}; {', '.join(providers)}"
    if tried.facts and tried.facts.get("gradients"):
        text += "; builds gradients for finetune --backend ort-training"
    if _GPU_PROVIDERS.intersection(providers) and seen.loaded[DRIVER].missing:
        return Item("optional", name, "note", item.version, text, "no CUDA driver is found: only --provider cpu works")
    return Item("optional", name, "ok", item.version, text)


def try_runtime() -> dict[str, object]:
    """Run a small model as the verbs do: weights not copied, an operator that onnxruntime lacks, one tensor observed.

    Raises:
        Exception: whatever is wrong with the onnxruntime that is installed.
    """
    import numpy as np
    import onnx

    from qdqtool.autodiff.installed import has_gradient_kernels
    from qdqtool.graph.model import Model
    from qdqtool.runtime.activations import OrtActivations

    weight = np.full((2, 300), 3.0, np.float32)  # too large to stay in the model
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
        onnx.helper.make_node("EfficientNMS_TRT", ["y", "y"], ["count", "boxes", "scores", "classes"]),
    ]
    kind = onnx.TensorProto.FLOAT
    ends = [onnx.helper.make_tensor_value_info(name, kind, shape) for name, shape in (("x", [1, 2]), ("y", [1, 300]))]
    graph = onnx.helper.make_graph(nodes, "trial", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weight, "w")])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 13)])
    found = dict(OrtActivations(Model(model), where="a trial").run({"x": np.ones((1, 2), np.float32)}))
    if sorted(found) != ["x", "y"] or not (found["y"] == 6).all():
        raise RuntimeError("a product of two matrices is wrong")
    return {"gradients": has_gradient_kernels()}


def _cannot_run(name: str, tried: Loaded) -> str:
    """What of the verbs' work this onnxruntime cannot do, though it loads; "" where all is well."""
    if tried.error:
        return f"loads, but does not run a model as the verbs do ({tried.error})"
    if _is_training(name) and tried.facts and not tried.facts.get("gradients"):
        return "builds no gradients, which finetune --backend ort-training needs: another flavor was written over it"
    return ""


def _is_training(name: str) -> bool:
    return "training" in name


def _has_runtime() -> bool:
    from qdqtool.runtime.installed import installed_flavors

    return bool(installed_flavors())


def _requirement_for_flavor(name: str, requirements: Sequence[Requirement]) -> Requirement | None:
    """What is asked of a flavor; of one that no extra names, what is asked of the plain one."""
    plain = "onnxruntime-training-cpu" if _is_training(name) else "onnxruntime"
    table = {one.name: one for one in requirements}
    found = table.get(name) or table.get(plain)
    return Requirement(name, found.clauses, found.extra, found.python) if found else None


def _optional(one: Extra, seen: _Seen) -> Item:
    """A package that only some verbs need."""
    installed = {wheel: version for wheel in one.wheels if (version := version_of(wheel))}
    loaded = seen.loaded.get(one.module, Loaded(missing=not installed))
    version = next(iter(installed.values()), loaded.version)
    if loaded.missing and not installed:
        todo = f'pip install "qdqtool[{one.extra}]"'
        return Item("optional", one.name, "missing", "", f"for {one.serves}", todo)
    if loaded.missing:
        loaded = Loaded(error="its files are not there")
    if one.name == "tensorrt":
        return _tensorrt(one, version, [*installed], loaded, seen)
    if one.name == "pycuda" and seen.loaded[DRIVER].missing:
        return Item("optional", one.name, "note", version, f"for {one.serves}", "it needs a CUDA driver; none is found")
    requirement = next((each for each in seen.requirements if each.name == one.name), None)
    text = f"for {one.serves}" + ("" if one.module else " (not loaded, since that takes seconds)")
    return _judged(Item("optional", one.name, "ok", version, text), loaded, requirement)


def _tensorrt(one: Extra, version: str, wheels: Sequence[str], loaded: Loaded, seen: _Seen) -> Item:
    """TensorRT: one wheel per CUDA version, each over the other; calibrators from 8.5 to 10.16."""
    plain = [wheel for wheel in wheels if wheel != "tensorrt"]
    if len(plain) > 1:
        fix = f"pip uninstall -y {' '.join(plain)}, then pip install one of them"
        text = f"{' and '.join(plain)} are installed over one another"
        return Item("optional", one.name, "wrong", version, text, fix)
    item = _judged(Item("optional", one.name, "ok", version), loaded, None)
    if item.state == "wrong":
        return item
    requirement = next((each for each in seen.requirements if each.name == "tensorrt"), None)
    if requirement and not requirement.allows(version):
        clauses = " and ".join(f"{sign} {bound}" for sign, bound in requirement.clauses)
        text = f"has no calibrators that qdqtool can use, so not {one.serves}, which needs {clauses}"
        return Item("optional", one.name, "note", version, text, "insert and graft need no TensorRT")
    return Item("optional", one.name, "ok", version, f"for {one.serves}; it has calibrators")


def _tensorrt_rtx(one: Extra, seen: _Seen) -> Item:
    """TensorRT for RTX, in this Python or in one that the environment names: whether it builds an engine."""
    from qdqtool.tensorrt_rtx.installed import LICENSE, find_library, why_no_wheel

    try:
        library = find_library()
    except QdqError as error:
        return Item("optional", one.name, "wrong", "", f"{error.where} {error.reason}", error.todo)
    if library is None:
        reason = why_no_wheel()
        todo = "" if reason else f'pip install "qdqtool[{one.extra}]"'
        return Item("optional", one.name, "missing", "", f"for {one.serves}" + (f"; {reason}" if reason else ""), todo)
    tried = seen.loaded.get(one.module, Loaded(error="was not tested"))
    if tried.error:
        todo = f"{library.python} -m pip install --force-reinstall tensorrt-rtx-cu12"
        return Item("optional", one.name, "wrong", library.version, f"builds no engine ({tried.error})", todo)
    where = "" if library.python == sys.executable else f" in {library.python}"
    text = f"for {one.serves}{where}; built a trial engine in {(tried.facts or {})['cpu_seconds']:.1f} CPU s; {LICENSE}"
    return Item("optional", one.name, "ok", library.version, text)


def _has_rtx() -> bool:
    from qdqtool.tensorrt_rtx.installed import find_library

    try:
        return find_library() is not None
    except QdqError:
        return False


def _machine(seen: _Seen) -> Iterator[Item]:
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    yield Item("machine", "CPUs", "ok", "", f"{usable} of {count} for this process" if usable != count else str(count))
    yield _kernel()
    driver, gpus = seen.loaded[DRIVER], visible_gpus()
    if driver.error:
        yield Item("machine", "CUDA driver", "wrong", "", driver.error, "install NVIDIA's driver again")
    elif driver.missing and gpus:
        text = f"not found, though there is a GPU ({', '.join(gpus)})"
        yield Item("machine", "CUDA driver", "note", "", text, "give the container the driver's libraries")
    elif driver.missing:
        yield Item("machine", "CUDA driver", "ok", "", "not found; only a GPU or TensorRT needs it")
    else:
        text = f"serves CUDA up to {driver.version}; GPU: {', '.join(gpus) or 'none found'}"
        yield Item("machine", "CUDA driver", "ok", "", text)


def _kernel() -> Item:
    """What counts the histograms of a calibration."""
    try:
        from qdqtool.amax import kernel

        return Item("machine", "histograms", "ok" if kernel.in_use() == "c" else "note", "", kernel.why())
    except QdqError as error:
        return Item("machine", "histograms", "wrong", "", f"{error.where} {error.reason}", error.todo)
    except ImportError as error:  # NumPy itself is missing or broken, and is reported as such
        return Item("machine", "histograms", "note", "", f"not known: {error.name or 'NumPy'} does not load")


def visible_gpus(root: Path = Path("/")) -> list[str]:
    """NVIDIA GPUs as the kernel's driver shows them, by model or by device file; nothing is started to see them."""
    cards = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    models = [line.partition(":")[2].strip() for file in cards for line in _lines(file) if line.startswith("Model:")]
    if models:
        return models
    files = sorted((root / "dev").glob("nvidia[0-9]*")) + sorted((root / "dev").glob("nvhost-gpu"))
    return [f"/dev/{file.name}" for file in files]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def version_of(name: str) -> str:
    """The version that pip has recorded for a distribution; "" where there is none, or its record is damaged."""
    try:
        return importlib.metadata.version(name) or ""
    except (importlib.metadata.PackageNotFoundError, KeyError):
        return ""


def _module_of(name: str) -> str:
    return _MODULES.get(normal_name(name), name)


def _wanted(one: Extra) -> bool:
    """Whether to import it at all: TensorRT may be there without pip's record, others not."""
    return one.name == "tensorrt" or any(version_of(wheel) for wheel in one.wheels)
