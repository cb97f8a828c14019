# SPDX-License-Identifier: Apache-2.0
"""Operators that work on each number alone: derivatives in closed form where the gradient builder has none.

At a kink the derivative is the one that PyTorch takes.
"""

from __future__ import annotations

import math

import numpy as np

from qdqtool.autodiff.lowered.site import LoweringContext, Replacement, Rule, Treatment, Wrap, number, summed_to
from qdqtool.autodiff.non_differentiable import STEPS

_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _of_x(text: str) -> Rule:
    """The rule of an operator with one input whose gradient no attribute changes."""
    return lambda site: Wrap(("x",), text, ("x",))


def _hard_sigmoid(site: LoweringContext) -> Wrap:
    """Gives dx = alpha g where 0 < y < 1."""
    text = number("zero", 0) + number("one", 1) + number("alpha", site.attribute("alpha", 0.2))
    text += "above = Greater (y, zero)\nbelow = Less (y, one)\nmiddle = And (above, below)\nslope = Mul (g, alpha)\n"
    return Wrap(("x",), text + "dx = Where (middle, slope, zero)\n", ("x",))


def _elu(site: LoweringContext) -> Wrap:
    """Gives dx = g (y + alpha) below zero, since alpha exp(x) = y + alpha."""
    return _exponential(site.attribute("alpha", 1.0), 1.0, 1.0)


def _selu(site: LoweringContext) -> Wrap:
    """Gives dx = gamma g above zero, g (y + gamma alpha) below."""
    gamma = site.attribute("gamma", _SELU[1])
    return _exponential(gamma * site.attribute("alpha", _SELU[0]), 1.0, gamma)


def _celu(site: LoweringContext) -> Wrap:
    """Gives dx = g (y / alpha + 1) below zero, since exp(x / alpha) = y / alpha + 1."""
    return _exponential(1.0, 1.0 / site.attribute("alpha", 1.0), 1.0)


def _exponential(offset: float, factor: float, above: float) -> Wrap:
    text = number("zero", 0) + number("offset", offset) + number("factor", factor) + number("above", above)
    text += "scaled = Mul (y, factor)\nslope = Add (scaled, offset)\nup = Greater (x, zero)\n"
    return Wrap(("x",), text + "all = Where (up, above, slope)\ndx = Mul (g, all)\n", ("x",))


def _thresholded_relu(site: LoweringContext) -> Wrap:
    text = number("zero", 0) + number("alpha", site.attribute("alpha", 1.0))
    return Wrap(("x",), text + "up = Greater (x, alpha)\ndx = Where (up, g, zero)\n", ("x",))


def _gelu(site: LoweringContext) -> Treatment:
    """The builder differentiates the exact one whatever `approximate` says.

    y = x/2 (1 + t), t = tanh(k (x + c x^3)): dy/dx = (1 + t)/2 + x/2 (1 - t^2) k (1 + 3 c x^2).
    """
    if site.attribute("approximate", "none") != "tanh":
        return None
    text = number("k", math.sqrt(2 / math.pi)) + number("c", 0.044715) + number("c3", 3 * 0.044715)
    text += number("half", 0.5) + number("one", 1)
    text += """
        xx = Mul (x, x)  cxx = Mul (xx, c)  bent = Add (cxx, one)  kx = Mul (k, x)  u = Mul (kx, bent)  t = Tanh (u)
        up = Add (t, one)  first = Mul (up, half)
        c3xx = Mul (xx, c3)  inner = Add (c3xx, one)  kin = Mul (inner, k)  tt = Mul (t, t)  rest = Sub (one, tt)
        hx = Mul (x, half)  left = Mul (hx, rest)  second = Mul (left, kin)
        slope = Add (first, second)  dx = Mul (g, slope)
    """
    return Wrap(("x",), text, ("x",))


def _prelu(site: LoweringContext) -> Wrap:
    """Gives dx = g above zero, slope g below; dslope = sum of g x below."""
    text = number("zero", 0) + "up = Greater (x, zero)\nsloped = Mul (g, slope)\ndx = Where (up, g, sloped)\n"
    text += "gx = Mul (g, x)\nbelow = Where (up, zero, gx)\n" + summed_to("dslope", "below", site.out, site.shape(1))
    return Wrap(("x", "slope"), text, ("x", "slope"))


def _pow(site: LoweringContext) -> Wrap:
    """Gives dx = g e x^(e-1), de = sum of g y log(x) where x is not zero; each summed over what was broadcast."""
    whole = number("one", 1) + number("zero", 0)
    power = site.constant(1)
    if power is not None and power.size == 1 and float(power.reshape(())) == 2.0:
        text = "slope = Add (x, x)\nfull = Mul (g, slope)\n"
    else:
        text = whole + "e = Cast <to: int = 1> (exponent)\nless = Sub (e, one)\npower = Pow (x, less)\n"
        text += "slope = Mul (e, power)\nfull = Mul (g, slope)\n"
    text += summed_to("dx", "full", site.out, site.shape(0))
    if not site.active[1]:
        return Wrap(("x", "exponent"), text, ("x",))
    text += "none = Equal (x, zero)\nsafe = Where (none, one, x)\nlog = Log (safe)\ngy = Mul (g, y)\n"
    text += "full_e = Mul (gy, log)\n" + summed_to("dexponent", "full_e", site.out, site.shape(1))
    return Wrap(("x", "exponent"), text, ("x", "exponent"))


def _clip(site: LoweringContext) -> Treatment:
    site.only_first(1, 2)
    if any(one.name in ("min", "max") for one in site.node.attribute):
        raise site.refusal("has its bounds as attributes, which opsets from 11 on have not")
    return None


def _sum(site: LoweringContext) -> Replacement:
    """Additions from left to right; the mean is divided afterwards."""
    draft, mean = Replacement(site), site.node.op_type == "Mean"
    total, count = site.inputs[0], len(site.inputs)
    for index in range(1, count - (not mean)):
        total = draft.emit("Add", [total, site.inputs[index]])
    if mean:
        return draft.end("Mul", [total, draft.constant(np.float32(1 / count))])
    return draft.end("Add", [total, site.inputs[-1]]) if count > 1 else draft.end("Identity", [total])


def _where(site: LoweringContext) -> Treatment:
    """The builder forgets to sum over what was broadcast, so values are broadcast by an Expand before."""
    narrow = [at for at in (1, 2) if site.active[at] and site.shape(at) != site.out]
    if not narrow:
        return None
    draft, inputs = Replacement(site), list(site.inputs)
    for at in narrow:
        inputs[at] = draft.emit("Expand", [inputs[at], draft.integers(site.out)])
    draft.again(inputs)
    return draft


def _dropout(site: LoweringContext) -> Replacement:
    """Nothing at inference. One that drops would make the loss, and every check of it, random."""
    training = site.constant(2)
    if site.has(2) and (training is None or bool(training.any())):
        raise site.refusal("drops at random (training_mode)")
    if len(site.node.output) > 1 and site.node.output[1]:
        raise site.refusal("has its mask as an output")
    return Replacement(site).end("Identity", [site.inputs[0]])


def _inverse(square: str, root: bool, negative: bool = False) -> Rule:
    """The rule of an inverse function: g over the root of a difference of x^2 and one, or over the difference."""
    text = number("one", 1) + f"xx = Mul (x, x)  under = {square}\n"
    text += "down = Sqrt (under)\n" if root else "down = Identity (under)\n"
    return _of_x(text + ("up = Neg (g)  dx = Div (up, down)\n" if negative else "dx = Div (g, down)\n"))


ELEMENTWISE: dict[str, Rule] = {
    "Acos": _inverse("Sub (one, xx)", root=True, negative=True),
    "Acosh": _inverse("Sub (xx, one)", root=True),
    "Asin": _inverse("Sub (one, xx)", root=True),
    "Asinh": _inverse("Add (xx, one)", root=True),
    "Atanh": _inverse("Sub (one, xx)", root=False),
    "Cosh": _of_x("s = Sinh (x)\ndx = Mul (g, s)\n"),
    "Sinh": _of_x("c = Cosh (x)\ndx = Mul (g, c)\n"),
    "Tan": _of_x(number("one", 1) + "yy = Mul (y, y)\nslope = Add (yy, one)\ndx = Mul (g, slope)\n"),
    "Atan": _inverse("Add (xx, one)", root=False),
    "Celu": _celu,
    "Clip": _clip,
    "Dropout": _dropout,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _of_x(
        number("zero", 0) + number("one", 1) + number("half", 0.5) + number("third", 1 / 3) + number("three", 3) + "\n"
        "m = Neg (three)  low = LessOrEqual (x, m)  high = GreaterOrEqual (x, three)  part = Mul (x, third)\n"
        "line = Add (part, half)  cut = Where (high, one, line)  slope = Where (low, zero, cut)  dx = Mul (g, slope)\n"
    ),
    "Mean": _sum,
    "Mish": _of_x(
        number("one", 1) + "p = Softplus (x)  t = Tanh (p)  s = Sigmoid (x)  xs = Mul (x, s)  tt = Mul (t, t)\n"
        "rest = Sub (one, tt)  bent = Mul (xs, rest)  slope = Add (t, bent)  dx = Mul (g, slope)\n"
    ),
    "PRelu": _prelu,
    "Pow": _pow,
    "Selu": _selu,
    **dict.fromkeys(sorted(STEPS), _of_x(number("zero", 0) + "dx = Mul (g, zero)\n")),
    "Softplus": _of_x("s = Sigmoid (x)\ndx = Mul (g, s)\n"),
    "Softsign": _of_x(number("one", 1) + "a = Abs (x)\nd = Add (a, one)\ndd = Mul (d, d)\ndx = Div (g, dd)\n"),
    "Sum": _sum,
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
}
