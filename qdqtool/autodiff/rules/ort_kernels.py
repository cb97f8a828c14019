# SPDX-License-Identifier: Apache-2.0
"""Derivatives of the table that one kernel of onnxruntime-training gives in less time than standard operators.

A kernel gives None where it is not made for a node; then the table's rule is asked. Its other kernels are not in here,
since they are no faster: measured on 1.19.2's CPU kernels, one thread, of ReluGrad, LeakyReluGrad, LogSoftmaxGrad_13,
SoftmaxGrad_13, LayerNormalizationGrad, QuickGeluGrad, GatherGrad, MaxPoolGrad and AveragePoolGrad none saved a tenth of
a step, and with five of them (Relu, LeakyRelu, LogSoftmax, Gather, MaxPool) it took 1.4 to 4.5 times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qdqtool.autodiff.rules.convolution import attributes_of, bias_gradient, transposed_windows
from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext
from qdqtool.autodiff.rules.windows import Windows, windows_of

_DOMAIN = "com.microsoft"
_Kernel = Callable[[VjpContext], Gradients | None]


def _of_output(op: str) -> _Kernel:
    return lambda site: [site.tape.emit(op, [site.g, site.y], site.x.shape, domain=_DOMAIN)]


def _suits(site: VjpContext) -> bool:
    """Whether ConvGrad is asked: it makes the weight's gradient in any case, and is safe on images.

    On one or three spatial axes with groups, 1.19.2's kernel writes beyond its buffers: x [2, 24, 64], w [24, 12, 3].
    """
    return site.wants(1) and len(site.x.shape) == 4


def _conv_grad(
    site: VjpContext, values: Sequence[GraphValue], windows: Windows, wants_input: bool
) -> list[GraphValue | None]:
    """The gradients by x and w of a Conv from `values`: g, x, w."""
    shapes = [values[1].shape if wants_input else None, values[2].shape]
    how = attributes_of(windows, int(site.get("group", 1)))
    return site.tape.emit_several("ConvGrad", values, shapes, domain=_DOMAIN, **how)


def _conv(site: VjpContext) -> Gradients | None:
    if not _suits(site):
        return None
    x, w, g = site.x, site.given(1), site.g
    windows = windows_of(site, w.shape[2:], x.shape[2:], g.shape[2:])
    return [*_conv_grad(site, (g, x, w), windows, site.wants(0)), bias_gradient(g) if site.wants(2) else None]


def _conv_transpose(site: VjpContext) -> Gradients | None:
    """The gradient by the weight is that of the Conv from y to x whose input gradient the forward pass is."""
    if not _suits(site):
        return None
    x, w, g = site.x, site.given(1), site.g
    windows = transposed_windows(site, w, g)
    _, by_w = _conv_grad(site, (x, g, w), windows, wants_input=False)
    how = attributes_of(windows, int(site.get("group", 1)))
    by_x = site.tape.emit("Conv", [g, w], x.shape, **how) if site.wants(0) else None
    return [by_x, by_w, bias_gradient(g) if site.wants(2) else None]


KERNELS: Mapping[str, _Kernel] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Sigmoid": _of_output("SigmoidGrad"),
    "Tanh": _of_output("TanhGrad"),
}
"""Operator, as the table has it -> its kernel."""


def with_kernels(rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    """The table, with kernels before the rules that they stand for."""
    return {**rules, **{op: _first(kernel, rules[op]) for op, kernel in KERNELS.items()}}


def _first(kernel: _Kernel, rule: Rule) -> Rule:
    def either(site: VjpContext) -> Gradients:
        gradients = kernel(site)
        return rule(site) if gradients is None else gradients

    return either
