# SPDX-License-Identifier: Apache-2.0
"""How many convolutions and matrix products there are of each type, counted as builders build them: one count for all.

What multiplies integers is asked of the graph with its pairs; the type of every other product is the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from qdqtool.decisions import Decisions
from qdqtool.engine.engine_view import EngineView
from qdqtool.graph.view import GraphView, Node
from qdqtool.graph.weighted import is_product
from qdqtool.match.attention import find_attentions
from qdqtool.rulebook import load_rules

INT8 = "INT8"


def count_products(
    view: GraphView, float_type: Callable[[Node], str], types: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Type -> how many products multiply in it, bodies included, INT8 first and then the most first.

    An attention whose two products multiply integers is one kernel, and counts once: so does TensorRT for RTX, in the
    layers that it builds (`tests/rtx/test_product_counts.py`). In float its products are counted by themselves.
    """
    engine = EngineView(view.graph, load_rules("gpu_layers"), view.folder, types)
    products = [node for node in engine.every if is_product(node) and len(node.inputs) > 1]
    int8 = {node.key for node in products if engine.computes_int8(node)}
    attentions = [one for one in find_attentions(view, load_rules("gpu"), "int8", Decisions()) if one.int8]
    once = {one.key for one in attentions if int8.issuperset({one.nodes[0].key, one.key})}
    counts = Counter(INT8 if node.key in int8 else float_type(node) for node in products if node.key not in once)
    return dict(sorted(counts.items(), key=lambda item: (item[0] != INT8, -item[1], item[0])))
