# SPDX-License-Identifier: Apache-2.0
"""A runner of Polygraphy that computes what an INT8 model gives: the verb `simulate`. No step of the verb is here."""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polygraphy import mod, util
from polygraphy.backend.base import BaseRunner
from polygraphy.backend.onnx import util as onnx_util
from polygraphy.common import TensorMetadata

from qdqtool.polygraphy.arguments import model_of, report_errors

if TYPE_CHECKING:
    import onnx

    from qdqtool.polygraphy.arguments import Model
    from qdqtool.runtime.executor import Executor
    from qdqtool.verbs.simulate_options import SimulateOptions


@mod.export()
class Int8SimRunner(BaseRunner):
    """Runs an INT8 model on a CPU with the rounding of a GPU or a DLA. No figure of it is a measurement of TensorRT."""

    def __init__(self, model: Model, options: SimulateOptions | None = None, name: str | None = None) -> None:
        """Simulate an INT8 model.

        Args:
            model: a Q/DQ model, or a plain one whose cache the options name, or a callable that returns one.
            options: target, version and cache; see `SimulateOptions`.
            name: what reports call the runner; by default Polygraphy makes one.
        """
        super().__init__(name=name, prefix="int8-sim-runner")
        self._model = model
        self._options = options
        self._executor: Executor
        self._graph: onnx.GraphProto

    @util.check_called_by("activate")
    @report_errors
    def activate_impl(self) -> None:
        """Make the session."""
        import onnx_graphsurgeon as gs

        from qdqtool.graph.model import Model
        from qdqtool.runtime.executor import Executor
        from qdqtool.verbs.simulate import simulated_model

        model = model_of(self._model)
        proto = gs.export_onnx(model) if isinstance(model, gs.Graph) else model
        one = simulated_model(proto, self._options)
        self._executor = Executor(Model(one.model, one.folder), None, one.name)
        self._graph = one.model.graph

    @util.check_called_by("get_input_metadata")
    def get_input_metadata_impl(self) -> TensorMetadata:
        """Name, type and shape of each input; made anew, since Polygraphy changes what it is given."""
        return onnx_util.get_input_metadata(self._graph)

    @util.check_called_by("infer")
    @report_errors
    def infer_impl(self, feed_dict: Mapping[str, Any]) -> OrderedDict[str, Any]:
        """The outputs of one batch, by name; torch tensors where the inputs are such."""
        is_torch = any(util.array.is_torch(one) for one in feed_dict.values())
        arrays = {name: util.array.to_numpy(one) for name, one in feed_dict.items()}
        begun = time.perf_counter()
        found = self._executor.run(arrays)
        self.inference_time = time.perf_counter() - begun
        return OrderedDict((name, util.array.to_torch(one) if is_torch else one) for name, one in found.items())

    @util.check_called_by("deactivate")
    def deactivate_impl(self) -> None:
        """Release the session."""
        del self._executor, self._graph
