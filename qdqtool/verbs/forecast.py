# SPDX-License-Identifier: Apache-2.0
"""The verb `forecast`: the engines of a model in several formats on several boards, side by side, without data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qdqtool.data.model_inputs import inputs_of
from qdqtool.display import Cells, Displayed, counted, table
from qdqtool.emit.input_shapes import blank_shape_words, inputs_as_declared
from qdqtool.engine.layer_work import ATTENTION, LayerWork, built_work
from qdqtool.engine.profile import read_profile
from qdqtool.errors import QdqError
from qdqtool.forecasting.boards import Destination, device_of, find_place, known_boards, known_places
from qdqtool.forecasting.devices import Device, known_devices
from qdqtool.forecasting.formats import (
    PAYS,
    DecidingLayer,
    Format,
    FormatTime,
    compared,
    deciding_layers,
    fastest_format,
    in_format,
    is_below,
    time_of,
)
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.forecasting.model_layers import Rest, layers_in
from qdqtool.graph.io import ModelSource, open_model
from qdqtool.graph.model import Model
from qdqtool.graph.shapes import known_shapes
from qdqtool.linting.check_formats import formats_in
from qdqtool.match.options import AttentionType
from qdqtool.match.plan import PlanOptions
from qdqtool.passes.peel import peel_pairs
from qdqtool.passes.rewrites import without_rewrites
from qdqtool.precision.widen import as_fp32, is_typed
from qdqtool.progress import bar
from qdqtool.quantizing.place import fit, place
from qdqtool.quantizing.plan import plan_pairs
from qdqtool.quantizing.prepare import prepare
from qdqtool.scales import Scale, ScaleTable
from qdqtool.tensorrt_rtx.build import RtxBuildOptions, build_opened
from qdqtool.tensorrt_rtx.installed import require_library
from qdqtool.trtversion import TrtVersion
from qdqtool.verbs.amp import amp
from qdqtool.verbs.amp_options import AmpOptions
from qdqtool.verbs.build_options import ShapeRanges, parse_shape_ranges
from qdqtool.verbs.forecast_options import ForecastOptions

_DECIDING = 10
_LARGER_BATCH = 32
_AREA = 4  # times as many positions at twice the height and width
_IMAGE = 4  # axes
_ASSUMED = 1.0  # largest magnitude of activations: a type decides a time, not a value
_OF_TIME = 0.1  # a cause is named from this share of the time on
NOT_KNOWN = "Operators kept in float for accuracy are not known without data: each makes INT8 slower."
_WORDS = {"equal": "is about as fast as FP16", "does not pay": "will not pay"}
_HALF_TIMES = "GPU time of one inference, without copies; a forecast from published figures, not a measurement."


@dataclass(frozen=True)
class BoardForecast:
    """The formats of one model on one board.

    Attributes:
        board: as it was named.
        title: board, software and version.
        device: whose figures were taken.
        version: of TensorRT; None for TensorRT for RTX.
        rows: one for each batch and format, FP16 first.
        use: the format to take, as `deploy` chooses by time: FP16, or the first other one, that is as fast as the
            fastest within 2 %.
        sentences: why, one for each format, and the format to take.
        changes: what would change the verdict, a sentence each.
        layers: those whose time differs most between FP16 and the first other format, the most first.
        missing: formats that were asked for and do not run there.
    """

    board: str
    title: str
    device: Device
    version: TrtVersion | None
    rows: tuple[FormatTime, ...]
    use: str
    sentences: tuple[str, ...]
    changes: tuple[str, ...] = ()
    layers: tuple[DecidingLayer, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """All of `sentences`."""
        return " ".join(self.sentences)

    @property
    def pays(self) -> bool:
        """Whether a format pays over FP16."""
        return any(row.verdict == "pays" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        return {
            "board": self.board,
            "title": self.title,
            "device": self.device.name,
            "trt_version": None if self.version is None else self.version.text,
            "rows": [row.to_json() for row in self.rows],
            "use": self.use,
            "sentence": self.sentence,
            "changes": list(self.changes),
            "layers": [
                {"name": one.name, "kind": one.kind, "fp16_ms": one.fp16, "quantized_ms": one.quantized}
                for one in self.layers
            ],
            "missing": list(self.missing),
        }


@dataclass(frozen=True, repr=False)
class ForecastResult(Displayed):
    """What a model should cost where it runs; nothing was measured.

    Attributes:
        model: its name.
        boards: in the order in which they were named.
        notes: sentences on what the forecast does not know.
    """

    model: str
    boards: tuple[BoardForecast, ...]
    notes: tuple[str, ...]

    def headline(self) -> str:
        """The verdict of the one board, or how many boards should use which format."""
        if len(self.boards) == 1:
            return f"{self.model}: {self.boards[0].sentence}"
        uses = Counter(one.use for one in self.boards)
        words = ", ".join(f"{name.upper()} on {count}" for name, count in uses.most_common())
        return f"{self.model}: on {len(self.boards)} boards, use {words}"

    def rows(self) -> Cells:
        """One row for each board, batch and format."""
        figures = ("ms", "interval", "over FP16", "interval", "kernel MB", "layers", "kernels", "convert")
        found: list[Sequence[str]] = [("board", "batch", "format", *figures, "verdict")]
        for one in self.boards:
            for row in one.rows:
                span = f"{row.ratio_low:.2f} to {row.ratio_high:.2f}"
                ratio = (f"{row.ratio:.2f}x", span) if row.verdict else ("", "")
                times = _ms(row.milliseconds), f"{_ms(row.low)} to {_ms(row.high)}"
                share = f"{row.conversions} ({row.shares['conversion']:.0%})"
                size = f"{row.megabytes:.1f}", str(row.layers), str(row.kernels), share
                found.append((one.board, str(row.batch), row.format, *times, *ratio, *size, row.verdict))
        return found

    def summary(self) -> list[str]:
        """The table, the verdict, what would change it; of one board the layers that decide, of several the names."""
        cells = self.rows()
        lines = [*table(cells[0], cells[1:]), ""]
        if len(self.boards) == 1:
            (one,) = self.boards
            return [*lines, one.title, *one.sentences, *one.changes, *_layer_table(one), "", *self.notes]
        lines += [*_by_boards((one.board, (one.title,)) for one in self.boards), ""]
        lines += _by_boards((one.board, one.sentences[:-1]) for one in self.boards)
        lines += _by_boards((one.board, (*one.sentences[-1:], *one.changes)) for one in self.boards)
        return [*lines, "", *self.notes]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "model": self.model,
            "measured": False,
            "boards": [one.to_json() for one in self.boards],
            "notes": list(self.notes),
        }


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _by_boards(said: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Each sentence once, behind the names of the boards that it is said of."""
    boards: dict[str, list[str]] = {}
    for name, sentences in said:
        for sentence in sentences:
            boards.setdefault(sentence, []).append(name)
    return [f"{', '.join(names)}: {sentence}" for sentence, names in boards.items()]


def _layer_table(board: BoardForecast) -> list[str]:
    other = next((row.format for row in board.rows if row.verdict), "")
    if not other:
        return []
    rows = [(f"  {one.name}"[:60], one.kind, f"{one.fp16:.4f}", f"{one.quantized:.4f}") for one in board.layers]
    return ["The layers that decide, in ms:", *table(("  layer", "kind", "fp16", other), rows)]


def forecast(model: ModelSource, options: ForecastOptions | None = None) -> ForecastResult:
    """Say how long the engines of a model should take, by format and board. Nothing is built, run or written.

    A plain model gets the pairs that `insert` would place; one with pairs or types is taken as it is.

    Args:
        model: a path, ModelProto, gs.Graph or a callable returning one; never changed.
        options: boards, formats, batches.

    Raises:
        QdqError: a model that cannot be read or has free sides; an unknown board, version, power mode or format; a
            profile that is not of this model's engine.
    """
    options = options or ForecastOptions()
    opened = open_model(model)
    name = opened.name
    if options.shapes:
        fix_shapes(opened, parse_shape_ranges(options.shapes))
    engines = Engines(opened)
    places = [(text, find_place(text), _device(text)) for text in options.places] or list(known_places())
    found = []
    with bar("forecast", "board", len(places), None) as drawn:
        for text, place_, device in places:
            found.append(_board(text, place_, device, engines, options))
            drawn.advance()
    boards = tuple(found)
    planned = () if engines.has_pairs else (NOT_KNOWN,)
    return ForecastResult(name, boards, (_HALF_TIMES, *planned))


def forecast_board(
    opened: Model, text: str, formats: Sequence[Format] = ("int8",), attention: AttentionType = "auto"
) -> BoardForecast | None:
    """FP16 and other formats on the board that `--for` names; the model is not changed.

    None where no figures of the board are known, or sizes of the model are free.
    """
    device, where = device_of(text), find_place(text)
    if device is None or not layers_in(opened, where.version, _target(where), rest="fp16"):
        return None
    options = ForecastOptions((text,), ("fp16", *formats))
    return _board(text, where, device, Engines(opened.copy(), attention=attention), options)


def forecast_of_engines(board: BoardForecast, engines: Mapping[str, Sequence[LayerWork]]) -> BoardForecast:
    """The forecast with the engines of files in place of predicted ones.

    Args:
        board: of the same model.
        engines: format -> its layers; formats that are missing keep their rows, and without "fp16" all do.
    """
    if "fp16" not in engines:
        return board
    times, fp16 = LayerTimes(board.device), engines["fp16"]
    half, rows, sentences = time_of("fp16", fp16, times), list[FormatTime](), list[str]()
    for row, said in zip(board.rows[1:], board.sentences, strict=False):
        work = engines.get(row.format)
        if work is not None:
            row = compared(time_of(row.format, work, times), half, work, fp16, times)
            said = _sentence(row, board.device, _floats(work))
        rows.append(row)
        sentences.append(said)
    return replace(board, rows=(half, *rows), sentences=(*sentences, *board.sentences[len(rows) :]))


def _target(where: Destination) -> str:
    return "rtx" if where.version is None else "gpu"


def _device(text: str) -> Device:
    device = device_of(text)
    if device is None:
        known = ", ".join(known_devices())
        raise QdqError(f"--for {text}", "no figures of this board are known", f"name one of {known}")
    return device


def fix_shapes(opened: Model, shapes: ShapeRanges) -> None:
    """Give inputs the best of their shapes; the shapes of computed tensors that the file holds are dropped.

    A free batch stays free for one sample, as it counts as that.

    Raises:
        QdqError: no such input, or one whose fixed sides differ.
    """
    graph = opened.proto.graph
    inputs = {one.name: one for one in graph.input}
    for name, (_, best, _) in shapes.items():
        dims = inputs[name].type.tensor_type.shape.dim if name in inputs else ()
        fixed = [dim.dim_value for dim in dims]
        if len(fixed) != len(best) or any(own and own != side for own, side in zip(fixed, best, strict=True)):
            known = ", ".join(inputs)
            text = "x".join(map(str, best))
            raise QdqError(f"--shapes {name}:{text}", f"does not fit the input {name!r}", f"inputs are {known}")
        for axis, (dim, side) in enumerate(zip(dims, best, strict=True)):
            if axis or side != 1:
                dim.dim_value = side
    del graph.value_info[:]
    opened.changed()


class Engines:
    """The layers of a model's engines, predicted once for each version."""

    def __init__(
        self, opened: Model, rest: Rest | None = None, *, built_for: str = "", attention: AttentionType = "auto"
    ) -> None:
        """Take a model.

        `rest` is what is not quantized: FP16 by default, or the types that the file has. `built_for` is the compute
        capability for which TensorRT for RTX builds the engines; "" predicts their kernels. `attention` is as `insert`
        has it.
        """
        self.opened, self._built_for, self._attention = opened, built_for, attention
        self.has_pairs = bool(opened.view.pairs)
        # Without its pairs a file is FP32: that it had FP16 tensors beside them says nothing of its engine in FP16.
        self._rest: Rest = rest or ("as-built" if is_typed(opened) and not self.has_pairs else "fp16")
        self._plain = self._without_pairs() if self.has_pairs else opened
        self._found: dict[object, Sequence[LayerWork]] = {}

    @property
    def fixed_batch(self) -> int | None:
        """The batch that the file has; None where it is free."""
        sizes = (one.shape[0] for one in inputs_of(self.opened.graph) if one.shape)
        return next((size for size in sizes if isinstance(size, int)), None)

    @property
    def batch(self) -> int:
        """The batch that the file has, 1 where it is free."""
        return self.fixed_batch or 1

    def fp16(self, version: TrtVersion | None, target: str) -> Sequence[LayerWork]:
        """In FP16, or in the types of the file where it has some."""
        return self._layers(("fp16", version, target), self._plain, self._rest)

    def int8(self, version: TrtVersion | None, target: str, **options: Any) -> Sequence[LayerWork]:
        """With the pairs of the file, else with those that `insert` would place with these options."""
        options = {"attention": self._attention, **options}
        key = ("int8", version, target, *sorted(options.items()))
        if self.has_pairs:
            return self._layers(key, self.opened, "as-built")
        if key not in self._found:
            placed = with_pairs(self.opened.copy(), PlanOptions(target=target, trt_version=version, **options))
            self._layers(key, placed, self._rest)
        return self._found[key]

    def _layers(self, key: tuple[object, ...], model: Model, rest: Rest) -> Sequence[LayerWork]:
        if key not in self._found:
            version, target = key[1], str(key[2])
            assert version is None or isinstance(version, TrtVersion)
            work = self._built(model) if self._built_for else layers_in(model, version, target, rest=rest)
            if not work:
                raise self._unsized()
            self._found[key] = work
        return self._found[key]

    def _unsized(self) -> QdqError:
        """The fault of a model whose sizes are not known: free inputs, or operators whose sizes nothing tells."""
        shapes = known_shapes(self.opened.view)
        free = [one.name for one in inputs_of(self.opened.graph) if None in shapes.get(one.name, (None,))]
        if free:
            declared = inputs_as_declared(self.opened.proto)
            side = "320" if any(len(one.shape or ()) == _IMAGE for one in declared if one.name in free) else "32"
            blank = [word.removeprefix("--shapes=").replace("SIZE", side) for word in blank_shape_words(declared, None)]
            todo = f"give the free sides, such as --shapes {blank[0] if blank else f'{free[0]}:1x3x320x320'}"
            return QdqError(self.opened.name, "the sizes of its tensors are not known", todo)
        nodes = (node for node in self.opened.view.nodes if any(None in shapes.get(n, (None,)) for n in node.outputs))
        first = next((f", first of those of {node.op} {node.name or node.key}" for node in nodes), "")
        return QdqError(self.opened.name, f"the sizes of its tensors are not known{first}", "export fixed sizes")

    def _built(self, model: Model) -> list[LayerWork]:
        """The kernels that TensorRT for RTX builds; floats are FP16 where the model has no types of its own."""
        if self._rest != "as-built":
            typed = amp(model.proto, options=AmpOptions(assume_range=_ASSUMED)).model
            model = open_model(typed)
        built = build_opened(model, RtxBuildOptions((self._built_for,)), require_library())
        return built_work(model, built.layers)

    def _without_pairs(self) -> Model:
        plain = without_rewrites(as_fp32(self.opened)).copy()
        try:
            peel_pairs(plain, on_conflict="max", on_asymmetric="widen", drop_scales=True)
        except QdqError as error:
            reason = f"its Q/DQ pairs cannot be taken out for a comparison with FP16 ({error.where}: {error.reason})"
            raise QdqError(self.opened.name, reason, "give the model without them") from None
        return plain


def with_pairs(model: Model, options: PlanOptions) -> Model:
    """A model with its pairs, at scales that stand for any: no two groups have the same."""
    planned = prepare(model, options, requantize=False).planned
    decided = plan_pairs(planned.base, options)
    tensors = dict.fromkeys(point.tensor for point in decided.activations)
    scales = {
        name: Scale.of(np.float32(0.01 + 1e-6 * place_), origin="estimated") for place_, name in enumerate(tensors)
    }
    placed = place(planned, decided, ScaleTable(scales), options)
    return fit(placed, options, half=True).model


def _board(text: str, where: Destination, device: Device, engines: Engines, options: ForecastOptions) -> BoardForecast:
    """The forecast for one board."""
    target = _target(where)
    if options.build:
        if where.board is None or not where.board.rtx:
            raise QdqError("--build", f"TensorRT for RTX is not for {where.title}", "leave it out, or name a GeForce")
        where, target = replace(where, version=None, platform=""), "rtx"
        engines = Engines(engines.opened, built_for=device.sm)
    board = where.board or next(one for one in known_boards() if one.sm == device.sm)
    fp16, int8 = engines.fp16(where.version, target), engines.int8(where.version, target)
    runs = {"fp16": True, "int8": board.int8 and device.rates["int8"] > 0, "fp8": device.rates["fp8"] > 0}
    runs["int4"] = int(device.sm) >= 80 and (where.version is None or where.version.major >= 10)
    chosen = [one for one in options.formats if runs[one] and one != "fp16"]
    own = ""  # the format of a file that has pairs, none of them INT8: no row is called so
    if engines.has_pairs and all(layer.unit != "int8" for layer in int8):
        own = next((row.name for row in formats_in(engines.opened.view) if row.name in ("fp8", "int4")), "")
    if own:
        beside = [] if own == "int4" else [one for one in chosen if one == "int4"]
        chosen = [*([own] if runs[own] and {"int8", own} & set(options.formats) else []), *beside]
    times = LayerTimes(device)
    if options.profile is not None:
        times = _calibrated(
            times, Path(options.profile), {name: in_format(name, fp16, int8) for name in ("fp16", "int8")}
        )
    rows: list[FormatTime] = []
    for batch in options.batches or (engines.batch,):
        if batch % engines.batch:
            raise QdqError(f"--batch {batch}", f"the model has a batch of {engines.batch}", "give a multiple of it")
        rows += _rows(chosen, fp16, int8, times, batch // engines.batch, own)
    first = next((row for row in rows if row.verdict), None)
    used = fastest_format([row for row in rows if row.batch == rows[0].batch])
    sentences: tuple[str, ...] = (_NO_OTHER,)
    changes, layers = tuple[str, ...](), tuple[DecidingLayer, ...]()
    if first is not None:
        work, floats = in_format(first.format, fp16, int8, own), _floats(int8)
        said = [
            (f"Batch {row.batch * engines.batch}: " if options.batches[1:] else "") + _sentence(row, device, floats)
            for row in rows
            if row.verdict
        ]
        at = f" at batch {first.batch * engines.batch}" if options.batches[1:] else ""
        unsure = " unless a measurement shows otherwise" if used.verdict == "equal" else ""
        sentences = (*said, f"Use {used.format.upper()}{at}{unsure}.")
        layers = tuple(deciding_layers(work, fp16, times, first.batch // engines.batch)[:_DECIDING])
        if first.verdict != "pays" and not engines.has_pairs:
            changes = _changes(first, engines, where.version, target, times)
        if engines.has_pairs and floats == "FP32":
            changes += (_IN_FP32,)
    rows = [replace(row, batch=row.batch * engines.batch) for row in rows]
    missing = tuple(one for one in options.formats if not runs[one])
    return BoardForecast(
        text, where.title, device, where.version, tuple(rows), used.format, sentences, changes, layers, missing
    )


_IN_FP32 = "What the file does not quantize is FP32, and this version computes it so: insert --rest fp16 makes it FP16."
_NO_OTHER = "FP16 alone was asked for, or runs there."


def _floats(work: Sequence[LayerWork]) -> str:
    """The type in which what is not quantized computes, where it is of one in three layers of four."""
    units = [one.unit for one in work if one.unit in ("half", "single") and not one.converts]
    single = units.count("single") / max(1, len(units))
    return "FP32" if single > 0.75 else "FP16" if single < 0.25 else "FP16 or FP32"


def _rows(
    formats: Sequence[str],
    fp16: Sequence[LayerWork],
    int8: Sequence[LayerWork],
    times: LayerTimes,
    batch: int,
    own: str,
) -> list[FormatTime]:
    """FP16 and the formats beside it, for one batch; `own` as in `in_format`."""
    half = time_of("fp16", fp16, times, batch)
    rows = [half]
    for name in formats:
        work = in_format(name, fp16, int8, own)
        rows.append(compared(time_of(name, work, times, batch), half, work, fp16, times))
    return rows


def _sentence(row: FormatTime, device: Device, floats: str) -> str:
    """The verdict on one format, with the causes where it does not pay; `floats` is what is not quantized."""
    name = row.format.upper()
    ratio = f"{row.ratio:.2f}x FP16's speed, {row.ratio_low:.2f} to {row.ratio_high:.2f}"
    if row.verdict == "pays":
        return f"{name} pays ({ratio})."
    said = f"{name} {_WORDS[row.verdict]} ({ratio})"
    if row.verdict == "equal" and (is_below(1, row.ratio) or is_below(row.ratio, 1)):
        said = f"{name} {'may pay' if row.ratio > 1 else 'will hardly pay'} ({ratio}); bench both"
    if row.format == "int4":
        return f"{said}: only the weights of matrix products are smaller."
    causes = causes_of(row, device, floats)
    return f"{said}: {'; '.join(causes)}." if causes else f"{said}."


def causes_of(row: FormatTime, device: Device, floats: str = "FP16") -> list[str]:
    """What holds a format back, as its sentence names it; `floats` is what is not quantized."""
    name, causes = row.format.upper(), list[str]()
    if row.format in ("int8", "fp8") and device.rates[row.format] <= device.rates["half"]:
        causes.append(f"the device multiplies {name} no faster than FP16")
    if row.shares["attention"] >= _OF_TIME:  # of FP32 no kernel is an attention
        causes.append(f"attention stays FP16 and takes {row.shares['attention']:.0%} of the time")
    if row.shares["unfused_attention"] >= _OF_TIME:
        causes.append(f"attention is several kernels, stays {floats} and takes {row.shares['unfused_attention']:.0%}")
    if row.shares["float"] >= _OF_TIME:
        causes.append(f"other layers that stay {floats} take {row.shares['float']:.0%}")
    if row.conversions and row.shares["conversion"] >= _OF_TIME / 3:
        causes.append(f"{counted(row.conversions, 'conversion')} cost {row.shares['conversion']:.0%}")
    if row.shares["depthwise"] >= _OF_TIME:
        causes.append(f"depthwise convolutions take {row.shares['depthwise']:.0%}")
    if row.shares["launch"] >= 3 * _OF_TIME:
        causes.append(f"{row.shares['launch']:.0%} of the time are kernel launches")
    return causes


def _changes(
    row: FormatTime, engines: Engines, version: TrtVersion | None, target: str, times: LayerTimes
) -> tuple[str, ...]:
    """What would make a format pay: a larger batch or input, attention in INT8, depthwise convolutions in float."""
    found = []
    fp16, int8 = engines.fp16(version, target), engines.int8(version, target)
    name = row.format

    def tried(work: Sequence[LayerWork], batch: int) -> FormatTime:
        own = in_format(name, fp16, work)
        return compared(time_of(name, own, times, batch), time_of("fp16", fp16, times, batch), own, fp16, times)

    repeated = _LARGER_BATCH // engines.batch
    if row.batch < repeated and (larger := tried(int8, repeated)).verdict == "pays":
        fixed = engines.fixed_batch
        export = "" if fixed is None else f"; the file has a fixed batch of {fixed}: export it with a free one"
        found.append(f"At batch {repeated * engines.batch} {name.upper()} pays ({larger.ratio:.2f}x){export}.")
    images = any(product.kernel > 1 for layer in fp16 for product in layer.products)
    if images and not any(layer.kind == ATTENTION or layer.attends for layer in fp16):
        wider = tried(int8, _AREA * row.batch)  # convolutions compute and move as much more as at a larger batch
        if wider.verdict == "pays":
            found.append(f"At twice the input's height and width {name.upper()} pays ({wider.ratio:.2f}x).")
    ways: list[tuple[str, Mapping[str, str]]] = []
    if name in ("int8", "fp8") and any(layer.kind == ATTENTION for layer in int8):
        ways.append(("attention in INT8 (insert --attention int8)", {"attention": "int8"}))
    if name == "int8" and row.shares["depthwise"] >= _OF_TIME / 2:
        ways.append(("depthwise convolutions in float (insert --depthwise float)", {"depthwise": "float"}))
    for said, options in ways:
        other = tried(engines.int8(version, target, **options), row.batch)
        if other.ratio > row.ratio * PAYS:
            verdict = "pays" if other.verdict == "pays" else "comes to"
            found.append(
                f"With {said} it {verdict}{' (' if verdict == 'pays' else ' '}{other.ratio:.2f}x"
                f"{')' if verdict == 'pays' else ''}."
            )
    return tuple(found)


def _calibrated(times: LayerTimes, path: Path, forms: Mapping[str, Sequence[LayerWork]]) -> LayerTimes:
    """Times that come to those of a profile for the engine whose layers have its names.

    Raises:
        QdqError: no layer of the profile is one of this model's.
    """
    measured = read_profile(path)
    known = {name: sum(layer.name in measured for layer in work) for name, work in forms.items()}
    form = max(known, key=lambda name: known[name])
    if not known[form]:
        raise QdqError(path, "no layer of it is one of this model's", "give the profile of an engine of this model")
    total = math.fsum(one.milliseconds for one in measured.values()) * 1e3
    return times.scaled(total / times.total(forms[form]))
