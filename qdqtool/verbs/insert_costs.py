# SPDX-License-Identifier: Apache-2.0
"""`insert --build`: what INT8 costs and gives, from engines of the model before and after, built on this CPU.

Beside them the FP16 file, and the Q/DQ file with other options (`INT8_OPTIONS`): the fewest bytes are named, none is
chosen. How accurate a file is, nothing here says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from qdqtool.errors import QdqError
from qdqtool.graph.inline_functions import inline_products
from qdqtool.graph.io import copy_of
from qdqtool.graph.model import Model
from qdqtool.graph.weighted import is_product
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.typed_pairs import PlannedModel
from qdqtool.precision.assignment import TypeAssignment
from qdqtool.precision.casts import apply_types
from qdqtool.precision.fixed_types import fixed_float32
from qdqtool.precision.widen import is_typed
from qdqtool.quantizing.place import fit, place
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.rtxversion import RTX_TARGET
from qdqtool.scales import Scale, ScaleTable
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_opened
from qdqtool.tensorrt_rtx.cost import EngineCost, cost_of
from qdqtool.tensorrt_rtx.installed import RtxLibrary, require_library

_FP16 = TypeAssignment(int(onnx.TensorProto.FLOAT16))
_REST = "--rest fp16"
# What a user may add to `insert --target rtx`: the words, and the plan that they ask for.
INT8_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "--weights per-tensor": {"weights": "per-tensor"},
    "--depthwise float": {"depthwise": "float"},
    "--weights per-tensor --depthwise float": {"weights": "per-tensor", "depthwise": "float"},
}


@dataclass(frozen=True)
class Int8Costs:
    """The engine of the Q/DQ model beside that of the model as it was given.

    Attributes:
        int8: of the Q/DQ model as it is written.
        float: of the model before.
        fp16: of the model before in FP16, but for operators that cannot have that type; values are not looked at.
        wide: why the first product of that model has to be FP32; "" where none has to.
        others: options of `insert` -> of the Q/DQ model that they would give.
    """

    int8: EngineCost
    float: EngineCost
    fp16: EngineCost
    others: Mapping[str, EngineCost] = field(default_factory=dict)
    wide: str = ""

    @property
    def pays(self) -> bool:
        """Whether the INT8 file moves fewer bytes than the FP16 file."""
        return self.int8.bytes_moved < self.fp16.bytes_moved

    @property
    def best(self) -> str:
        """The options that give the Q/DQ model with the fewest bytes; "" where it is the one that is written."""
        found = min(self.others, key=lambda words: (self.others[words].bytes_moved, words), default="")
        return found if found and self.others[found].bytes_moved < self.int8.bytes_moved else ""

    def lines(self) -> list[str]:
        """What the three files cost; whether INT8 may pay; and which options move fewer bytes, where any do."""
        int8, fp16 = (f"{one.bytes_moved / 1e6:.1f} MB" for one in (self.int8, self.fp16))
        files = f"INT8 file {self.int8.text()}; float file {self.float.text()}; FP16 file {self.fp16.text()}"
        plans = f"compiler's plan ({self.int8.source}): {files}"
        verdict = f"INT8 will probably not be faster: it moves {int8}, the FP16 file {fp16}; prefer FP16"
        if self.pays:
            verdict = f"INT8 moves {int8}, the FP16 file {fp16}; only a run on the GPU shows whether it is faster"
        wide = self.fp16.products.get("FP32", 0)
        if wide and not self.fp16.products.get("FP16"):
            verdict = f"there is no FP16 to compare with: INT8 moves {int8}, the file in FP32 {fp16}"
        reason = f" ({self.wide})" if self.wide else ""
        of_all = f"{wide} of {sum(self.fp16.products.values())} products of the FP16 file are FP32{reason}"
        return [plans, verdict, *([of_all] if wide else []), *self._advice()]

    def _advice(self) -> list[str]:
        """A sentence on the options that move the fewest bytes; nothing where none move fewer."""
        if not self.best:
            return []
        found = self.others[self.best]
        share = 100 - 100 * found.bytes_moved / max(1, self.int8.bytes_moved)
        beside = "fewer" if found.bytes_moved < self.fp16.bytes_moved else "no fewer"
        saved = f"{self.best} would move {found.bytes_moved / 1e6:.1f} MB, {share:.0f} % less, {beside} than FP16"
        cost = "one scale per weight costs accuracy" if "per-tensor" in self.best else "its accuracy was not measured"
        return [f"fewest bytes in INT8: {saved}; {cost}: look at the loss at the outputs"]

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "built": self.int8.source,
            "int8": self.int8.to_json(),
            "float": self.float.to_json(),
            "fp16": self.fp16.to_json(),
            "pays": self.pays,
            "options": {words: cost.to_json() for words, cost in self.others.items()},
            "best_options": self.best,
        }


@dataclass(frozen=True)
class PlainModel:
    """A model just before its pairs are placed, from which other options place theirs.

    Attributes:
        model: in FP32, normalized and conditioned; is not changed.
        tables: with the decisions of data, as `plan_pairs` takes them.
    """

    model: Model
    tables: tuple[ScaleTable | None, ...] = ()

    def placed(self, plan: PlanOptions) -> Model:
        """The Q/DQ model of a plan, as an FP16 rest has it.

        Where pairs stand depends on no value: a scale that no table has is 1.
        """
        planned = PlannedModel.of(self.model.copy())
        decided = plan_pairs(planned.base, plan, *self.tables)
        known = {point.tensor: Scale.of(1.0) for point in decided.activations}
        for table in self.tables:
            known |= {name: scale for name, scale in table.scales.items() if name in known} if table is not None else {}
        return fit(place(planned, decided, ScaleTable(known), plan), plan, half=True).model


class CostBuilder:
    """Builds the engines of a model as it was given, and later those of what became of it, for SM89."""

    def __init__(self, opened: Model, plan: PlanOptions, library: RtxLibrary | None = None) -> None:
        """Build the first engines; before the model is edited."""
        if plan.target != RTX_TARGET:
            raise QdqError("--build", "engines are built for the target rtx only", "add --target rtx, or leave it out")
        self._library = library or require_library()
        if opened.proto.functions:  # inlined as in the Q/DQ model, so that products are counted and typed alike
            opened = replace(opened, proto=copy_of(opened.proto), kind="proto", path=None, version=None)
            inline_products(opened)
        self._opened, self._plan = opened, plan
        self._plain: PlainModel | None = None
        self._before = self._cost(opened)
        self._half, self._wide = self._before, ""
        if not is_typed(opened):
            self._half = self._cost_of(apply_types(opened, _FP16))
            view, fixed = opened.view, fixed_float32(opened, _FP16.rest)
            wide = (f"{node.name}: {fixed[node.key]}" for node in view.every if is_product(node) and node.key in fixed)
            self._wide = next(wide, "")

    def keep_plain(self, model: Model, tables: tuple[ScaleTable | None, ...]) -> None:
        """Keep the model as it is just before its pairs are placed: other options are tried on it."""
        self._plain = PlainModel(model.copy(), tables)

    def costs(self, model: Model) -> Int8Costs:
        """All engines.

        Raises:
            QdqError: it is refused or not built.
        """
        others = {} if self._plain is None else self._others(self._plain, typed=is_typed(model))
        return Int8Costs(self._cost_of(model), self._before, self._half, others, self._wide)

    def _others(self, plain: PlainModel, *, typed: bool) -> dict[str, EngineCost]:
        """Options -> engine, of those that the user has not asked for already."""
        found = {}
        for words, asked in INT8_OPTIONS.items():
            there = any(getattr(self._plan, name) == value for name, value in asked.items())
            if not there and (words or not typed):
                made = apply_types(plain.placed(replace(self._plan, **asked)), _FP16)
                found[f"{words} {_REST}".strip()] = self._cost_of(made)
        return found

    def _cost_of(self, model: Model) -> EngineCost:
        return self._cost(replace(model, kind="proto", path=None, version=None))

    def _cost(self, opened: Model) -> EngineCost:
        return cost_of(build_opened(opened, RtxBuildOptions(), self._library))
