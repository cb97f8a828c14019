# SPDX-License-Identifier: Apache-2.0
"""Builds an engine with the TensorRT that is installed, 8.5 or later, by Polygraphy's loaders. Needs its GPU.

What is asked of the builder is decided in `recipe.py`. A cache goes to NVIDIA's calibrator, which is never fed: where
TensorRT asks for data it has refused the cache, and so is the build.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtool.building.recipe import BuildRecipe
from qdqtool.cache.text import Cache, format_cache
from qdqtool.calibration.tensorrt.log_capture import Said, quiet_polygraphy
from qdqtool.display import counted, named
from qdqtool.emit.precision_json import LayerPrecisions
from qdqtool.errors import QdqError
from qdqtool.runtime.installed import one_line

Shape = tuple[int, ...]
_NO_GPU = "it needs a GPU and a driver of its CUDA; see nvidia-smi"


@dataclass(frozen=True)
class EngineRequest:
    """A model and everything that TensorRT needs to build an engine of it.

    Attributes:
        name: what messages call the model.
        path: its file, beside which its external data lie; None for a model in memory.
        data: the model, where it has no file.
        recipe: flags.
        shapes: input -> lowest, best and highest shape.
        cache: the calibration cache's file, and what stands in it.
        precisions: layers that must not run in INT8.
        workspace: bytes of scratch memory, None for all there is.
        timing_cache: file of tactics, which is read and written in place; None for none.
    """

    name: str
    recipe: BuildRecipe
    path: Path | None = None
    data: bytes = b""
    shapes: Mapping[str, tuple[Shape, Shape, Shape]] = field(default_factory=dict)
    cache: tuple[Path, Cache] | None = None
    precisions: LayerPrecisions = field(default_factory=LayerPrecisions)
    workspace: int | None = None
    timing_cache: Path | None = None


@dataclass(frozen=True)
class TensorrtEngine:
    """A serialized engine.

    Attributes:
        data: its bytes.
        layers: what its inspector says of the layers, JSON; "" where TensorRT tells nothing.
        notes: what the user must know, a sentence each.
    """

    data: bytes
    layers: str = ""
    notes: tuple[str, ...] = ()


def build_with_tensorrt(request: EngineRequest, module: Any) -> TensorrtEngine:
    """Parse, configure and build; the caller writes the bytes.

    Raises:
        QdqError: the parser or the builder refuses it, in its own words; there is no GPU or no such DLA core; the
            cache was not taken.
    """
    with quiet_polygraphy() as said, _calibrator(request, module) as calibrator:
        builder, network, parser = _parsed(request, said)
        _check_dla(request, builder)
        notes = _set_precisions(request, network, module)
        config = _config(request, module, calibrator)
        data = _built(request, (builder, network, parser), config, said)
        if calibrator is not None and calibrator.asked:
            reason = "was rejected by TensorRT, which needs calibration data"
            todo = "give the cache of this model and this TensorRT"
            raise QdqError(calibrator.path, reason, todo) from said.messages()
        return TensorrtEngine(data, _inspected(data), tuple(notes))


class _NoData:
    """Batches that nobody has, and whether any was asked for."""

    def __init__(self) -> None:
        self.asked = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self  # Polygraphy makes an iterator before TensorRT asks for anything

    def __next__(self) -> Mapping[str, Any]:
        self.asked = True
        raise StopIteration


@dataclass
class _CachedCalibrator:
    """Polygraphy's calibrator over a cache, and the data that it must not need."""

    path: Path
    made: Any
    data: _NoData

    @property
    def asked(self) -> bool:
        """Whether TensorRT wanted data."""
        return self.data.asked


@contextlib.contextmanager
def _calibrator(request: EngineRequest, module: Any) -> Iterator[_CachedCalibrator | None]:
    if request.cache is None:
        yield None
        return
    from polygraphy.backend.trt import Calibrator

    data = _NoData()
    base = module.IInt8EntropyCalibrator2
    algo = module.CalibrationAlgoType.ENTROPY_CALIBRATION_2
    with tempfile.TemporaryDirectory(prefix="qdqtool-build-") as folder:
        held = Path(folder) / "cache"  # a copy: Polygraphy writes to the file that it reads
        held.write_text(format_cache(request.cache[1]), encoding="utf-8")
        with Calibrator(data, cache=str(held), BaseClass=base, algo=algo) as made:
            yield _CachedCalibrator(request.cache[0], made, data)


def _parsed(request: EngineRequest, said: Said) -> tuple[Any, Any, Any]:
    from polygraphy.backend.trt import NetworkFromOnnxBytes, NetworkFromOnnxPath
    from polygraphy.exception import PolygraphyException

    typed = request.recipe.strongly_typed
    if request.path is not None:
        load: Any = NetworkFromOnnxPath(str(request.path), strongly_typed=typed)
    else:
        load = NetworkFromOnnxBytes(request.data, strongly_typed=typed)
    try:
        builder, network, parser = load()
    except PolygraphyException as error:
        reason = f"TensorRT's parser refuses it ({said.last or one_line(error)})"
        raise QdqError(request.name, reason, "run qdqtool lint on it") from said.messages()
    except (RuntimeError, TypeError) as error:  # pybind11's word for a builder that is null
        raise QdqError("TensorRT", f"does not start a builder ({said.last or one_line(error)})", _NO_GPU) from error
    return builder, network, parser


def _check_dla(request: EngineRequest, builder: Any) -> None:
    core = request.recipe.dla_core
    if core is not None and core >= builder.num_DLA_cores:
        reason = f"this machine has {builder.num_DLA_cores or 'no'} DLA cores"
        raise QdqError(f"--dla-core {core}", reason, "run on the board, or leave --dla-core out")


def _set_precisions(request: EngineRequest, network: Any, module: Any) -> list[str]:
    """Give layers their precision, as the script of `peel --emit polygraphy-script` does; which of them were found."""
    wanted = request.precisions
    if not wanted:
        return []
    types = {"fp16": module.float16, "fp32": module.float32}
    found: set[str] = set()
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        outputs = [layer.get_output(place) for place in range(layer.num_outputs)]
        names = tuple(one.name for one in outputs)
        precision = wanted.of(layer.name, names)
        floats = [place for place, one in enumerate(outputs) if one.dtype in types.values()]
        if not precision or not floats:
            continue
        found.add(layer.name)
        layer.precision = types[precision]
        if wanted.is_typed(layer.name, names):
            for place in floats:
                layer.set_output_type(place, types[precision])
    lost = [name for name in wanted.layers if name not in found]
    if not lost:
        return []
    lost_text = f"{counted(len(lost), 'layer')} that should stay in float {'is' if len(lost) == 1 else 'are'}"
    return [f"{lost_text} not in the network: {named(lost)}"]


def _config(request: EngineRequest, module: Any, calibrator: _CachedCalibrator | None) -> Any:
    """The builder's configuration, as a Polygraphy loader."""
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig, Profile

    recipe = request.recipe
    profile = Profile()
    for name, (low, best, high) in request.shapes.items():
        profile.add(name, min=low, opt=best, max=high)
    pools = None if request.workspace is None else {module.MemoryPoolType.WORKSPACE: request.workspace}
    timed = request.timing_cache
    dla = recipe.dla_core is not None
    config = CreateConfig(
        tf32="TF32" in recipe.flags,
        fp16="FP16" in recipe.flags,
        bf16="BF16" in recipe.flags,
        int8="INT8" in recipe.flags,
        calibrator=None if calibrator is None else calibrator.made,
        precision_constraints="obey" if request.precisions else None,
        profiles=[profile],
        use_dla=dla,
        allow_gpu_fallback=dla,
        memory_pool_limits=pools,
        load_timing_cache=str(timed) if timed is not None and timed.exists() else None,
    )
    return PostprocessConfig(config, _on_core(recipe, module)) if dla else config


def _on_core(recipe: BuildRecipe, module: Any) -> Any:
    def choose(builder: Any, network: Any, config: Any) -> None:
        """The core that was asked for; Polygraphy takes the first, and prefers precisions where they must hold."""
        config.DLA_core = recipe.dla_core
        obeyed = getattr(module.BuilderFlag, "OBEY_PRECISION_CONSTRAINTS", None)
        if obeyed is not None and config.get_flag(obeyed):
            config.clear_flag(module.BuilderFlag.PREFER_PRECISION_CONSTRAINTS)

    return choose


def _built(request: EngineRequest, network: tuple[Any, Any, Any], config: Any, said: Said) -> bytes:
    from polygraphy.backend.trt import EngineBytesFromNetwork
    from polygraphy.exception import PolygraphyException

    timed = None if request.timing_cache is None else str(request.timing_cache)
    try:
        return bytes(EngineBytesFromNetwork(network, config=config, save_timing_cache=timed)())
    except (PolygraphyException, RuntimeError, TypeError) as error:
        reason = f"TensorRT builds no engine of it ({said.last or one_line(error)})"
        raise QdqError(request.name, reason, "run qdqtool lint on it") from said.messages()


def _inspected(data: bytes) -> str:
    """What the inspector of the engine says of its layers; "" where this machine cannot load it, such as for a DLA."""
    import tensorrt
    from polygraphy.backend.trt import EngineFromBytes
    from polygraphy.exception import PolygraphyException

    try:
        engine = EngineFromBytes(data)()
        return str(engine.create_engine_inspector().get_engine_information(tensorrt.LayerInformationFormat.JSON))
    except (PolygraphyException, RuntimeError, TypeError):
        return ""
