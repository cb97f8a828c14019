# SPDX-License-Identifier: Apache-2.0
"""A graph under attack: operators, edges, weights, types, constants, attributes. Nesting is mutate_nested.py's."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz import odd_values
from tests.fuzz.mutate_nested import NESTED_MUTATORS

_ATTRIBUTES = tuple(
    name
    for operators in ("Conv", "Resize", "Reshape", "Gemm", "Transpose", "Split", "Cast", "ReduceMean", "DepthToSpace")
    for name in sorted(onnx.defs.get_schema(operators).attributes)
)
_FOREIGN = (
    ("com.microsoft", "FusedConv"),
    ("com.microsoft", "QLinearAdd"),
    ("com.microsoft", "QuantizeLinear"),
    ("com.microsoft", "ReluGrad"),
    ("trt.plugins", "EfficientNMS_TRT"),
    ("", "BatchedNMSDynamic_TRT"),
    ("", "Affine"),
    ("nobody.knows", "Thing"),
)
_SHAPED = ("ConstantOfShape", "Expand", "Tile", "Range", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Concat")
_MOVED = ("Slice", "Gather", "Cast", "Pad", "Flatten", "Split", "Shape", "Mul", "Identity", "OneHot", "ConstantOfShape")
_WITHOUT_VALUES = ([2**31 - 1, 8, 0, 4], [0, 2**31 - 1], [2**31 - 1, 0], [4, 0, 3, 3])  # no bytes, long axes
_TYPES = tuple(TensorProto.DataType.values())


def _tensors(graph: onnx.GraphProto) -> list[str]:
    made = [name for node in graph.node for name in node.output]
    return [*made, *(tensor.name for tensor in graph.initializer), *(value.name for value in graph.input)]


def operator(random_: random.Random, model: onnx.ModelProto) -> str:
    """Another operator on the same edges: a known one, or one of a foreign domain."""
    node = random_.choice(model.graph.node)
    if random_.random() < 0.4:
        node.domain, node.op_type = random_.choice(_FOREIGN)
    else:
        known = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
        node.op_type = random_.choice(known)
    return node.op_type


def edge(random_: random.Random, model: onnx.ModelProto) -> str:
    """An input from elsewhere: another tensor, its own output, nothing; or an output under a name that exists."""
    node = random_.choice(model.graph.node)
    names = _tensors(model.graph)
    slots = node.output if random_.random() < 0.25 else node.input
    value = random_.choice([random_.choice(names), random_.choice(names), node.output[0], "", "nowhere"])
    slots[random_.randrange(len(slots))] = value
    return node.op_type


def arity(random_: random.Random, model: onnx.ModelProto) -> str:
    """Too few or too many inputs or outputs of an operator."""
    node = random_.choice(model.graph.node)
    slots = random_.choice((node.input, node.input, node.output))
    if random_.random() < 0.6:
        del slots[random_.randrange(len(slots)) :]
    else:
        slots.extend([random_.choice(["", *_tensors(model.graph)])] * random_.choice((1, 3, 300)))
    return f"{node.op_type} {len(slots)}"


def stored(random_: random.Random, model: onnx.ModelProto) -> str:
    """A constant of another shape, type or content that is whole in itself."""
    tensor = random_.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor)
    shapes = [
        array.shape[::-1],
        array.shape[:-1],
        (*array.shape, 1),
        (1, *array.shape),
        (-1,),
        (),
        (0, *array.shape[1:]),
    ]
    shape = random_.choice(shapes)
    size = int(np.prod(shape)) if -1 not in shape else array.size
    with np.errstate(all="ignore"):
        array = np.resize(array, size).reshape(shape)
        if random_.random() < 0.4:
            array = array.astype(random_.choice((np.float16, np.float64, np.int64, np.int8, np.bool_, np.uint8)))
        if random_.random() < 0.3 and array.size and array.dtype.kind == "f":
            array.reshape(-1)[random_.randrange(array.size)] = odd_values.real(random_)
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return f"{array.shape} {array.dtype}"


def declared(random_: random.Random, model: onnx.ModelProto) -> str:
    """A constant whose shape or type is not that of its bytes."""
    tensor = random_.choice(model.graph.initializer)
    if random_.random() < 0.3:
        tensor.data_type = random_.choice(_TYPES)
        return TensorProto.DataType.Name(tensor.data_type)
    del tensor.dims[:]
    tensor.dims.extend(odd_values.integer(random_) for _ in range(random_.choice((0, 1, 2, 4, 70))))
    return str(list(tensor.dims))[:60]


def without_values(random_: random.Random, model: onnx.ModelProto) -> str:
    """A constant without values whose other axes are long, in place of one, or of any input of a node."""
    graph, shape = model.graph, random_.choice(_WITHOUT_VALUES)
    mark = f"empty{random_.randrange(10**6)}"
    graph.initializer.append(onnx.TensorProto(name=mark, data_type=TensorProto.FLOAT, dims=shape, raw_data=b""))
    node = random_.choice([node for node in graph.node if node.input])
    slot = random_.randrange(len(node.input))
    node.input[slot] = mark
    return f"{node.op_type} {slot} {shape}"


def sequence(random_: random.Random, model: onnx.ModelProto) -> str:
    """A tensor through a sequence or an optional on its way, which may be an output of the graph, too."""
    graph = model.graph
    place, node = random_.choice([(n, node) for n, node in enumerate(graph.node) if any(node.output)])
    name, mark = next(filter(None, node.output)), f"seq{random_.randrange(10**6)}"
    zero, axis = f"{mark}_0", random_.choice((0, 1, 1, 2))
    graph.initializer.append(helper.make_tensor(zero, TensorProto.INT64, [], [random_.choice((0, 0, 0, 1, 2, -1))]))
    into, out = random_.choice(
        (
            (("SplitToSequence", [name], {"axis": axis}), ("ConcatFromSequence", [mark], {"axis": axis})),
            (("SequenceConstruct", [name, name], {}), ("SequenceAt", [mark, zero], {})),
            (("SequenceConstruct", [name], {}), ("ConcatFromSequence", [mark], {"axis": axis})),
            (("Optional", [name], {}), ("OptionalGetElement", [mark], {})),
        )
    )
    for other in graph.node:
        for slot, one in enumerate(other.input):
            if one == name:
                other.input[slot] = f"{mark}_back"
    graph.node.insert(place + 1, helper.make_node(into[0], into[1], [mark], **into[2]))
    graph.node.insert(place + 2, helper.make_node(out[0], out[1], [f"{mark}_back"], **out[2]))
    if random_.random() < 0.4:
        kind = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        wrap = helper.make_optional_type_proto if into[0] == "Optional" else helper.make_sequence_type_proto
        graph.output.insert(random_.choice((0, len(graph.output))), helper.make_value_info(mark, wrap(kind)))
        if random_.random() < 0.3:
            del graph.output[1:]
    return f"{into[0]} {out[0]} after {node.op_type}"


def external(random_: random.Random, model: onnx.ModelProto) -> str:
    """A constant in a file that is not there, elsewhere, or too short."""
    tensor = random_.choice(model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    places = ("weights.bin", "../weights.bin", "/etc/hostname", "", ".", "model.onnx", "a\0b", "c" * 300)
    facts = {"location": random_.choice(places), "offset": str(odd_values.integer(random_)), "length": "x"}
    facts["length"] = random_.choice((str(odd_values.integer(random_)), "", "0x10", "1e3", "x"))
    for key in random_.sample(sorted(facts), random_.randint(1, 3)):
        tensor.external_data.add(key=key, value=facts[key])
    return str({entry.key: entry.value for entry in tensor.external_data})[:80]


def computed(random_: random.Random, model: onnx.ModelProto) -> str:
    """A weight that a constant operator computes: of odd sizes, permutations, axes; one or several in a row."""
    graph = model.graph
    node = random_.choice([node for node in graph.node if node.input])
    slot = random_.randrange(len(node.input))
    source, said = random_.choice([*(t.name for t in graph.initializer), node.input[slot]]), []
    for step in range(random_.choice((1, 1, 2, 4))):
        mark = f"fuzz{random_.randrange(10**6)}"
        kind = random_.choice(_SHAPED + _MOVED)
        values = [odd_values.integer(random_) for _ in range(random_.choice((0, 1, 2, 4, 4, 5)))]
        if random_.random() < 0.4:
            values = random_.choice(
                ([2**20, 3, 64, 64], [4, 4, 3, 3], [1, 0, 2, 3], [0, 0], [-1, -1], [70000, 70000], *_WITHOUT_VALUES)
            )
        graph.initializer.append(helper.make_tensor(mark, TensorProto.INT64, [len(values)], values))
        inputs = [mark] if kind in ("ConstantOfShape",) else [source, mark][: random_.choice((1, 2, 2))]
        made = helper.make_node(kind, inputs + [mark] * random_.choice((0, 0, 0, 1, 2)), [f"{mark}_out"])
        if random_.random() < 0.4:
            made.attribute.append(helper.make_attribute(random_.choice(("perm", "axes", "axis", "to")), values or 1))
        graph.node.insert(step, made)
        source = f"{mark}_out"
        said.append(f"{kind}{values}")
    node.input[slot] = source
    return ", ".join(said)[:160]


def attribute(random_: random.Random, model: onnx.ModelProto) -> str:
    """An attribute of odd value or type, absent where needed, twice, or a reference where there is no function."""
    node = random_.choice(model.graph.node)
    if node.attribute and random_.random() < 0.5:
        old = random_.choice(node.attribute)
        name = old.name
        match random_.randrange(4):
            case 0:
                node.attribute.remove(old)
                return f"{node.op_type} without {name}"
            case 1:
                node.attribute.add().CopyFrom(old)
                return f"{node.op_type} twice {name}"
            case 2:
                old.ref_attr_name = odd_values.name(random_)
                return f"{node.op_type} reference {name}"
        node.attribute.remove(old)
    else:
        name = random_.choice(_ATTRIBUTES)
    integers = [odd_values.integer(random_) for _ in range(random_.choice((1, 2, 4, 5, 1000)))]
    small = [random_.randint(-3, 5) for _ in range(random_.choice((1, 2, 4)))]
    values = (
        integers[0],
        small[0],
        integers,
        small,
        small,
        odd_values.real(random_),
        odd_values.name(random_),
        b"\xff\xfe",
    )
    node.attribute.append(helper.make_attribute(name, random_.choice(values)))
    return f"{node.op_type}.{name}"


def boundary(random_: random.Random, model: onnx.ModelProto) -> str:
    """Odd inputs and outputs of the graph: none, twice, unknown, of other shapes and types, of no tensor type."""
    graph = model.graph
    values = random_.choice((graph.input, graph.output, graph.value_info))
    match random_.randrange(6):
        case 5:
            shape = random_.choice(values).type.tensor_type.shape
            dims = [shape.dim.add() for _ in range(random_.choice((0, 0, 1)))]
            for dim in [*dims, *shape.dim]:
                dim.dim_value = odd_values.integer(random_)
            if random_.random() < 0.5:
                del shape.dim[random_.choice((0, 0, 1)) :]
        case 0:
            del values[random_.randrange(len(values)) :]
        case 1:
            values.add().CopyFrom(random_.choice([*graph.input, *graph.output]))
        case 2:
            shape = [odd_values.integer(random_) for _ in range(random_.choice((0, 1, 4, 5)))]
            name = random_.choice([*_tensors(graph), "nowhere"])
            values.add().CopyFrom(helper.make_tensor_value_info(name, random_.choice(_TYPES), shape))
        case 3:
            tensor = random_.choice(values).type.tensor_type
            tensor.elem_type = random_.choice(_TYPES)
        case _:
            one = random_.choice(values)
            kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
            one.type.CopyFrom(random_.choice((helper.make_sequence_type_proto, helper.make_optional_type_proto))(kind))
    return values[-1].name[:40] if values else "none"


def version(random_: random.Random, model: onnx.ModelProto) -> str:
    """Another opset, none, two, a domain without one; another IR version."""
    match random_.randrange(4):
        case 0:
            model.ir_version = odd_values.integer(random_)
        case 1:
            del model.opset_import[:]
        case 2:
            model.opset_import.add(domain=random_.choice(("", "ai.onnx", "ai.onnx.ml", "own")), version=9)
        case _:
            random_.choice(model.opset_import).version = random_.choice([*range(1, 30), odd_values.integer(random_)])
    return f"{model.ir_version} {[(one.domain, one.version) for one in model.opset_import]}"[:80]


GRAPH_MUTATORS = (
    operator,
    edge,
    arity,
    stored,
    declared,
    external,
    computed,
    computed,
    without_values,
    sequence,
    sequence,
    attribute,
    attribute,
    boundary,
    version,
    *NESTED_MUTATORS,
)
