# SPDX-License-Identifier: Apache-2.0
"""Forecasts against published latencies (`latency.tsv` of the shared material, `latency_elsewhere.tsv`), by families.

    python tests/bench/forecast_models.py MODELS            # in an environment with torch: rebuilds the networks
    python tests/bench/forecast_backtest.py MODELS [--fit] [--write docs/forecast.md]
    python tests/bench/forecast_backtest.py MODELS --hold-out [--write docs/forecast.md]

Which rows are taken is a rule, not their result: the model can be rebuilt; the board is named; the source, or the
tool that it used, fixes the batch; no later text of the source and no other text of its authors gives another time
for it; it stands beside a row in FP16 of the same source, board and settings. `LEFT_OUT` names what the rule leaves
out and why.

What is in INT8 is what `insert` places, but for what the source says of it: skip connections without pairs where its
tool places none ("float skips"), a last module in FP32 ("float head"). Where the builder had a calibration cache or
made-up ranges ("implicit"), each convolution is in INT8 or in the type of the rest, whichever is faster, and matrix
products are in that of the rest, as implicit quantization has it. The rest is FP32 where the source says so, or its
tool sets no other.

`latency_holdout.tsv` is the hold-out: rows of sources that nobody had read when the model and its constants were made,
written down before any of them was forecast. They are forecast once, by the constants of rules/devices.toml, and
nothing is fitted to them or changed for them. Beside the rule above, a time of the hold-out has two digits and is
without copies to the GPU; of a table by batches those of 1 and 32 are taken, and of one by sizes all; a source that
gives two times for one engine is left out.

Constants are fitted to all families but one (Gauss-Newton on logarithms: absolute times and ratios, each family with
the same weight), and the one is forecast: no figure of the tables is of a model whose family was fitted. `--fit`
prints the constants of all families for rules/devices.toml. Times that were taken around a call from Python have a
constant of their own, which no forecast has.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pages import rewrite

from qdqtool.engine.layer_work import LayerWork
from qdqtool.forecasting.boards import device_of
from qdqtool.forecasting.devices import CostConstants, Device, load_constants
from qdqtool.forecasting.formats import PAYS, compared, deciding_layers, in_format, time_of
from qdqtool.forecasting.layer_time import LayerTimes
from qdqtool.graph.io import open_model
from qdqtool.graph.model import Model
from qdqtool.match.plan import PlanOptions
from qdqtool.trtversion import TrtVersion, parse
from qdqtool.verbs.forecast import Engines, causes_of, with_pairs

Values = npt.NDArray[np.float64]
HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("QDQTOOL_SHARED", HERE.parents[2] / "shared"))

TABLES = (SHARED / "latency.tsv", HERE / "latency_elsewhere.tsv")
HOLD_OUT = HERE / "latency_holdout.tsv"
FITTED = ("tensor", "vector", "attention", "memory", "l2", "launch", "tile", "quantized_product", "fp8_convolution")
CALL = "call"  # milliseconds times GHz around a call from Python
PRIOR = {  # where a fit begins, and what holds it where rows say little
    "tensor": 0.5, "vector": 0.3, "attention": 0.6, "memory": 0.7, "l2": 16.0, "launch": 5.0, "tile": 8192.0,
    "quantized_product": 0.7, "fp8_convolution": 0.5, CALL: 1.0,
}  # fmt: skip
MOST = {"tensor": 0.9, "vector": 0.9, "attention": 1.0, "memory": 0.9, "quantized_product": 1.0, "fp8_convolution": 1.0}
HOLD, ABSOLUTE, RATIO = 0.3, 0.5, 2.0  # weights of the prior, of times, of ratios
EQUAL = (0.95, 1.05)  # ratios that are neither a win nor none
LEAST = 1.04  # an interval of this width is that of two builds, not of the spread

# What the shared table calls a model -> its file; the batch is the source's, or that of the tool that was timed.
NAMES = {
    "RF-DETR nano 640": "rfdetr_nano_640_b1",
    "RF-DETR nano 384 b1": "rfdetr_nano_384_b1",
    "crossvit_9_240 b1 level 3": "crossvit_9_240_b1",
    "MobileViT-S 256 b1": "mobilevit_s_256_b1",
    "YOLOX-m": "yolox_m_640_b1",
    "FasterViT-0 224": "faster_vit_0_224_b1",
    "yolo_nas_pose_l 640 (from qps)": "yolo_nas_pose_l_640_b1",
}
LEFT_OUT = {  # model of the shared table -> why the rule leaves its rows out
    "RF-DETR xlarge seg 624": "no batch is said",
    "YOLOv6s 640": "no batch is said; the same authors publish 7.1 and 4.9 ms for it (PaddleSlim)",
    "SD 2.1 UNet 512": "no batch is said; NVIDIA measures 32 ms in the same thread, below FP16's 43",
}
FAMILIES = {  # begin of a file's name -> its family, where that is not what stands before the first digit or underscore
    "yolo11": "yolo11", "yolo12": "yolo12", "yolo26": "yolo26", "yolov10": "yolov10", "yolov5": "yolov5",
    "yolov6": "yolov6", "yolov8": "yolov8", "yolov9": "yolov9", "yolo_nas": "yolo-nas", "faster_vit": "fastervit",
    "rtdetr": "rt-detr", "sd": "stable-diffusion", "resnext": "resnet", "seresnet": "resnet", "fcn_resnet": "resnet",
    "vit": "vit", "mobilenet": "mobilenet",
}  # fmt: skip
DEVICES = {
    "V100 (no INT8 tensor cores)": "v100", "RTX 4070 mobile": "rtx4070-laptop", "RTX PRO 6000 Blackwell": "pro6000",
}  # fmt: skip
DEFAULT_VERSION = {"rtx4090": "8.6.1", "t4": "8.6.1", "b200": "11.4.1", "b300": "11.4.1", "xavier": "7.1.3",
                   "v100": "8.2.1", "thor": "10.13.3", "orin-nano": "8.5.2"}  # fmt: skip
IMPLICIT = (  # sources whose builder had a cache or made-up ranges, whatever the row says
    "ultralytics docs", "hokwangchoi", "the0807", "rf-detr#351", "YOLOX#1001", "FasterViT#71", "mmdeploy", "torch2trt",
    "kentaroy47", "1duo",
)  # fmt: skip
FP32_REST = ("ultralytics docs", "hokwangchoi", "the0807", "YOLOX#1001", "torch2trt")
FLOAT_SKIPS = ("yester31",)  # pytorch-quantization's modules: no pairs on skip connections
BY_PYTHON = ("ultralytics docs", "the0807", "torch2trt", "mmdeploy", "YOLOX#1001", "ArtTRT")  # time a call from Python


@dataclass(frozen=True)
class Row:
    """One published latency: where it is from, what it is of, and how it was taken."""

    table: str
    family: str
    model: str
    device: Device
    version: TrtVersion
    format: str
    rest: str
    placement: str
    implicit: bool
    by_python: bool
    board: str
    milliseconds: float
    source: str

    @property
    def key(self) -> tuple[object, ...]:
        """What a row in FP16 and one in another format have in common."""
        return (self.table, self.model, self.board, self.source)


def read_rows(path: Path, models: Path) -> tuple[list[Row], list[str]]:
    """The rows of a table that the rule takes, and a line on each that it leaves out."""
    rows, left = [], []
    with path.open(encoding="utf-8", newline="") as file:
        for entry in csv.DictReader(file, delimiter="\t"):
            name, precision = entry["model"], entry["precision"]
            board, version, _ = (*(part.strip() for part in entry["board"].split(",")), "", "")[:3]
            said = f"{name}, {entry['board']}, {precision}"
            model = _file_name(name)
            device = device_of(
                DEVICES.get(board, board.replace(" MAXN_SUPER", " super").replace(" 8GB super", " super"))
            )
            found = re.search(r"^(?:best )?(FP16|INT8|FP8)\b", precision)
            source = entry["source"]
            if name in LEFT_OUT:
                left.append(f"{said}: {LEFT_OUT[name]}")
            elif found is None:
                left.append(f"{said}: neither FP16 nor a format beside it")
            elif device is None:
                left.append(f"{said}: no board that is known")
            elif not (models / f"{model}.onnx").is_file():
                left.append(f"{said}: the model cannot be rebuilt")
            else:
                taken = version.removeprefix("TRT ") if version.startswith("TRT ") else ""
                of_source = [any(word in source for word in words) for words in (FP32_REST, IMPLICIT, BY_PYTHON)]
                rest = "fp32" if "FP32 rest" in precision or (of_source[0] and found[1] != "FP16") else "fp16"
                implicit = found[1] != "FP16" and (
                    of_source[1] or "implicit" in precision or "uncalibrated" in precision
                )
                skips = "Q/DQ" in precision and any(word in source for word in FLOAT_SKIPS)
                placement = "float skips" if skips else "float head" if "FP32 head" in precision else ""
                rows.append(
                    Row(
                        path.stem, _family(model), model, device, _version(taken, device), found[1].lower(), rest,
                        placement, implicit, of_source[2], entry["board"], float(entry["latency_ms"]), source,
                    )
                )  # fmt: skip
    return rows, left


def _file_name(model: str) -> str:
    return NAMES.get(model, model.lower().replace(" ", "_"))


def _family(model: str) -> str:
    known = next((family for begin, family in FAMILIES.items() if model.startswith(begin)), None)
    return known or re.split(r"[\d_]", model, maxsplit=1)[0]


def _version(text: str, device: Device) -> TrtVersion:
    numbers = re.match(r"\d+\.\d+(\.\d+)?", text)
    if numbers is None:
        return parse(DEFAULT_VERSION.get(device.name, "10.3.0"))
    return parse(numbers[0] if numbers[0].count(".") == 2 else f"{numbers[0]}.0")


class Material:
    """Rows with the layers of their engines."""

    def __init__(self, rows: Sequence[Row], models: Path) -> None:
        self.rows, self.models = list(rows), models
        self.work = [self._work(row) for row in rows]
        self.rest = [self._rest(row) if row.implicit else None for row in rows]
        self.observed = np.log([row.milliseconds for row in rows])
        half = {row.key: place for place, row in enumerate(rows) if row.format == "fp16"}
        places = range(len(rows))
        self.pairs = [
            (half[rows[one].key], one) for one in places if rows[one].format != "fp16" and rows[one].key in half
        ]
        count: dict[str, int] = {}
        for row in rows:
            count[row.family] = count.get(row.family, 0) + 1
        self.share = np.sqrt([1 / count[row.family] for row in rows])

    def _work(self, row: Row) -> list[LayerWork]:
        return in_format(row.format, *_engines(self.models / f"{row.model}.onnx", row.version, row.rest, row.placement))

    def _rest(self, row: Row) -> list[LayerWork]:
        """The layers without INT8, in the type of the rest."""
        return _engines(self.models / f"{row.model}.onnx", row.version, row.rest)[0]

    def forecast(self, constants: Mapping[str, float], places: Sequence[int]) -> Values:
        """Logarithms of milliseconds."""
        known = replace(load_constants(), **{name: value for name, value in constants.items() if name != CALL})
        times = []
        for place in places:
            row = self.rows[place]
            around = constants[CALL] / row.device.clock if row.by_python else 0.0
            times.append(self.total(place, LayerTimes(row.device, known)) / 1e3 + around)
        return np.log(times)

    def total(self, place: int, times: LayerTimes) -> float:
        """Microseconds of a row."""
        if self.rest[place] is None:
            return times.total(self.work[place])
        return sum(time for time, _ in self.chosen(place, times))

    def chosen(self, place: int, times: LayerTimes) -> list[tuple[float, bool]]:
        """Microseconds of each layer, and whether it stays in the type of the rest; of a convolution the faster one."""
        layers = deciding_layers(self.work[place], self.rest[place] or (), times)
        rest = [one.fp16 > 0 and (one.kind != "convolution" or one.fp16 <= one.quantized) for one in layers]
        return [
            (1e3 * (one.fp16 if kept else min(one.fp16, one.quantized)), kept)
            for one, kept in zip(layers, rest, strict=True)
        ]


@functools.cache
def _engines(
    path: Path, version: TrtVersion, rest: str = "fp16", placement: str = ""
) -> tuple[list[LayerWork], list[LayerWork]]:
    """The layers in the type of the rest alone, and with INT8; models are FP32, so "file" is FP32."""
    engines = Engines(open_model(path), "file" if rest == "fp32" else "fp16")
    fp16 = engines.fp16(version, "gpu")
    if placement == "float skips":
        placed = with_pairs(engines.opened.copy(), PlanOptions(trt_version=version))
        return fp16, Engines(_without_skip_pairs(placed)).int8(version, "gpu")
    if placement == "float head":
        head = _last_module(engines.opened)
        int8, in_fp32 = (
            Engines(open_model(path), types).int8(version, "gpu", heads=(f"^{head}",)) for types in ("fp16", "file")
        )
        return fp16, [one for one in int8 if not _in_module(one, head)] + [
            one for one in in_fp32 if _in_module(one, head)
        ]
    return fp16, engines.int8(version, "gpu")


def _without_skip_pairs(placed: Model) -> Model:
    """The model with pairs, of which no Add reads one."""
    nodes = {output: node for node in placed.proto.graph.node for output in node.output}
    for node in placed.proto.graph.node:
        for place, name in enumerate(node.input if node.op_type == "Add" else ()):
            if name in nodes and nodes[name].op_type == "DequantizeLinear" and nodes[name].input[0] in nodes:
                node.input[place] = nodes[nodes[name].input[0]].input[0]
    placed.changed()
    return placed


def _last_module(model: Model) -> str:
    """The name that the nodes of an ultralytics detector's head begin with."""
    numbers = [int(found[1]) for node in model.proto.graph.node if (found := re.match(r"/model\.(\d+)/", node.name))]
    return f"/model.{max(numbers)}/"


def _in_module(layer: LayerWork, module: str) -> bool:
    return any(name.startswith(module) for name in layer.nodes)


def fit(material: Material, places: Sequence[int], start: Values | None = None, rounds: int = 8) -> Values:
    """The logarithms of the constants that these rows say, by Gauss-Newton."""
    names = (*FITTED, CALL)
    prior = np.log([PRIOR[name] for name in names])
    inside = {place: at for at, place in enumerate(places)}
    pairs = [(one, other) for one, other in material.pairs if one in inside and other in inside]
    share = material.share[list(places)]

    def residuals(values: Values) -> Values:
        found = material.forecast(dict(zip(names, np.exp(values), strict=True)), places)
        times = (found - material.observed[list(places)]) * share * ABSOLUTE
        ratios = [
            ((found[inside[a]] - found[inside[b]]) - (material.observed[a] - material.observed[b]))
            * material.share[b] * RATIO
            for a, b in pairs
        ]  # fmt: skip
        return np.concatenate([times, ratios, HOLD * (values - prior)])

    most = np.log([MOST.get(name, np.inf) for name in names])
    values = prior.copy() if start is None else start.copy()
    now, damping = residuals(values), 1e-2
    for _ in range(rounds):
        slopes = np.array([(residuals(values + 0.05 * unit) - now) / 0.05 for unit in np.eye(len(values))]).T
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(values)), -slopes.T @ now)
        tried = np.minimum(values + np.clip(step, -0.7, 0.7), most)
        then = residuals(tried)
        if then @ then < now @ now:
            values, now, damping = tried, then, damping / 3
        else:
            damping *= 6
        if np.abs(step).max() < 0.01:
            break
    return values


@dataclass(frozen=True)
class Pair:
    """A row beside FP16 of its source: measured and forecast."""

    row: Row
    measured: float
    forecast: float
    roofline: float
    verdict: str
    low: float
    high: float
    reason: str

    @property
    def is_win(self) -> bool | None:
        """Whether the format was faster; None where it was neither faster nor slower by 5 %."""
        return None if EQUAL[0] <= self.measured <= EQUAL[1] else self.measured > 1


def by_shipped(material: Material, call: float = 0.0) -> tuple[list[Pair], Values]:
    """Every pair and every time by the constants of rules/devices.toml; `call` is that of times from Python."""
    shipped = {CALL: call}
    pairs = [_pair(material, one, other, shipped) for one, other in material.pairs]
    return pairs, material.forecast(shipped, range(len(material.rows)))


def left_out(material: Material) -> tuple[list[Pair], Values, Values]:
    """Every pair and every time, forecast by constants of the other families; and the constants of all."""
    every = range(len(material.rows))
    whole = fit(material, every)
    names = (*FITTED, CALL)
    times, pairs = np.zeros(len(material.rows)), []
    for family in dict.fromkeys(row.family for row in material.rows):
        others = [place for place in every if material.rows[place].family != family]
        own = [place for place in every if material.rows[place].family == family]
        values = fit(material, others, whole, 3)
        constants = dict(zip(names, np.exp(values).tolist(), strict=True))
        times[own] = material.forecast(constants, own)
        pairs += [_pair(material, one, other, constants) for one, other in material.pairs if other in own]
        print(f"{family}: {len(own)} rows", flush=True)
    return pairs, times, whole


def _pair(material: Material, half: int, other: int, constants: Mapping[str, float]) -> Pair:
    row = material.rows[other]
    known = replace(load_constants(), **{name: value for name, value in constants.items() if name != CALL})
    times = LayerTimes(row.device, known)
    fp16, work = material.work[half], material.work[other]
    found = compared(time_of(row.format, work, times), time_of("fp16", fp16, times), work, fp16, times)
    measured = float(np.exp(material.observed[half] - material.observed[other]))
    plain = _roofline(row.device)
    apart = _engines(material.models / f"{row.model}.onnx", UNFUSED, placement=row.placement)
    roofline = plain.total(apart[0]) / plain.total(in_format(row.format, *apart))
    ratio = times.total(fp16) / material.total(other, times)  # of what was built: implicit, with the rest that it had
    shift = ratio / found.ratio
    low, high = found.ratio_low * shift, found.ratio_high * shift
    verdict = "pays" if low > PAYS else "does not pay" if high < PAYS else "equal"
    causes = causes_of(found, row.device)
    if row.implicit:
        layers = material.chosen(other, times)
        share = sum(time for time, kept in layers if kept) / sum(time for time, _ in layers)
        causes = [one for one in causes if "stay" not in one and "conversion" not in one]
        causes.append(f"layers that the builder leaves FP16 take {share:.0%}")
    reason = "; ".join(causes) or "none seen"
    if row.rest == "fp32" or row.placement == "float head":
        reason = re.sub("(stays?|leaves) FP16", r"\1 FP32" if row.rest == "fp32" else r"\1 in float", reason)
    return Pair(row, measured, ratio, roofline, verdict, low, high, reason)


UNFUSED = parse("8.5.2")  # the last version without fused attention and joined kernels


def _roofline(device: Device) -> LayerTimes:
    """The roofline of before: INT8 at twice the rate of FP16, 3 microseconds a layer, nothing fused.

    So all 14 rows of the devices had it then; devices that had none get the same rule.
    """
    half = device.rates["half"]
    device = replace(device, rates={**device.rates, "int8": 2 * half, "fp8": 2 * half, "vector": half}, l2=0.0)
    return LayerTimes(device, CostConstants(1.0, 1.0, 1.0, 1.0, 0.0, 3 * device.clock, 1.0, 1.0, 1.0, 2.0, 1.2))


def balanced(signs: Sequence[tuple[bool, bool]]) -> float:
    """The mean of the shares that are right of wins and of others."""
    parts = [[right for win, right in signs if win == which] for which in (True, False)]
    return statistics.fmean(statistics.fmean(part) for part in parts if part)


def rank_correlation(pairs: Sequence[Pair]) -> float:
    """Spearman's, of measured and forecast ratios; NaN of fewer than three different ones."""
    if len({one.measured for one in pairs}) < 3:
        return float("nan")
    ranks = [_ranks([getattr(one, name) for one in pairs]) for name in ("measured", "forecast")]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Sequence[float]) -> Values:
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values))
    for value in set(values):
        same = [place for place, one in enumerate(values) if one == value]
        ranks[same] = ranks[same].mean()
    return ranks


def resampled(
    pairs: Sequence[Pair], group: Callable[[Row], str], figure: Callable[[Sequence[Pair]], float]
) -> tuple[float, float]:
    """The 95 % interval of a figure: groups are drawn, with all of their pairs; NaN of a draw is left out."""
    groups: dict[str, list[Pair]] = {}
    for one in pairs:
        groups.setdefault(group(one.row), []).append(one)
    draw, found = np.random.default_rng(0), []
    for _ in range(2000):
        chosen = [groups[name] for name in draw.choice(sorted(groups), len(groups))]
        found.append(figure([one for part in chosen for one in part]))
    known = [one for one in found if not np.isnan(one)] or [float("nan")]
    return float(np.percentile(known, 2.5)), float(np.percentile(known, 97.5))


def network(row: Row) -> str:
    """The model without its size and batch."""
    return re.sub(r"_\d+(x\d+)?_b\d+$", "", row.model)


def signs(pairs: Sequence[Pair], *, roofline: bool = False) -> float:
    """Balanced signs of the forecast or of the roofline; NaN where there are no wins, or nothing else."""
    decided = [one for one in pairs if one.is_win is not None]
    if len({one.is_win for one in decided}) < 2:
        return float("nan")
    ratios = [one.roofline if roofline else one.forecast for one in decided]
    return balanced([(bool(one.is_win), (at > 1) == one.is_win) for one, at in zip(decided, ratios, strict=True)])


def ahead(pairs: Sequence[Pair]) -> float:
    """By how much the forecast's signs are better than the roofline's."""
    return signs(pairs) - signs(pairs, roofline=True)


def summary(title: str, pairs: Sequence[Pair], errors: Values) -> str:
    """A row of the table: how many, signs, ranks, times."""
    decided = [one for one in pairs if one.is_win is not None]
    own, other, apart = "none", "none", "none"
    if len({one.is_win for one in decided}) == 2:
        own, other = (f"{signs(pairs, roofline=plain):.2f}" for plain in (False, True))
        own += " ({:.2f} to {:.2f})".format(*resampled(pairs, network, signs))
        apart = f"{ahead(pairs):+.2f} " + "({:+.2f} to {:+.2f})".format(*resampled(pairs, network, ahead))
    low, high = resampled(pairs, lambda row: row.family, rank_correlation)
    wins = sum(bool(one.is_win) for one in decided)
    inside = statistics.fmean(one.low <= one.measured <= one.high for one in pairs)
    wrong = sum(
        (one.verdict == "pays" and one.measured < EQUAL[0])
        or (one.verdict == "does not pay" and one.measured > EQUAL[1])
        for one in pairs
    )
    ratio, off = (
        np.exp(np.median(np.abs([np.log(one.forecast / one.measured) for one in pairs]))),
        np.exp(np.abs(errors)),
    )
    return (
        f"| {title} | {len(pairs)}, {wins} / {len(decided) - wins} | {own} | {other} | {apart} | "
        f"{rank_correlation(pairs):.2f} ({low:.2f} to {high:.2f}) | {ratio:.2f} | {inside:.0%} | {wrong} | "
        f"{np.median(off):.2f}, {np.percentile(off, 80):.2f}, {off.max():.1f} |"
    )


_COLUMNS = (
    "rows", "pairs, wins / others", "balanced signs", "roofline's", "ahead of it", "rank correlation",
    "median error of the speed-up", "in its interval", "verdicts that are wrong",
    "error of times: median, 80 %, worst",
)  # fmt: skip
HEAD = (f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|")


Part = tuple[str, Callable[[Row], bool]]
FITTED_PARTS: tuple[Part, ...] = (
    ("latency.tsv", lambda row: row.table == "latency"),
    ("rows from elsewhere", lambda row: row.table == "latency_elsewhere"),
    ("both", lambda row: True),
)


def hold_out_parts() -> tuple[Part, ...]:
    """The whole, the families that no fitted row is of, and the rows by how they were timed."""
    known = set()
    for path in TABLES:
        with path.open(encoding="utf-8", newline="") as file:
            known |= {_family(_file_name(entry["model"])) for entry in csv.DictReader(file, delimiter="\t")}
    return (
        ("hold-out", lambda row: True),
        ("of it, families not fitted", lambda row: row.family not in known),
        ("of it, time of the GPU", lambda row: not row.by_python),
        ("of it, timed from Python", lambda row: row.by_python),
    )


def section(
    parts: Sequence[Part], pairs: Sequence[Pair], times: Values, material: Material, more: Sequence[str] = ()
) -> list[str]:
    """The tables, as Markdown; `more` are further rows of the first."""
    errors = times - material.observed
    lines = [*HEAD]
    for title, belongs in parts:
        chosen = [one for one in pairs if belongs(one.row)]
        if chosen:
            own = [place for place, row in enumerate(material.rows) if belongs(row)]
            lines.append(summary(title, chosen, errors[own]))
    lines += [*more, "", "| not faster by 5 % | measured | forecast | interval | verdict | reason |", "|---" * 6 + "|"]
    for one in sorted(pairs, key=lambda one: one.measured):
        if one.measured <= EQUAL[1]:
            rest = ", FP32 rest" if one.row.rest == "fp32" else ""
            placed = f", {one.row.placement}" if one.row.placement else ""
            said = f"{one.row.model}, {one.row.device.name}, {one.row.format.upper()}{rest}{placed}"
            figures = f"{one.measured:.2f} | {one.forecast:.2f} | {one.low:.2f} to {one.high:.2f}"
            lines.append(f"| {said} | {figures} | {one.verdict} | {one.reason} |")
    return lines


def _described(row: Row) -> str:
    rest = f"{row.rest}{' implicit' if row.implicit else ''}"
    return f"{row.family:16} {row.model:28} {row.device.name:16} {row.format:4} {rest:13}"


def main() -> int:
    """Print the tables and, with `--fit`, the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="where forecast_models.py wrote the networks")
    parser.add_argument("--fit", action="store_true", help="print the constants of all rows, and the spreads")
    parser.add_argument("--verbose", action="store_true", help="print each pair, and the rows that are left out")
    parser.add_argument("--write", type=Path, help="a file with the two comments, between which the tables are put")
    parser.add_argument("--hold-out", action="store_true", help="forecast the hold-out, and nothing else")
    args = parser.parse_args()
    rows, left = [], []
    for path in (HOLD_OUT,) if args.hold_out else TABLES:
        taken, not_taken = read_rows(path, args.models)
        rows, left = [*rows, *(one for one in taken if one not in rows)], [*left, *not_taken]
    material = Material(rows, args.models)
    if args.hold_out:
        (pairs, times), parts, more = by_shipped(material), hold_out_parts(), []
    else:
        (pairs, times, whole), parts = left_out(material), FITTED_PARTS
        own, own_times = by_shipped(material, float(np.exp(whole[-1])))
        more = [summary("both, by the shipped constants", own, own_times - material.observed)]
    if args.verbose:
        print("\n".join(f"left out: {line}" for line in left))
        for one in sorted(pairs, key=lambda one: (one.row.family, one.row.model)):
            figures = f"{one.measured:.2f} {one.forecast:.2f} {one.low:.2f} {one.high:.2f} {one.roofline:.2f}"
            print(_described(one.row), figures, one.verdict)
        for row, time in zip(rows, np.exp(times), strict=True):
            print(_described(row), f"{row.milliseconds:8.3f} {time:8.3f} {time / row.milliseconds:.2f}")
    if args.fit and not args.hold_out:
        print("\n".join(f"{name} = {value:.4g}" for name, value in zip((*FITTED, CALL), np.exp(whole), strict=True)))
        print(f"spread = {np.exp(np.percentile(np.abs(times - material.observed), 80)):.3g}")
        wide = np.log(load_constants().ratio_spread)
        changed = [one for one in pairs if one.high > LEAST * one.forecast]
        needed = [abs(np.log(one.measured / one.forecast)) * wide / np.log(one.high / one.forecast) for one in changed]
        print(f"ratio_spread = {np.exp(np.percentile(needed, 80)):.3g}")
    lines = section(parts, pairs, times, material, more)
    print("\n".join(lines))
    if args.write is not None:
        rewrite(args.write, f"forecast_backtest.py{' --hold-out' if args.hold_out else ''}", lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
