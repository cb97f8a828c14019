# SPDX-License-Identifier: Apache-2.0
"""Operators that slide a window: convolutions, pools. Pads are made explicit: the gradient kernels read no other."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtool.autodiff.lowered.site import LoweringContext, Replacement, Rule, Treatment, Wrap, integers


def _kernel(site: LoweringContext) -> tuple[int, ...]:
    return tuple(site.attribute("kernel_shape") or site.shape(1)[2:])


def _each(site: LoweringContext, name: str) -> list[int]:
    """An attribute with one number per spatial axis, by default ones."""
    return list(site.attribute(name) or [1] * (len(site.shape(0)) - 2))


def _pads(site: LoweringContext, totals: Sequence[int], lower: bool) -> list[int]:
    """Totals shared between begin and end; what is odd goes to the begin if `lower`."""
    begins = [(total + 1) // 2 if lower else total // 2 for total in totals]
    return [*begins, *(total - begin for total, begin in zip(totals, begins, strict=True))]


def _explicit_pads(site: LoweringContext, kernel: Sequence[int]) -> list[int]:
    """The pads of a convolution or pool, from those it names or from `auto_pad` and its shapes."""
    how, count = site.attribute("auto_pad", "NOTSET"), len(kernel)
    if how == "NOTSET":
        return list(site.attribute("pads") or [0] * (2 * count))
    if how == "VALID":
        return [0] * (2 * count)
    strides, dilations = _each(site, "strides"), _each(site, "dilations")
    totals = [
        max((size_out - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        for size, size_out, stride, k, dilation in zip(
            site.shape(0)[2:], site.out[2:], strides, kernel, dilations, strict=True
        )
    ]
    return _pads(site, totals, how == "SAME_LOWER")


def _convolution(site: LoweringContext) -> Treatment:
    if site.attribute("auto_pad", "NOTSET") == "NOTSET":
        return None
    draft = Replacement(site)
    draft.again(auto_pad=None, pads=_explicit_pads(site, _kernel(site)))
    return draft


def _max_pool(site: LoweringContext) -> Treatment:
    """The gradient goes where the indices tell, which the builder adds as a second output."""
    if site.attribute("storage_order", 0):
        raise site.refusal("counts its indices by column (storage_order)")
    if site.attribute("auto_pad", "NOTSET") == "NOTSET":
        return None
    draft = Replacement(site)
    draft.again(auto_pad=None, pads=_explicit_pads(site, site.attribute("kernel_shape")))
    return draft


def _average_pool(site: LoweringContext) -> Treatment:
    """The gradient kernel knows no rounding up and no dilation."""
    if site.attribute("ceil_mode", 0) and _rounds_up(site):
        raise site.refusal("rounds its size up (ceil_mode)")
    if any(dilation != 1 for dilation in _each(site, "dilations")):
        raise site.refusal("has dilations")
    draft = Replacement(site)
    pads = _explicit_pads(site, site.attribute("kernel_shape"))
    draft.again(auto_pad=None, dilations=None, ceil_mode=None, pads=pads)
    return draft


def _rounds_up(site: LoweringContext) -> bool:
    """Whether the last window reaches beyond what rounding down would give."""
    kernel = site.attribute("kernel_shape")
    pads, strides = _explicit_pads(site, kernel), _each(site, "strides")
    count = len(kernel)
    sizes = zip(site.shape(0)[2:], site.out[2:], kernel, pads[:count], pads[count:], strides, strict=True)
    return any((size + low + high - k) // stride + 1 != out for size, out, k, low, high, stride in sizes)


def _transposed(site: LoweringContext) -> Wrap:
    """ConvTranspose is the gradient of a Conv with the same weight, so its own gradients are Conv and ConvGrad.

    dx = Conv(g, w); dw is what ConvGrad gives by the weight with g as the input and x as the gradient.
    """
    kernel, strides, dilations = _kernel(site), _each(site, "strides"), _each(site, "dilations")
    pads = _transposed_pads(site, kernel, strides, dilations)
    how = ", ".join(
        f"{name}: ints = [{', '.join(map(str, values))}]"
        for name, values in (
            ("kernel_shape", kernel),
            ("strides", strides),
            ("dilations", dilations),
            ("pads", pads),
        )
    )
    how = f"<{how}, group: int = {site.attribute('group', 1)}>"
    text = f"dx = Conv {how} (g, w)\nunused, dw = com.microsoft.ConvGrad {how} (x, g, w)\n"
    names: tuple[str, ...] = ("x", "w")
    if site.has(2):
        over = [axis for axis in range(len(site.out)) if axis != 1]
        text += integers("over", over) + "db = ReduceSum <keepdims: int = 0> (g, over)\n"
        names = ("x", "w", "b")
    return Wrap(names, text, names)


def _transposed_pads(
    site: LoweringContext, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """What is cut off at the begin and the end of each axis, by the output's real shape."""
    how, count = site.attribute("auto_pad", "NOTSET"), len(kernel)
    if how == "NOTSET" and not site.attribute("output_shape"):
        return list(site.attribute("pads") or [0] * (2 * count))
    extra = site.attribute("output_padding") or [0] * count
    sizes = zip(site.shape(0)[2:], site.out[2:], kernel, strides, dilations, extra, strict=True)
    totals = [max((size - 1) * s + more + (k - 1) * d + 1 - out, 0) for size, out, k, s, d, more in sizes]
    return _pads(site, totals, how != "SAME_UPPER")


WINDOWS: dict[str, Rule] = {
    "AveragePool": _average_pool,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _max_pool,
}
