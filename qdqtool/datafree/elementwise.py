# SPDX-License-Identifier: Apache-2.0
"""Moments through operators that work element by element: activations, arithmetic, selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qdqtool.datafree.moments import (
    INF,
    Array,
    Moments,
    added,
    constant,
    function_of,
    gaussian,
    guess,
    inverse,
    multiplied,
    product_bounds,
    sampled,
    within,
)
from qdqtool.graph.view import Node, attribute


def real(node: Node, name: str, default: float) -> float:
    """A number attribute; `default` where the node lacks it."""
    value = attribute(node, name, default)
    return float(value) if isinstance(value, (int, float)) else default


def _sigmoid(x: Array) -> Array:
    half: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return half


def _softplus(x: Array) -> Array:
    values: Array = np.logaddexp(0, x)
    return values


def _erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26, within 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    value: Array = np.sign(x) * (1 - series * np.exp(-(x**2)))
    return value


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _gelu(x: Array, n: Node) -> Array:
    if attribute(n, "approximate", "none") == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + _erf(x / np.sqrt(2))))


def _selu(x: Array, n: Node) -> Array:
    return real(n, "gamma", 1.0507009873554805) * _elu(x, real(n, "alpha", 1.6732632423543772))


def _hard_sigmoid(x: Array, n: Node) -> Array:
    return np.clip(real(n, "alpha", 0.2) * x + real(n, "beta", 0.5), 0, 1)


# Operator -> its function and what its values cannot pass, whatever comes in.
_UNARY: dict[str, tuple[Callable[[Array, Node], Array], float, float]] = {
    "Abs": (lambda x, n: np.abs(x), 0, INF),
    "Acos": (lambda x, n: np.arccos(np.clip(x, -1, 1)), 0, np.pi),
    "Asin": (lambda x, n: np.arcsin(np.clip(x, -1, 1)), -np.pi / 2, np.pi / 2),
    "Atan": (lambda x, n: np.arctan(x), -np.pi / 2, np.pi / 2),
    "Celu": (lambda x, n: _elu(x / real(n, "alpha", 1.0), 1.0) * real(n, "alpha", 1.0), -INF, INF),
    "Ceil": (lambda x, n: np.ceil(x), -INF, INF),
    "Cos": (lambda x, n: np.cos(x), -1, 1),
    "Elu": (lambda x, n: _elu(x, real(n, "alpha", 1.0)), -INF, INF),
    "Erf": (lambda x, n: _erf(x), -1, 1),
    "Exp": (lambda x, n: np.exp(np.minimum(x, 30)), 0, INF),
    "Floor": (lambda x, n: np.floor(x), -INF, INF),
    "Gelu": (_gelu, -0.18, INF),
    "HardSigmoid": (_hard_sigmoid, 0, 1),
    "HardSwish": (lambda x, n: x * np.clip(x / 6 + 0.5, 0, 1), -0.375, INF),
    "LeakyRelu": (lambda x, n: np.where(x < 0, real(n, "alpha", 0.01) * x, x), -INF, INF),
    "Log": (lambda x, n: np.log(np.maximum(x, 1e-12)), -INF, INF),
    "Mish": (lambda x, n: x * np.tanh(_softplus(x)), -0.31, INF),
    "Neg": (lambda x, n: -x, -INF, INF),
    "Relu": (lambda x, n: np.maximum(x, 0), 0, INF),
    "Round": (lambda x, n: np.rint(x), -INF, INF),
    "Selu": (_selu, -INF, INF),
    "Sigmoid": (lambda x, n: _sigmoid(x), 0, 1),
    "Sign": (lambda x, n: np.sign(x), -1, 1),
    "Sin": (lambda x, n: np.sin(x), -1, 1),
    "Softplus": (lambda x, n: _softplus(x), 0, INF),
    "Softsign": (lambda x, n: x / (1 + np.abs(x)), -1, 1),
    "Sqrt": (lambda x, n: np.sqrt(np.maximum(x, 0)), 0, INF),
    "Swish": (lambda x, n: x * _sigmoid(real(n, "alpha", 1.0) * x), -INF, INF),
    "Tanh": (lambda x, n: np.tanh(x), -1, 1),
    "ThresholdedRelu": (lambda x, n: np.where(x > real(n, "alpha", 1.0), x, 0), 0, INF),
}
# Functions that fold over: their value at the ends of a range does not bound them within it.
_TURNING = frozenset({"Abs", "Cos", "Gelu", "HardSwish", "Mish", "Sin", "Swish"})
UNARY = frozenset(_UNARY)
BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Mod"})
SEVERAL = frozenset({"Max", "Min", "Mean", "Sum"})


def unary(node: Node, x: Moments) -> Moments:
    """An activation or another function of one tensor, by quadrature over the tensor's source."""
    function, lo, hi = _UNARY[node.op]
    if node.op not in _TURNING:
        lo, hi = _image(lambda v: function(v, node), x, lo, hi)
    found = function_of([x], lambda v: function(v, node), lo, hi)
    return guess(lo, hi) if found is None else found


def clip(x: Moments, low: float, high: float) -> Moments:
    """Values cut off at two constants."""
    lo, hi = _image(lambda v: np.clip(v, low, high), x, low, high)
    return function_of([x], lambda v: np.clip(v, low, high), lo, hi) or guess(lo, hi)


def binary(node: Node, a: Moments, b: Moments) -> Moments:
    """Arithmetic on two tensors: exact by quadrature where both follow one source, else as if independent."""
    op = node.op
    lo, hi = _bounds(op, a, b)
    found = function_of([a, b], _ARITHMETIC[op], lo, hi)
    if found is not None:
        return found
    if op == "Add":
        return added(a, b)
    if op == "Sub":
        return added(a, replace(b, mean=-b.mean, lo=-b.hi, hi=-b.lo))
    if op == "Mul":
        return multiplied(a, b)
    if op == "Div":
        return multiplied(a, inverse(b))
    if op == "PRelu":
        return gaussian(a.mean, a.var, known=a.known)
    return guess(lo, hi)


def several(node: Node, parts: list[Moments]) -> Moments:
    """Max, Min, Mean and Sum of any number of tensors; Max and Min as if the tensors rose and fell together."""
    result = parts[0]
    for part in parts[1:]:
        if node.op in ("Max", "Min"):
            result = _extreme(np.maximum if node.op == "Max" else np.minimum, result, part)
        else:
            both = function_of([result, part], np.add, result.lo + part.lo, result.hi + part.hi)
            result = added(result, part) if both is None else both
    share = constant(np.float64(1 / len(parts)) * np.ones(()))
    if node.op != "Mean":
        return result
    return function_of([result, share], np.multiply, *product_bounds(result, share)) or result


def _extreme(function: Callable[..., Array], a: Moments, b: Moments) -> Moments:
    lo, hi = float(function(a.lo, b.lo)), float(function(a.hi, b.hi))
    found = function_of([a, b], function, lo, hi)
    if found is not None:
        return found
    joint = sampled(np.asarray(function(a.grid(), b.grid())), "", lo, hi, a.known and b.known)
    return replace(within([a, b], joint), samples=None, lo=lo, hi=hi, low=max(joint.low, lo), high=min(joint.high, hi))


def _safe_div(a: Array, b: Array) -> Array:
    return np.asarray(a / np.where(np.abs(b) < 1e-12, np.where(b < 0, -1e-12, 1e-12), b))


def _power(a: Array, b: Array) -> Array:
    whole = b == np.rint(b)
    base = np.where(whole, a, np.maximum(a, 0))
    base = np.where((b < 0) & (np.abs(base) < 1e-6), 1e-6, base)
    return np.clip(np.power(base, b), -1e30, 1e30)


_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _safe_div,
    "Pow": _power,
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "Mod": lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
}


def _bounds(op: str, a: Moments, b: Moments) -> tuple[float, float]:
    if op == "Add":
        return a.lo + b.lo, a.hi + b.hi
    if op == "Sub":
        return a.lo - b.hi, a.hi - b.lo
    if op == "Mul":
        return product_bounds(a, b)
    if op == "Div" and (b.lo > 0 or b.hi < 0):
        return product_bounds(a, replace(b, lo=1 / b.hi, hi=1 / b.lo))
    if op == "Pow" and b.source is None and not np.any(b.mean % 2):
        return 0.0, INF
    return -INF, INF


def _image(function: Callable[[Array], Array], x: Moments, lo: float, hi: float) -> tuple[float, float]:
    """What a function that never falls (or never rises) makes of a tensor's bounds."""
    with np.errstate(all="ignore"):
        ends = np.asarray(function(np.array([x.lo, x.hi])), np.float64)
    ends = np.where(np.isnan(ends), [lo, hi], ends)
    return max(lo, float(ends.min())), min(hi, float(ends.max()))
