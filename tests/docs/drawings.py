# SPDX-License-Identifier: Apache-2.0
"""Drawings of ideas: where pairs stand, how a clipping value is searched, and three signs of lost accuracy."""

from __future__ import annotations

import numpy as np

import qdqtool
from qdqtool.amax.entropy_search import LEVELS, divergence, neutralize
from qdqtool.amax.histogram import Histogram
from qdqtool.amax.methods import predicted_sqnr
from qdqtool.amax.trt_entropy import EntropyHistogram
from tests.docs.svg import BLUE, GREEN, GREY, RED, Spot, badge, bars, box, line, svg, text
from tests.graphs import model_of

WIDE = 760
_NET = """net (float[1,3,16,16] image) => (float[1,3,16,16] scores, float[1,4,16,16] boxes) <float[8,3,3,3] w0,
 float[8] b0, float[8,8,3,3] w1, float[8] b1, float[8,8,3,3] w2, float[8] b2, float[3,8,1,1] w3, float[4,8,1,1] w4>
{ c0 = Conv<pads=[1,1,1,1]>(image, w0, b0) r0 = Relu(c0) c1 = Conv<pads=[1,1,1,1]>(r0, w1, b1) r1 = Relu(c1)
  c2 = Conv<pads=[1,1,1,1]>(r1, w2, b2) sum = Add(c2, r0) r2 = Relu(sum) c3 = Conv(r2, w3) scores = Sigmoid(c3)
  boxes = Conv(r2, w4) }"""
# What a node makes -> where its box stands (column, y), and what is written in it.
_BOXES = {
    "c0": (0, 50, "Conv"),
    "r0": (0, 96, "Relu"),
    "c1": (1, 50, "Conv"),
    "r1": (1, 96, "Relu"),
    "c2": (2, 50, "Conv"),
    "sum": (2, 96, "Add"),
    "r2": (2, 142, "Relu"),
    "c3": (3, 50, "Conv"),
    "scores": (3, 96, "Sigmoid"),
    "boxes": (3, 186, "Conv of boxes"),
}
# Tensor -> where it leaves its group, and where its pair stands; then the ways from there to those who read it.
_TENSORS = {
    "image": ((2, 67), (34, 67), {"c0": ()}),
    "r0": ((184, 113), (222, 113), {"c1": ((222, 67),), "sum": ((222, 168), (432, 168), (432, 113))}),
    "r1": ((372, 113), (401, 113), {"c2": ((401, 67),)}),
    "r2": ((560, 159), (598, 159), {"c3": ((598, 67),), "boxes": ((598, 203),)}),
}


def pairs_svg() -> str:
    """A residual block and two heads: the groups that TensorRT fuses, and the pairs that `insert` places."""
    plan = qdqtool.plan(model_of(_NET))
    parts = []
    for group in plan.groups:
        names = [node.outputs[0] for node in group.nodes]
        (column, top, _), (_, end, _) = _BOXES[names[0]], _BOXES[names[-1]]
        if not set(names) & set(plan.float_nodes):
            shape = f'x="{62 + 188 * column}" y="{top - 8}" width="126" height="{end - top + 50}" rx="8"'
            parts.append(f'<rect {shape} fill="#eef5fc" stroke="{BLUE}" stroke-dasharray="5 4"/>')
    paired = {point.tensor for point in plan.activations}
    for tensor, (start, middle, ways) in _TENSORS.items():
        for reader, bends in ways.items():
            column, top, _ = _BOXES[reader]
            parts.append(line([start, middle, *bends, (66 + 188 * column, top + 17)], head=True))
        parts += [badge(*middle, "Q/DQ")] if tensor in paired else []
    for name, (column, top, title) in _BOXES.items():
        parts.append(box(68 + 188 * column, top, 114, title, in_float=name in plan.float_nodes))
    notes = (
        (62, 30, "one INT8 layer"),
        (438, 30, "one INT8 layer, no pair inside"),
        (200, 190, "the residual: this branch alone"),
        (600, 240, "stays in float"),
    )
    parts += [text(x, y, words, "start", GREY) for x, y, words in notes]
    return svg(WIDE, 256, "Groups that TensorRT fuses, and the pairs around them", parts)


def tail() -> np.ndarray:
    """A tensor with a long tail, as activations have: float32[200000], not negative."""
    rng = np.random.default_rng(5)
    return np.abs(np.concatenate([rng.normal(0, 1, 195_000), rng.laplace(0, 3, 5_000)])).astype(np.float32)


def search_svg() -> str:
    """For each clipping value, what entropy and mse make of it: divergence, and noise."""
    counted, folded = EntropyHistogram(), Histogram()
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.normal(0, 1, 195_000), rng.laplace(0, 1.1, 5_000)]).astype(np.float32)
    counted.add(values)
    folded.add(values)
    used = int(np.flatnonzero(counted.counts)[-1]) + 1
    cells = neutralize(counted.counts)
    kept = [i for i in range(3 * LEVELS, used + 1) if cells[i - 1] > 0 and (i % 8 == 0 or i == used)]
    end, floor, high = used * counted.width, 300.0, 110.0
    curves = {
        "entropy: divergence": np.log([divergence(cells, i) for i in kept]),
        "mse: noise": np.array([-predicted_sqnr(folded, (i + 0.5) * counted.width) for i in kept]),
    }
    places = [(i + 0.5) * counted.width / end * WIDE for i in kept]
    tall = np.log1p(np.add.reduceat(counted.counts[:used], np.arange(0, used, 8)))
    parts = [bars(list(tall / tall.max() * 120), 0, 150, WIDE / len(tall))]
    for row, ((name, curve), color) in enumerate(zip(curves.items(), (RED, GREEN), strict=True)):
        scaled = (curve - curve.min()) / (curve.max() - curve.min())
        parts.append(line([(x, floor - high * y) for x, y in zip(places, scaled, strict=True)], color))
        best = places[int(curve.argmin())]
        parts.append(line([(best, 20), (best, floor)], color, dashed=True))
        parts.append(text(best - 6, 34 + 18 * row, f"{name} is smallest at {best / WIDE * end:.2f}", "end", color))
    parts.append(text(0, 168, "|x|, counts on a logarithmic scale", "start", GREY))
    parts.append(text(0, 320, "clipping value: too small clips much, too large has coarse steps", "start", GREY))
    return svg(WIDE, 330, "How entropy and mse search the clipping value", parts)


def inputs_svg() -> str:
    """The sign of wrong preprocessing: the range of the calibration beside the values of the application."""
    rng = np.random.default_rng(3)
    pixels = np.clip(np.concatenate([rng.normal(80, 40, 30_000), rng.normal(190, 25, 20_000)]), 0, 255)
    parts = []
    for left, title, values, end in (
        (10, "calibrated on pixels from 0 to 1, as the network runs", pixels / 255, 1.0),
        (395, "calibrated from 0 to 1, runs on 0 to 255", pixels, 1.0),
    ):
        width = float(values.max()) * 1.05
        counts = np.histogram(values, 60, (0, width))[0]
        parts.append(bars(list(counts / counts.max() * 120), left, 170, 350 / 60))
        at = left + max(end / width * 350, 2.0)
        parts += [line([(at, 40), (at, 176)], RED, 2), text(left, 24, title)]
        clipped = float((values > end).mean())
        parts.append(
            text(left, 192, f"clipping value {end:g} (red): {clipped:.0%} of the values are clipped", "start", GREY)
        )
    return svg(WIDE, 204, "The histogram of the input, right and wrong", parts)


def channels_svg() -> str:
    """The sign of unequal channels: ranges of the channels of one tensor beside the step that they share."""
    ranges = np.sort(10 ** np.random.default_rng(9).uniform(-1.6, 0.9, 40))[::-1]
    step = float(ranges[0]) / 127
    high = [(np.log10(value) - np.log10(step)) * 60 for value in ranges]
    few = int((ranges < 4 * step).sum())
    parts = [bars([max(value, 0.0) for value in high], 10, 170, 12), line([(10, 170), (490, 170)], RED, 2)]
    parts += [
        text(10, 24, "largest value of each channel, on a logarithmic scale"),
        text(500, 174, "one step of the tensor's scale", "start", RED),
        text(10, 192, f"{few} of 40 channels have fewer than 4 steps; evened out, each has up to 127", "start", GREY),
    ]
    return svg(WIDE, 204, "Channels of one tensor whose ranges differ", parts)


def drop_svg() -> str:
    """The sign of one bad operator: signal to noise along a chain of layers, one of which has an outlier."""
    rng = np.random.default_rng(4)
    x = np.maximum(rng.normal(0, 1, (64, 64)), 0)
    y, found = x.copy(), list[float]()
    for layer in range(14):
        weights = rng.normal(0, (2 / 64) ** 0.5, (64, 64))
        x, y = np.maximum(x @ weights, 0), np.maximum(_rounded(y) @ weights, 0)
        if layer == 8:  # a channel that is 60 times the others takes all the steps
            x[:, 0], y[:, 0] = 60 * x[:, 1], 60 * y[:, 1]
            y = _rounded(y)
            x[:, 0], y[:, 0] = x[:, 1], y[:, 1]
        found.append(10 * float(np.log10((x**2).sum() / ((x - y) ** 2).sum())))
    spots: list[Spot] = [(30 + 52 * n, 176 - 2.9 * value) for n, value in enumerate(found)]
    worst = int(np.argmin(np.diff(found))) + 1
    parts = [line(spots, BLUE, 2.4), *(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{BLUE}"/>' for a, b in spots)]
    a, b = spots[worst]
    fall = f"{found[worst - 1]:.0f} dB in, {found[worst]:.0f} dB out"
    parts += [
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="9" fill="none" stroke="{RED}" stroke-width="2"/>',
        text(a + 14, b - 8, f"here: {fall}", "start", RED),
        text(10, 24, "SQNR of each layer, from the input (left) to the outputs; higher is better"),
        text(10, 196, "compare lists the largest drops; what comes behind only carries the loss on", "start", GREY),
    ]
    return svg(WIDE, 206, "Signal to noise along a network with one bad layer", parts)


def _rounded(x: np.ndarray) -> np.ndarray:
    step = np.abs(x).max() / 127
    return np.asarray(np.round(x / step) * step)
