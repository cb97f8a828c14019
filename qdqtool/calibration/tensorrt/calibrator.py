# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own calibrator, fed by our batches: a network parsed by TensorRT, Polygraphy's Calibrator, one build.

Needs TensorRT 8.5 to 10.16 and a GPU; the engine of the build is thrown away. A calibration cache that exists is never
shown to TensorRT, which would trust it whole. The traps and their answers: facts/interfaces.md 1.4, docs/ptq.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qdqtool.calibration.tensorrt.backend import Calibrated, Request
from qdqtool.calibration.tensorrt.batches import GUIDE, Expected, WatchedBatches
from qdqtool.calibration.tensorrt.device_memory import open_place
from qdqtool.calibration.tensorrt.input_shapes import Shapes, fix_inputs, require_fixed
from qdqtool.calibration.tensorrt.installed import Installed, find_tensorrt
from qdqtool.calibration.tensorrt.log_capture import Said, quiet_polygraphy
from qdqtool.calibration.tensorrt.written_cache import table_of, verified
from qdqtool.data.loader import DataLoader
from qdqtool.data.model_inputs import inputs_of
from qdqtool.decisions import Provenance
from qdqtool.errors import QdqError
from qdqtool.graph.io import serialize
from qdqtool.graph.tensors import is_external
from qdqtool.runtime.installed import one_line
from qdqtool.trtversion import TrtVersion


@dataclass(frozen=True)
class TensorrtBackend:
    """Keeps `contract.Backend`.

    Attributes:
        version: whose cache is wanted, which must be the installed one; None for whatever is installed.
        target: "gpu" or "dla".
        cuda: "cudart" (Polygraphy's wrapper of the CUDA runtime) or "pycuda".
        shapes: of inputs whose shape the model leaves open.
    """

    version: TrtVersion | None = None
    target: str = "gpu"
    cuda: str = "cudart"
    shapes: Shapes | None = None
    name: str = "tensorrt"

    def check(self, request: Request) -> None:
        """Say no before any data is read or any CUDA is started.

        Raises:
            QdqError: a method that is not TensorRT's, another version than asked for, a model with Q/DQ or without
                fixed shapes, one whose external data have no folder.
            MissingPackageError: no TensorRT with calibrators.
        """
        find_tensorrt(request.method, self.version)
        if request.model.view.pairs:
            raise _has_pairs(request)
        self._shapes(request)
        if request.model.path is None and any(map(is_external, request.model.proto.graph.initializer)):
            reason = "has external data, which TensorRT finds only beside a file"
            raise QdqError(request.where, reason, "give the path of the model")

    def calibrate(self, request: Request, batches: Iterable[Mapping[str, Any]]) -> Calibrated:
        """Build once with the calibrator, and take the cache that TensorRT writes.

        Args:
            request: the model.
            batches: input name -> host array, or device pointer as `pointer_of` takes it; `DataLoader` says what they
                are.

        Raises:
            QdqError: what `check` refuses; the error of a batch; TensorRT refuses the model, stops early, writes no
                cache or one that does not fit; no DLA where one is asked for.
            MissingPackageError: as `check`, and no CUDA runtime or pycuda.
        """
        self.check(request)
        installed = find_tensorrt(request.method, self.version)
        with quiet_polygraphy() as said, open_place(self.cuda) as place:
            network = _parsed(request, said)
            self._check_network(request, installed, network)
            watched = WatchedBatches(batches, _expected(network[1], self._shapes(request)), place, request.where)
            written = self._build(request, installed, network, watched, said)
        cache = verified(written, request, installed)
        table = table_of(cache, request, watched.samples)
        data = batches.facts() if isinstance(batches, DataLoader) else None
        run = Provenance(request.method, watched.samples, backend=self.name, tensorrt=installed.text, data=data)
        return Calibrated(replace(table, provenance=run), cache, written)

    def _shapes(self, request: Request) -> dict[str, tuple[int, ...]]:
        return require_fixed(fix_inputs(inputs_of(request.model.proto.graph), self.shapes or {}))

    def _check_network(self, request: Request, installed: Installed, network: tuple[Any, Any, Any]) -> None:
        """What only the parsed network and the machine tell."""
        kinds = installed.module.LayerType
        if any(layer.type in (kinds.QUANTIZE, kinds.DEQUANTIZE) for layer in network[1]):
            raise _has_pairs(request)
        for index in range(network[1].num_inputs):
            if network[1].get_input(index).is_shape_tensor:
                name = network[1].get_input(index).name
                reason = "is a shape tensor, whose values would decide what TensorRT calibrates"
                raise QdqError(name, reason, "fold it into the model first")
        if self.target == "dla" and not network[0].num_DLA_cores:
            todo = "run on the board, or leave --backend tensorrt out"
            raise QdqError("--target dla", "this machine has no DLA, so TensorRT would calibrate for the GPU", todo)

    def _build(
        self, request: Request, installed: Installed, network: tuple[Any, Any, Any], watched: WatchedBatches, said: Said
    ) -> bytes:
        """One build, which asks the calibrator for every batch; the bytes of the cache that it wrote."""
        from polygraphy.backend.trt import Calibrator, engine_bytes_from_network
        from polygraphy.exception import PolygraphyException

        calibrator = Calibrator(watched, cache=None, BaseClass=installed.base, algo=installed.algo)
        failure: Exception | None = None
        with calibrator:
            try:
                engine_bytes_from_network(network, config=self._config(request, calibrator))
            except (PolygraphyException, RuntimeError, TypeError) as error:
                failure = error
            written = bytes(calibrator.cache_contents or b"")
        if failure is not None and watched.error is None:
            reason = f"TensorRT cannot build it ({said.last or one_line(failure)})"
            raise QdqError(request.where, reason, GUIDE) from said.messages()
        watched.raise_lost(said)
        if not written:
            raise QdqError(request.where, "TensorRT calibrated and wrote no cache", GUIDE) from said.messages()
        return written

    def _config(self, request: Request, calibrator: Any) -> Any:
        """INT8 with the calibrator, one profile of the fixed shapes; for the DLA its device type and the GPU's help."""
        from polygraphy.backend.trt import CreateConfig, Profile

        profile = Profile()
        for name, shape in self._shapes(request).items():
            profile.add(name, min=shape, opt=shape, max=shape)
        dla = self.target == "dla"
        return CreateConfig(
            int8=True, fp16=dla, calibrator=calibrator, profiles=[profile], use_dla=dla, allow_gpu_fallback=dla
        )


def _parsed(request: Request, said: Said) -> tuple[Any, Any, Any]:
    """Builder, network and parser: from the file, where its external data are found, else from bytes."""
    from polygraphy.backend.trt import NetworkFromOnnxBytes, NetworkFromOnnxPath
    from polygraphy.exception import PolygraphyException

    if request.model.path is not None:
        load: Any = NetworkFromOnnxPath(str(request.model.path))
    else:
        load = NetworkFromOnnxBytes(serialize(request.model.proto))
    try:
        builder, network, parser = load()
    except PolygraphyException as error:
        reason = f"TensorRT's parser refuses it ({said.last or one_line(error)})"
        raise QdqError(request.where, reason, GUIDE) from said.messages()
    except (RuntimeError, TypeError) as error:  # pybind11's word for a builder that is null
        reason = f"does not start a builder ({said.last or one_line(error)})"
        raise QdqError("TensorRT", reason, "it needs a GPU and a driver of its CUDA; see nvidia-smi") from error
    return builder, network, parser


def _expected(network: Any, shapes: Mapping[str, tuple[int, ...]]) -> Expected:
    """What the network takes, by input: integers as it says (INT64 is INT32 before 10), everything else as float32."""
    from polygraphy.datatype import DataType

    index = {DataType.INT32: np.int32, DataType.INT64: np.int64, DataType.BOOL: np.bool_}
    tensors = [network.get_input(number) for number in range(network.num_inputs)]
    return {
        one.name: (np.dtype(index.get(DataType.from_dtype(one.dtype), np.float32)), shapes[one.name]) for one in tensors
    }


def _has_pairs(request: Request) -> QdqError:
    reason = "already has Q/DQ, beside which TensorRT ignores a calibrator"
    return QdqError(request.where, reason, "qdqtool peel takes out the scales")
