# SPDX-License-Identifier: Apache-2.0
"""A model under attack in depth: local functions that call one another, subgraphs in subgraphs, records in metadata."""

from __future__ import annotations

import random

import onnx
from onnx import TensorProto, helper

from tests.fuzz import odd_values

_DEEP = (1, 2, 3, 7, 15, 28)  # protobuf itself refuses more than 100 messages in one another, three for each level


def functions(random_: random.Random, model: onnx.ModelProto) -> str:
    """Functions that call the next one several times, in place of an operator; the last one may call the first."""
    node = random_.choice([node for node in model.graph.node if len(node.output) == 1 and node.input])
    levels, calls = random_.choice(((1, 1), (2, 3), (3, 2), (7, 10), (30, 2), (300, 1)))
    mark, recursive = f"fuzz{random_.randrange(10**6)}", random_.random() < 0.3
    version = model.opset_import[0].version if model.opset_import else 17
    opsets = [helper.make_opsetid("", version), helper.make_opsetid(mark, 1)]
    for level in range(levels):
        last = level + 1 == levels
        called = ("Relu", "") if last and not recursive else (f"f{0 if last else level + 1}", mark)
        names = ["u", *(f"t{index}" for index in range(calls - 1)), "v"]
        steps = [helper.make_node(called[0], [names[i]], [names[i + 1]], domain=called[1]) for i in range(calls)]
        model.functions.append(helper.make_function(mark, f"f{level}", ["u"], ["v"], steps, opsets))
    model.opset_import.append(helper.make_opsetid(mark, 1))
    node.CopyFrom(helper.make_node("f0", [node.input[0]], [node.output[0]], domain=mark))
    return f"{levels} levels, {calls} calls{', recursive' if recursive else ''}"


def own_function(random_: random.Random, model: onnx.ModelProto) -> str:
    """A function under the name of a standard operator, or with more or fewer inputs than it is given."""
    node = random_.choice([node for node in model.graph.node if node.output])
    count = random_.choice((0, 1, 2, 5))
    steps = [helper.make_node("Identity", [f"u{min(index, count)}"], [f"v{index}"]) for index in range(2)]
    opsets = [helper.make_opsetid("", 17)] * random_.choice((0, 1, 2))
    names = [f"u{index}" for index in range(count)]
    own = helper.make_function(
        node.domain, node.op_type, names, ["v0", "v1"][: random_.choice((0, 1, 2))], steps, opsets
    )
    model.functions.extend([own] * random_.choice((1, 1, 2)))
    return f"{node.op_type}, {count} inputs"


def subgraphs(random_: random.Random, model: onnx.ModelProto) -> str:
    """An operator moved into an If or a Loop, which stands in another one, and so on."""
    at = random_.choice([i for i, node in enumerate(model.graph.node) if len(node.output) == 1])
    node = onnx.NodeProto.FromString(model.graph.node[at].SerializeToString())
    output, depth = node.output[0], random_.choice(_DEEP)
    kind = random_.choice(("If", "If", "Loop", "Scan"))
    model.graph.initializer.append(helper.make_tensor("fuzz_true", TensorProto.BOOL, [], [True]))
    for level in range(depth):
        inner = [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)]
        graph = helper.make_graph([node], f"g{level}", [], inner)
        name = output if level + 1 == depth else f"fuzz_{level}"
        if kind == "If":
            node = helper.make_node(
                "If", ["fuzz_true"], [name], then_branch=graph, else_branch=graph if level < 8 else None
            )
        else:
            node = helper.make_node(kind, ["", "fuzz_true"], [name], body=graph)
    model.graph.node[at].CopyFrom(node)
    return f"{kind} {depth} deep"


def records(random_: random.Random, model: onnx.ModelProto) -> str:
    """What qdqtool keeps in the metadata of models and nodes, changed."""
    holders = [model, *model.graph.node]
    entries = [entry for holder in holders for entry in holder.metadata_props]
    if not entries or random_.random() < 0.2:
        key = random_.choice(
            ("qdqtool.scales", "qdqtool.rule", "qdqtool.origin", "qdqtool.condition", "qdqtool.source")
        )
        entry = random_.choice(holders).metadata_props.add(key=key, value=random_.choice(("", "{}", "[]", "null", "1")))
        return entry.key
    entry = random_.choice(entries)
    changed = odd_values.octets(random_, entry.value.encode()).decode("utf-8", errors="replace")
    entry.value = random_.choice((changed, changed, "{}", "[]", "null", "[" * 5000, '{"schema": 99}', "1e999"))
    return entry.key[:60]


def no_nodes(random_: random.Random, model: onnx.ModelProto) -> str:
    """A graph without operators, without a name, with an annotation or a sparse constant, or a model without graph."""
    match random_.randrange(5):
        case 0:
            del model.graph.node[:]
        case 1:
            model.ClearField("graph")
        case 2:
            model.graph.ClearField("name")
        case 3:
            note = model.graph.quantization_annotation.add(tensor_name=model.graph.node[0].output[0])
            note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="nowhere")
        case _:
            model.graph.sparse_initializer.add().values.CopyFrom(model.graph.initializer[0])
    return ""


NESTED_MUTATORS = (functions, own_function, subgraphs, records, no_nodes)
