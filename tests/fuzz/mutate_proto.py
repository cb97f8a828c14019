# SPDX-License-Identifier: Apache-2.0
"""A model under attack as a protobuf message: any field of any message in it. What fields mean is mutate_graph.py's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz import odd_values
from tests.fuzz.mutate_graph import GRAPH_MUTATORS
from tests.fuzz.mutate_qdq import QDQ_MUTATORS

_MOST_MESSAGES = 3000
_LONGEST_COPY = 2000  # entries of a repeated field that are copied one by one
_BITS = {FieldDescriptor.CPPTYPE_INT32: 32, FieldDescriptor.CPPTYPE_INT64: 64}


def mutate_model(random_: random.Random, content: bytes) -> tuple[bytes, str]:
    """One to three changes to a serialized model; the new bytes, and what was done in words."""
    if random_.random() < 0.12:
        return odd_values.octets(random_, content), "bytes"
    model = onnx.ModelProto.FromString(content)
    done = []
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        mutator = random_.choices((any_field, random_.choice(GRAPH_MUTATORS), random_.choice(QDQ_MUTATORS)), (5, 6, 3))[
            0
        ]
        done.append(_applied(mutator, random_, model))
    content = model.SerializeToString(deterministic=True)
    if random_.random() < 0.04:
        return _without_utf8(random_, model, content), f"{', '.join(done)}, name without UTF-8"
    return content, ", ".join(done)


def _applied(
    mutator: Callable[[random.Random, onnx.ModelProto], str | None], random_: random.Random, model: Any
) -> str:
    """Apply one mutator; where the graph has nothing for it, change any field instead."""
    try:
        words = mutator(random_, model)
    except Exception:  # nothing to choose from, or what a change before has made unreadable
        return f"{mutator.__name__} not possible"
    return f"{mutator.__name__} {words or ''}".strip()


def any_field(random_: random.Random, model: Message) -> str:
    """Change one field of one message, whatever they are."""
    message = random_.choice(_messages(model))
    present = [field for field, _ in message.ListFields()]
    fields = present if present and random_.random() < 0.8 else list(message.DESCRIPTOR.fields)
    field = random_.choice(fields)
    if field.is_repeated:
        _change_repeated(random_, getattr(message, field.name), field)
    elif field.message_type:
        message.ClearField(field.name) if random_.random() < 0.7 else getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(random_, field, getattr(message, field.name)))
    return f"{message.DESCRIPTOR.name}.{field.name}"


def _messages(root: Message) -> list[Message]:
    """The messages of a tree, breadth first, so that a large graph's first nodes stand for all."""
    found, index = [root], 0
    while index < len(found) and len(found) < _MOST_MESSAGES:
        for field, value in found[index].ListFields():
            if field.message_type:
                found.extend(value if field.is_repeated else [value])
        index += 1
    return found


def _change_repeated(random_: random.Random, values: Any, field: FieldDescriptor) -> None:
    entries = list(values)
    if not entries or random_.random() < 0.15:
        values.add() if field.message_type else values.append(_scalar(random_, field, None))
        return
    if len(entries) > _LONGEST_COPY:
        del values[random_.randrange(len(entries)) :]
        return
    first, second = random_.randrange(len(entries)), random_.randrange(len(entries))
    match random_.randrange(6 if field.message_type else 7):
        case 0:
            del entries[first]
        case 1:
            entries.insert(second, entries[first])
        case 2:
            entries[first], entries[second] = entries[second], entries[first]
        case 3:
            entries.reverse()
        case 4:
            entries = entries[:first]
        case 5:
            entries += [entries[first]] * random_.choice((1, 2, 40))
        case _:
            entries[first] = _scalar(random_, field, entries[first])
    copies = [type(entry).FromString(entry.SerializeToString()) for entry in entries] if field.message_type else entries
    del values[:]
    values.extend(copies)


def _scalar(random_: random.Random, field: FieldDescriptor, old: Any) -> Any:
    kind = field.cpp_type
    if field.enum_type:
        return random_.choice([value.number for value in field.enum_type.values])
    if kind in _BITS:
        near = [old + step for step in (-1, 1)] if isinstance(old, int) and abs(old) < 2**30 else []
        return random_.choice(
            [odd_values.integer(random_, _BITS[kind]), odd_values.integer(random_, _BITS[kind]), *near]
        )
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return odd_values.real(random_)
    if kind == FieldDescriptor.CPPTYPE_UINT64:
        return abs(odd_values.integer(random_))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return odd_values.octets(random_, old or b"")
    return odd_values.name(random_)


def _without_utf8(random_: random.Random, model: onnx.ModelProto, content: bytes) -> bytes:
    """Put a byte that UTF-8 does not know into a name, wherever it stands: protobuf for Python refuses to write one."""
    names = sorted({name for node in model.graph.node for name in (*node.output, node.name) if len(name) > 1})
    if not names:
        return content
    name = random_.choice(names).encode()
    return content.replace(name, b"\xff" + name[1:])
