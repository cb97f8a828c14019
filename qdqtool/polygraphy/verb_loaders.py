# SPDX-License-Identifier: Apache-2.0
"""The verbs as loaders. No step of any verb is here."""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polygraphy import mod
from polygraphy.backend.base import BaseLoader
from polygraphy.logger import G_LOGGER

from qdqtool.polygraphy.arguments import data_of, keep_arguments, loads, model_of, value_of

if TYPE_CHECKING:
    import onnx
    import onnx_graphsurgeon as gs

    from qdqtool.cache.text import Cache
    from qdqtool.calibration.engine import CalibrationOptions
    from qdqtool.data.loader import DataOptions
    from qdqtool.polygraphy.arguments import AnyCache, AnyData, AnyPath, AnyTable, Model
    from qdqtool.scales import ScaleTable
    from qdqtool.verbs.amp_options import AmpOptions
    from qdqtool.verbs.build_options import BuildOptions
    from qdqtool.verbs.graft_options import GraftOptions
    from qdqtool.verbs.insert_options import InsertOptions
    from qdqtool.verbs.peel_options import PeelOptions
    from qdqtool.verbs.prune_options import PruneOptions
    from qdqtool.verbs.ptq_options import PtqOptions


@mod.export(funcify=True)
class InsertQdq(BaseLoader):
    """Functor that places Q/DQ where TensorRT fuses."""

    @keep_arguments
    def __init__(
        self,
        model: Model,
        data: AnyData | None = None,
        scales: AnyTable | None = None,
        options: InsertOptions | None = None,
    ) -> None:
        """Place Q/DQ where TensorRT fuses.

        Args:
            model: a plain model, or a callable that returns one.
            data: what to calibrate on: a path, feed_dicts, or a callable that returns either. With neither data nor
                scales, ranges are estimated from the model itself.
            scales: a table, its file, or a callable that returns either, in place of data.
            options: see `InsertOptions`.
        """

    @loads
    def call_impl(self) -> onnx.ModelProto | gs.Graph:
        """The Q/DQ model."""
        from qdqtool.verbs.insert import insert

        scales = value_of(self._scales)
        result = insert(model_of(self._model), data=data_of(self._data), scales=scales, options=self._options)
        for note in result.notes:
            G_LOGGER.info(note)
        for warning in result.warnings:
            G_LOGGER.warning(warning)
        return result.model


@mod.export(funcify=True)
class AmpTypes(BaseLoader):
    """Functor that gives a model FP16 or BF16 where its values allow that: the verb `amp`."""

    @keep_arguments
    def __init__(
        self,
        model: Model,
        data: AnyData | None = None,
        scales: AnyTable | None = None,
        options: AmpOptions | None = None,
    ) -> None:
        """Give a model its types.

        Args:
            model: an FP32 model, plain or with Q/DQ, or a callable that returns one.
            data: what to run: a path, feed_dicts, or a callable that returns either.
            scales: a table, its file, or a callable that returns either, in place of data.
            options: see `AmpOptions`.
        """

    @loads
    def call_impl(self) -> onnx.ModelProto | gs.Graph:
        """The typed model."""
        from qdqtool.verbs.amp import amp

        result = amp(model_of(self._model), data_of(self._data), value_of(self._scales), self._options)
        for note in result.notes:
            G_LOGGER.info(note)
        return result.model


@mod.export(funcify=True)
class PeelQdq(BaseLoader):
    """Functor that takes Q/DQ out and gives the clean model. `CacheFromQdq` gives the calibration cache."""

    @keep_arguments
    def __init__(self, model: Model, options: PeelOptions, cache_path: AnyPath | None = None) -> None:
        """Take Q/DQ out.

        Args:
            model: a Q/DQ model, or a callable that returns one.
            options: for which TensorRT and target, and how.
            cache_path: where the calibration cache goes, with where each scale comes from beside it; None writes none.
        """

    @loads
    def call_impl(self) -> onnx.ModelProto | gs.Graph:
        """The clean model."""
        from qdqtool.verbs.peel import peel

        return _warned(peel(model_of(self._model), self._options, cache=value_of(self._cache_path))).model


@mod.export(funcify=True)
class CacheFromQdq(BaseLoader):
    """Functor that gives the calibration cache of a Q/DQ model. `PeelQdq` gives the clean model it belongs to."""

    @keep_arguments
    def __init__(self, model: Model, options: PeelOptions) -> None:
        """Make a cache from the scales of Q/DQ.

        Args:
            model: a Q/DQ model, or a callable that returns one.
            options: for which TensorRT and target, and how.
        """

    @loads
    def call_impl(self) -> Cache:
        """The calibration cache."""
        from qdqtool.verbs.peel import peel

        cache: Cache = _warned(peel(model_of(self._model), self._options)).cache
        return cache


def _warned(result: Any) -> Any:
    for note in result.notes:
        G_LOGGER.warning(note)
    return result


@mod.export(funcify=True)
class CacheFromData(BaseLoader):
    """Functor that calibrates a plain model into a cache over all tensors, as TensorRT does: the verb `ptq`."""

    @keep_arguments
    def __init__(self, model: Model, data: AnyData, options: PtqOptions) -> None:
        """Calibrate into a cache.

        Args:
            model: a plain model, or a callable that returns one.
            data: what to calibrate on: a path, feed_dicts, or a callable that returns either.
            options: for which TensorRT and target, and how.
        """

    @loads
    def call_impl(self) -> Cache:
        """The calibration cache."""
        from qdqtool.verbs.ptq import ptq

        return ptq(model_of(self._model), data_of(self._data), self._options).cache


@mod.export(funcify=True)
class GraftCache(BaseLoader):
    """Functor that puts a calibration cache into a plain model as Q/DQ."""

    @keep_arguments
    def __init__(self, model: Model, cache: AnyCache, options: GraftOptions | None = None) -> None:
        """Put a cache into a model.

        Args:
            model: a plain model, or a callable that returns one.
            cache: a calibration cache, its file, or a callable that returns either.
            options: see `GraftOptions`.
        """

    @loads
    def call_impl(self) -> onnx.ModelProto | gs.Graph:
        """The Q/DQ model."""
        from qdqtool.verbs.graft import graft

        result = graft(model_of(self._model), value_of(self._cache), self._options)
        for note in result.notes:
            G_LOGGER.info(note)
        if result.unknown:
            G_LOGGER.warning(f"{len(result.unknown)} entries of the cache are for tensors that the model lacks")
        return result.model


@mod.export(funcify=True)
class PruneChannels(BaseLoader):
    """Functor that removes whole channels from a model: the verb `prune`."""

    @keep_arguments
    def __init__(self, model: Model, data: AnyData | None = None, options: PruneOptions | None = None) -> None:
        """Remove channels.

        Args:
            model: a plain or Q/DQ model, or a callable that returns one.
            data: what the check runs on: a path, feed_dicts, or a callable that returns either; None for seeded input.
            options: see `PruneOptions`.
        """

    @loads
    def call_impl(self) -> onnx.ModelProto | gs.Graph:
        """The smaller model."""
        from qdqtool.verbs.prune import prune

        result = prune(model_of(self._model), data_of(self._data), self._options)
        G_LOGGER.info(result.headline())
        return result.model


@mod.export(funcify=True)
class EngineBytesFromModel(BaseLoader):
    """Functor that builds an engine: with the TensorRT that is installed, or with TensorRT for RTX on a CPU."""

    @keep_arguments
    def __init__(self, model: Model, options: BuildOptions | None = None) -> None:
        """Build an engine.

        Args:
            model: a model, or a callable that returns one.
            options: see `BuildOptions`; its target says with which library.
        """

    @loads
    def call_impl(self) -> bytes:
        """The serialized engine."""
        import tempfile
        from pathlib import Path

        from qdqtool.verbs.build import build

        with tempfile.TemporaryDirectory(prefix="qdqtool-engine-") as folder:
            result = build(model_of(self._model), Path(folder) / "model.engine", self._options)
            for note in result.notes:
                G_LOGGER.info(note)
            return Path(result.engine).read_bytes()


@mod.export(funcify=True)
class CalibrateScales(BaseLoader):
    """Functor that runs data through a model and gives the scale of every float tensor."""

    @keep_arguments
    def __init__(
        self,
        model: Model,
        data: AnyData,
        options: CalibrationOptions | None = None,
        data_options: DataOptions | None = None,
    ) -> None:
        """Calibrate.

        Args:
            model: a plain model, or a callable that returns one.
            data: what to calibrate on: a path, feed_dicts, or a callable that returns either.
            options: method and provider.
            data_options: batch, limit, preprocessing.
        """

    @loads
    def call_impl(self) -> ScaleTable:
        """The scales, and which tensors have none and why."""
        from qdqtool.calibration.engine import calibrate

        return calibrate(model_of(self._model), data_of(self._data), self._options, self._data_options)
