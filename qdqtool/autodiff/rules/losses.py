# SPDX-License-Identifier: Apache-2.0
"""Operators that are losses already: cross-entropy of scores and of log probabilities, by labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto, helper

from qdqtool.autodiff.rules.tape import GraphValue
from qdqtool.autodiff.rules.vjp_context import Gradients, Rule, VjpContext


def _weighted_hits(site: VjpContext, g: GraphValue) -> tuple[GraphValue, GraphValue]:
    """Where the labels point in [N, C, *], and each label's share of the gradient, [N, 1, *].

    The loss is -sum(w_l * log p_l); the mean divides by sum(w_l). An ignored label weighs 0.
    """
    labels, weights = site.given(1).cast(TensorProto.INT64), site.optional(2)
    share = site.tape.constant(np.ones((), helper.tensor_dtype_to_np_dtype(g.kind))).expand(labels.shape)
    if "ignore_index" in site.attributes:
        ignored = labels.equals(int(site.attributes["ignore_index"]))
        labels = ignored.where(labels.lift(0), labels)
        share = ignored.where(share.lift(0), share)
    if weights is not None:
        share = share * site.tape.emit("Gather", [weights, labels], labels.shape, axis=0)
    if site.get("reduction", "mean") == "mean":
        share = share / share.sum(range(len(share.shape)))
    share = share * g
    depth = site.tape.integers([site.x.shape[1]])
    values = site.tape.constant(np.array([0, 1], helper.tensor_dtype_to_np_dtype(g.kind)))
    hits = site.tape.emit("OneHot", [labels, depth, values], site.x.shape, g.kind, axis=1)
    return hits, share.reshape((labels.shape[0], 1, *labels.shape[1:]))


def _cross_entropy(site: VjpContext) -> Gradients:
    """With p the softmax of the scores: share (p - hit), and through log p itself: g - p sum(g)."""
    shape, kind = site.x.shape, site.x.kind
    p = site.extra_output(1, shape, kind).unary("Exp")
    terms: list[GraphValue] = []
    by_loss, by_log = site.cotangents[0], site.cotangents[1] if len(site.cotangents) > 1 else None
    if by_loss is not None:
        hits, share = _weighted_hits(site, by_loss)
        terms.append((p - hits) * share)
    if by_log is not None:
        terms.append(by_log - p * by_log.sum([1]))
    return [site.tape.add_up(terms)]


def _negative_log_likelihood(site: VjpContext) -> Gradients:
    hits, share = _weighted_hits(site, site.g)
    return [-(hits * share)]


RULES: Mapping[str, Rule] = {
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
