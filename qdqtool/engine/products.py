# SPDX-License-Identifier: Apache-2.0
"""How many convolutions and matrix products there are of each type, counted as builders build them: one count for all.

What multiplies integers is asked of the graph with its pairs; the type of every other product is the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from qdqtool.decisions import Decisions
from qdqtool.engine.engine_view import EngineView
from qdqtool.formats import FP8, INT8, number_format, number_formats
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_product
from qdqtool.match.attention import find_attentions
from qdqtool.rulebook import load_rules

FORMAT_TITLES = {row.title: place for place, row in enumerate(number_formats().values())}
"""Type of a product that multiplies codes -> its place in a list of types."""


def count_products(
    view: GraphView, float_type: Callable[[Node], str], types: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Type -> how many products multiply in it, bodies included, number formats first and then the most first.

    An attention whose two products multiply codes is one kernel, and counts once: so does TensorRT for RTX, in the
    layers that it builds (`tests/rtx/test_product_counts.py`). In float its products are counted by themselves.
    """
    engine = EngineView(view.graph, load_rules("gpu_layers"), view.folder, types)
    products = [node for node in engine.every if is_product(node) and len(node.inputs) > 1]
    formats = {node.key: name for node in products if (name := engine.computes(node)) is not None}
    once = set()
    for one in find_attentions(view, load_rules("gpu"), "int8", Decisions()):
        names = {formats.get(one.nodes[0].key), formats.get(one.key)}
        if (names == {INT8.name} and one.int8) or names == {FP8.name}:
            once.add(one.key)
    counts = Counter(
        number_format(formats[node.key]).title if node.key in formats else float_type(node)
        for node in products
        if node.key not in once
    )
    places = FORMAT_TITLES
    return dict(sorted(counts.items(), key=lambda item: (places.get(item[0], len(places)), -item[1], item[0])))
