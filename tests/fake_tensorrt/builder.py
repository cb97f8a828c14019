# SPDX-License-Identifier: Apache-2.0
"""Builder, configuration and profiles of the stand-in: flags are remembered, and a build calibrates."""

from __future__ import annotations

import contextlib
import enum
import json
import os
from collections.abc import Sequence
from typing import Any

from qdqtool.errors import QdqError
from tests.fake_tensorrt.calibration import calibrate
from tests.fake_tensorrt.callbacks import Recorded
from tests.fake_tensorrt.network import LayerType, Network
from tests.fake_tensorrt.running import ICudaEngine
from tests.fake_tensorrt.state import Fake

_STDOUT, STRONGLY_TYPED = 1, 1
ENGINE = b"no engine: this TensorRT is a stand-in"


class DeviceType(enum.Enum):
    """Where layers run."""

    GPU = 0
    DLA = 1


class OptimizationProfile:
    """IOptimizationProfile: shapes by input."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[tuple[int, ...], ...]] = {}

    def set_shape(self, name: str, low: Sequence[int], opt: Sequence[int], high: Sequence[int]) -> None:
        """Keep the three shapes of an input."""
        self._shapes[name] = (tuple(low), tuple(opt), tuple(high))

    def get_shape(self, name: str) -> list[tuple[int, ...]]:
        """The three shapes of an input."""
        return list(self._shapes[name])


class TimingCache(bytes):
    """ITimingCache: a build adds a word to what it was made of."""

    def combine(self, other: TimingCache, ignore_mismatch: bool) -> bool:
        """Take in another; this one has all of it already."""
        return True

    def serialize(self) -> HostMemory:
        """Its bytes."""
        return HostMemory(self)


class BuilderConfig:
    """IBuilderConfig.

    Attributes:
        flags: names of the flags that are set.
        pools: limits of memory pools, in bytes.
    """

    def __init__(self, fake: Fake) -> None:
        self.flags: set[str] = set()
        self.default_device_type = DeviceType.GPU
        self.DLA_core = -1
        self.profiles: list[OptimizationProfile] = []
        self.pools: dict[Any, int] = {}
        self.timing_cache = TimingCache(b"")
        self._calibration: OptimizationProfile | None = None
        if fake.version.has_caches:
            self.int8_calibrator: Any = None

    @property
    def num_optimization_profiles(self) -> int:
        """How many profiles there are."""
        return len(self.profiles)

    def set_flag(self, flag: enum.Enum) -> None:
        """Set a flag."""
        self.flags.add(flag.name)

    def clear_flag(self, flag: enum.Enum) -> None:
        """Clear a flag."""
        self.flags.discard(flag.name)

    def get_flag(self, flag: enum.Enum) -> bool:
        """Whether it is set."""
        return flag.name in self.flags

    def set_memory_pool_limit(self, pool: enum.Enum, size: int) -> None:
        """Limit a pool."""
        self.pools[pool] = size

    def create_timing_cache(self, data: bytes) -> TimingCache:
        """A cache of timed tactics."""
        return TimingCache(data)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        """Time with it."""
        self.timing_cache = cache
        return True

    def get_timing_cache(self) -> TimingCache:
        """What was timed."""
        return self.timing_cache

    def add_optimization_profile(self, profile: OptimizationProfile) -> int:
        """Keep a profile."""
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def set_calibration_profile(self, profile: OptimizationProfile) -> bool:
        """Keep the profile whose shapes are calibrated."""
        self._calibration = profile
        return True

    def get_calibration_profile(self) -> OptimizationProfile | None:
        """That profile."""
        return self._calibration


class HostMemory(bytes):
    """IHostMemory: bytes that are also a context."""

    @property
    def nbytes(self) -> int:
        """How many."""
        return len(self)

    def __enter__(self) -> HostMemory:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to free."""


class Builder:
    """trt.Builder of one stand-in; the module holds a subclass that knows which."""

    fake: Fake

    def __init__(self, logger: Any) -> None:
        if not self.fake.behavior.gpu:
            logger.log(logger.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._logger = logger

    @property
    def num_DLA_cores(self) -> int:  # the bindings' name
        """How many the machine has."""
        return self.fake.behavior.dla_cores

    def create_network(self, flags: int = 0) -> Network:
        """An empty network."""
        network = Network(self.fake.version)
        network.strongly_typed = bool(flags & 1 << STRONGLY_TYPED)
        return network

    def create_builder_config(self) -> BuilderConfig:
        """A configuration with nothing set."""
        return BuilderConfig(self.fake)

    def create_optimization_profile(self) -> OptimizationProfile:
        """A profile without shapes."""
        return OptimizationProfile()

    def build_serialized_network(self, network: Network, config: BuilderConfig) -> HostMemory | None:
        """Calibrate where INT8 is on, there is a calibrator and no Q/DQ; then what passes for an engine, or None."""
        fake = self.fake
        fake.config, fake.network = config, network
        if fake.behavior.says:
            os.write(_STDOUT, fake.behavior.says.encode())
        calibrator = getattr(config, "int8_calibrator", None)
        explicit = any(layer.type in (LayerType.QUANTIZE, LayerType.DEQUANTIZE) for layer in network)
        if "INT8" in config.flags and calibrator is not None and not explicit:
            target = "dla" if config.default_device_type is DeviceType.DLA else "gpu"
            calibrate(fake, Recorded(fake.callbacks(calibrator), fake), network, _shapes(network, config), target)
        if fake.behavior.fails:
            self._logger.log(self._logger.ERROR, fake.behavior.fails)
            return None
        fake.builds += 1
        config.timing_cache = TimingCache(bytes(config.timing_cache) + b"timed;")
        return HostMemory(ENGINE)


class Inspector:
    """IEngineInspector: the nodes of the network as layers."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake

    def get_engine_information(self, form: enum.Enum) -> str:
        """One layer for each node, by its name alone."""
        return json.dumps({"Layers": [layer.name for layer in self._fake.network], "Bindings": []})


class Engine(ICudaEngine):
    """The engine with what tells its layers; it computes where onnxruntime is."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake
        with contextlib.suppress(QdqError):  # a model or a machine that onnxruntime is not for
            super().__init__(fake)

    def create_engine_inspector(self) -> Inspector:
        """What tells its layers."""
        return Inspector(self._fake)


class Runtime:
    """trt.Runtime of one stand-in."""

    fake: Fake

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, data: bytes) -> Engine | None:
        """The engine; None for a stand-in that cannot load its own, as a DLA's loadable cannot."""
        return Engine(self.fake) if self.fake.behavior.loads and bytes(data) == ENGINE else None


def _shapes(network: Network, config: BuilderConfig) -> dict[str, tuple[int, ...]]:
    """The shape that each input is calibrated at: its own, or OPT of the calibration profile."""
    profile = config.get_calibration_profile()
    shapes = {}
    for index in range(network.num_inputs):
        one = network.get_input(index)
        shapes[one.name] = profile.get_shape(one.name)[1] if -1 in one.shape and profile else one.shape
    return shapes
