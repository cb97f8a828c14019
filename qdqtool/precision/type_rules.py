# SPDX-License-Identifier: Apache-2.0
"""rules/types.toml as a frozen value: which element types an operator takes in TensorRT, and which it gives out.

What the file does not say is ONNX's own schema of the operator. Not the types of any model: `element_types.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import TensorProto
from onnx.defs import OpSchema

from qdqtool.errors import QdqError
from qdqtool.limited_reading import RULES, read_toml
from qdqtool.rule_files import SCHEMA, common_words, rules_folder, spell_out
from qdqtool.trtversion import NEWEST, TrtVersion, in_range

Types = frozenset[int]
StoredAt = Literal["input", "initializer", "attribute"]
_FORMAL = OpSchema.FormalParameterOption
_TABLES = {
    "stored": frozenset({"type", "reads", "where"}),
    "takes": frozenset({"ops", "types"}),
    "data": frozenset({"ops", "inputs"}),
    "differs": frozenset({"ops", "inputs", "types", "beside"}),
    "place": frozenset({"ops", "inputs", "types"}),
    "makes": frozenset({"ops", "from"}),
}
_OPTIONAL = {"takes": frozenset({"given"}), "makes": frozenset({"among", "only"})}


@dataclass(frozen=True)
class Place:
    """What an input beside the data may be.

    Attributes:
        types: element types, as in onnx.TensorProto.
        rule: its name in rules/types.toml; "schema" where ONNX says so.
    """

    types: Types
    rule: str = "schema"


@dataclass(frozen=True)
class Exemption:
    """When a data input may be of another type than the data.

    Attributes:
        types: the types that it may be of.
        beside: the types of the data for which this holds.
        rule: its name.
    """

    types: Types
    beside: Types
    rule: str


@dataclass(frozen=True)
class TypeSource:
    """Where the type of an output comes from: an input, an attribute, or always the same.

    Attributes:
        kind: which of these.
        index: of the input.
        attribute: its name.
        element_type: the type itself, or that of values in the attribute; 0 where the attribute names a type.
    """

    kind: Literal["input", "attribute", "type"]
    index: int = 0
    attribute: str = ""
    element_type: int = 0


@dataclass(frozen=True)
class OperatorTypes:
    """The types of one operator in a strongly typed network.

    Attributes:
        op: the operator.
        data: the inputs that are of one type, the last one standing for all behind it where `variadic`.
        variadic: whether the operator takes any number of them.
        takes: the types of the data; None for all.
        takes_rule: the rule that says so.
        given: input -> the types of the data of nodes that have this input, and the rule.
        differs: data input -> when it may be of another type.
        places: other inputs -> what they may be.
        outputs: for each output the places that its type comes from; the last one stands for all behind it.
        among: types that a source must give, else the next is asked; None for all.
        only: types that the outputs may be of; None for all.
    """

    op: str
    data: tuple[int, ...] = ()
    variadic: bool = False
    takes: Types | None = None
    takes_rule: str = ""
    given: Mapping[int, tuple[Types, str]] = field(default_factory=dict)
    differs: Mapping[int, Exemption] = field(default_factory=dict)
    places: Mapping[int, Place] = field(default_factory=dict)
    outputs: tuple[tuple[TypeSource, ...], ...] = ()
    among: Types | None = None
    only: Types | None = None

    def data_inputs(self, count: int) -> tuple[int, ...]:
        """The data inputs of a node that has so many inputs."""
        if self.variadic and self.data:
            return (*self.data[:-1], *range(self.data[-1], count))
        return tuple(index for index in self.data if index < count)

    def computes_in(self, element_type: int, inputs: Sequence[str] = ()) -> bool:
        """Whether it takes data of a type."""
        return all(element_type in types for types, _ in self.limits(inputs))

    def limits(self, inputs: Sequence[str]) -> Iterator[tuple[Types, str]]:
        """The types that the data of a node with these inputs may be of, and the rule, one for each rule."""
        if self.takes is not None:
            yield self.takes, self.takes_rule
        yield from (limit for index, limit in self.given.items() if index < len(inputs) and inputs[index])


class TypeRules:
    """The rules of one version: `of(operator)` is made of the file and of ONNX's schema, once for each operator."""

    def __init__(
        self,
        operators: Mapping[str, Mapping[str, Any]],
        stored: Mapping[tuple[StoredAt, int], tuple[int, str]],
        sets: Mapping[str, Types],
    ) -> None:
        self._written = operators
        self._stored = stored
        self.sets = sets
        self._known: dict[str, OperatorTypes | None] = {}

    def of(self, op: str) -> OperatorTypes | None:
        """The types of an operator, by its name alone as TensorRT's parser looks it up; None for one not known."""
        if op not in self._known:
            self._known[op] = self._make(op)
        return self._known[op]

    def stored_as(self, element_type: int, where: StoredAt) -> tuple[int, str]:
        """The type that the network has for a stored one, and the rule; 0 where the parser refuses it."""
        return self._stored.get((where, element_type), (element_type, ""))

    def _make(self, op: str) -> OperatorTypes | None:
        schema, written = _schema(op), self._written.get(op, {})
        if schema is None and not written:
            return None
        found = OperatorTypes(op) if schema is None else _from_schema(schema, self.sets)
        if "data" in written:
            found = replace(found, data=written["data"], variadic=False)
        places = {index: place for index, place in found.places.items() if index not in found.data}
        places.update(written.get("places", {}))
        takes, rule = written.get("takes", (None, ""))
        return replace(
            found,
            takes=takes,
            takes_rule=rule,
            given=written.get("given", {}),
            differs=written.get("differs", {}),
            places=places,
            outputs=written.get("outputs", found.outputs),
            among=written.get("among"),
            only=written.get("only"),
        )


@functools.cache
def load_type_rules(version: TrtVersion | None = None) -> TypeRules:
    """The rules of this installation.

    Raises:
        QdqError: a rule that is not of the schema, named.
    """
    return read_type_rules(rules_folder() / "types.toml", version)


def read_type_rules(path: Path, version: TrtVersion | None = None) -> TypeRules:
    """The rules of a file; see `load_type_rules`."""
    document = read_toml(path, RULES)
    _check_tables(path, document)
    spelled = spell_out(path, {key: tuple(names) for key, names in document["sets"].items()})
    sets = {key: frozenset(_code(path, name) for name in names) for key, names in spelled.items()}
    operators: dict[str, dict[str, Any]] = {}
    stored: dict[tuple[StoredAt, int], tuple[int, str]] = {}
    for table, entry in _entries(path, document, version):
        if table == "stored":
            reads = _code(path, entry["reads"]) if entry["reads"] else 0
            for where in entry["where"]:
                stored.update({(where, _code(path, name)): (reads, entry["name"]) for name in entry["type"]})
            continue
        for op in entry["ops"]:
            _put(path, operators.setdefault(op, {}), table, entry, sets)
    return TypeRules(operators, stored, sets)


def _check_tables(path: Path, document: Mapping[str, Any]) -> None:
    if document.get("schema") != SCHEMA:
        raise QdqError(
            path, f"schema is {document.get('schema')!r}, not {SCHEMA}", f"write schema = {SCHEMA} at its top"
        )
    for key in sorted(document.keys() - {"schema", "sets", *_TABLES}):
        raise QdqError(path, f"unknown table {key!r}", f"the tables are {', '.join(_TABLES)}")


def _entries(
    path: Path, document: Mapping[str, Any], version: TrtVersion | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every rule that holds for a version, the newest release where none is given, with its table."""
    held = version or NEWEST
    for table, keys in _TABLES.items():
        for entry in document.get(table, []):
            trt = common_words(path, entry, keys, _OPTIONAL.get(table, frozenset()))["trt"]
            if not trt or in_range(held, trt):
                yield table, entry


def _put(path: Path, operator: dict[str, Any], table: str, entry: Mapping[str, Any], sets: Mapping[str, Types]) -> None:
    """Enter what a rule says of one operator; a later rule says it anew."""
    name = entry["name"]
    types = _types(path, entry["types"], sets) if "types" in entry else frozenset[int]()
    if table == "takes" and "given" in entry:
        operator.setdefault("given", {})[entry["given"]] = types, name
    elif table == "takes":
        operator["takes"] = types, name
    elif table == "data":
        operator["data"] = tuple(entry["inputs"])
    elif table == "differs":
        exemption = Exemption(types, _types(path, entry["beside"], sets), name)
        operator.setdefault("differs", {}).update(dict.fromkeys(entry["inputs"], exemption))
    elif table == "place":
        place = Place(types, name)
        operator.setdefault("places", {}).update(dict.fromkeys(entry["inputs"], place))
    else:
        operator["outputs"] = tuple(tuple(_source(path, text) for text in texts) for texts in entry["from"])
        operator.update({key: _types(path, entry[key], sets) for key in ("among", "only") if key in entry})


def _types(path: Path, words: str | Sequence[str], sets: Mapping[str, Types]) -> Types:
    """The types of a set, or of several sets and types."""
    listed = [words] if isinstance(words, str) else words
    return frozenset().union(*(sets.get(word) or frozenset({_code(path, word)}) for word in listed))


def _code(path: Path, name: str) -> int:
    """An element type by its name in ONNX."""
    found = dict(TensorProto.DataType.items()).get(name)
    if found is not None:
        return int(found)
    if name in ("FLOAT8E8M0", "FLOAT4E2M1", "UINT4", "INT4", "INT2", "UINT2"):
        return -1
    raise QdqError(path, f"unknown type or set {name!r}", "write it as onnx.TensorProto has it")


def _source(path: Path, text: str) -> TypeSource:
    """`input 1`, `attribute dtype`, `attribute value_int INT64` or a type."""
    kind, *words = text.split()
    if kind == "input":
        return TypeSource("input", int(words[0]))
    if kind == "attribute":
        return TypeSource("attribute", attribute=words[0], element_type=_code(path, words[1]) if words[1:] else 0)
    return TypeSource("type", element_type=_code(path, kind))


# ---------------------------------------------------------------------- ONNX's schema


def _schema(op: str) -> OpSchema | None:
    """The newest schema of an operator of ONNX's own, of one that is gone, too."""
    for version in (onnx.defs.onnx_opset_version(), 10, 9, 1):
        try:
            return onnx.defs.get_schema(op, version, "")
        except onnx.defs.SchemaError:
            continue
    return None


def _data_of(schema: OpSchema) -> tuple[tuple[int, ...], bool]:
    """The inputs of the type variable of the first output, else of the first input; whether they go on without end."""
    variables = [parameter.type_str for parameter in schema.inputs]
    if not variables:
        return (), False
    made = schema.outputs[0].type_str if schema.outputs else ""
    wanted = made if made in variables else variables[0]
    data = tuple(index for index, variable in enumerate(variables) if variable == wanted)
    return data, schema.inputs[-1].option == _FORMAL.Variadic and variables[-1] == wanted


def _from_schema(schema: OpSchema, sets: Mapping[str, Types]) -> OperatorTypes:
    data, variadic = _data_of(schema)
    allowed = {one.type_param_str: list(one.allowed_type_strs) for one in schema.type_constraints}
    places = {
        index: Place(_place(allowed.get(parameter.type_str, [parameter.type_str]), sets))
        for index, parameter in enumerate(schema.inputs)
        if index not in data
    }
    variables = {parameter.type_str: index for index, parameter in reversed(list(enumerate(schema.inputs)))}
    outputs = tuple(_made(parameter.type_str, variables, allowed) for parameter in schema.outputs)
    return OperatorTypes(schema.name, data, variadic, places=places, outputs=outputs)


def _place(allowed: Iterable[str], sets: Mapping[str, Types]) -> Types:
    """What an input that is not data may be: integers, BOOL, or anything."""
    words = {text.removeprefix("tensor(").removesuffix(")") for text in allowed}
    if words <= {"int32", "int64", "uint8", "int8", "int16", "uint16", "uint32", "uint64"}:
        return sets["index"]
    return sets["flag"] if words == {"bool"} else sets["every"]


def _made(variable: str, inputs: Mapping[str, int], allowed: Mapping[str, list[str]]) -> tuple[TypeSource, ...]:
    """Where the type of an output comes from by the schema; nowhere for one that only attributes tell."""
    names = allowed.get(variable, [variable])
    words = [name.removeprefix("tensor(").removesuffix(")").upper() for name in names]
    only = (TypeSource("type", element_type=int(TensorProto.DataType.Value(words[0]))),) if len(words) == 1 else ()
    return (TypeSource("input", inputs[variable]), *only) if variable in inputs else only
