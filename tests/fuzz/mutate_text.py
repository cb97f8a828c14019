# SPDX-License-Identifier: Apache-2.0
"""Text and JSON under attack: numbers, lines, nesting, length, values of another kind; and plain bytes."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from tests.fuzz import odd_values

_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_DEEP = 100_000


def octets(random_: random.Random, content: bytes) -> bytes:
    """Bytes alone."""
    return odd_values.octets(random_, content)


def text(random_: random.Random, content: bytes) -> bytes:
    """Numbers, lines, line ends, nesting, length."""
    lines = content.splitlines(keepends=True) or [b"\n"]
    at = random_.randrange(len(lines))
    match random_.randrange(9):
        case 0 | 1:
            found = list(_NUMBER.finditer(content))
            number = random_.choice(found)
            value = random_.choice(
                (odd_values.integer(random_), odd_values.real(random_), "", "0x1", "1_0", "9" * 5000)
            )
            return content[: number.start()] + str(value).encode() + content[number.end() :]
        case 2:
            lines[at] *= random_.choice((0, 0, 2, 2, 1000))
        case 3:
            other = random_.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 4:
            lines[at] = lines[at].rstrip(b"\n") * random_.choice((2, 500)) + b"\n"
        case 5:
            lines.insert(at, odd_values.name(random_).encode() + random_.choice((b"\n", b": ", b" = ")))
        case 6:
            opening = random_.choice((b"[", b"{", b'{"a":', b"(", b"<a>", b"a = [", b"a." * 2, b"[a."))
            lines.insert(at, opening * random_.choice((3, 2000, _DEEP)))
        case 7:
            words = re.split(rb"(\W+)", lines[at])
            words[random_.randrange(len(words))] = odd_values.name(random_).encode()
            lines[at] = b"".join(words)
        case _:
            return random_.choice(
                (b"\xef\xbb\xbf" + content, content.decode("latin-1").encode("utf-16"), b"", b"\0" * 50)
            )
    return b"".join(lines)


def tree(random_: random.Random, content: bytes) -> bytes:
    """JSON with a value of another kind somewhere, a key less, a key twice."""
    root: Any = {"root": json.loads(content)}
    places = _places(root)
    holder, key = random_.choice(places)
    match random_.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[odd_values.name(random_)] = holder[key]
        case 2 if isinstance(holder, list):
            holder.extend([holder[key]] * random_.choice((1, 100)))
        case 3:
            holder[key] = [holder[key]] if random_.random() < 0.5 else {"a": holder[key]}
        case _:
            odd = (
                None,
                True,
                "",
                [],
                {},
                "text",
                odd_values.integer(random_),
                odd_values.real(random_),
                odd_values.name(random_),
            )
            holder[key] = random_.choice(odd)
    return json.dumps(root.get("root", root), indent=random_.choice((None, 1)), ensure_ascii=False).encode(
        "utf-8", "replace"
    )


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) of a tree, the outermost first; a large tree's first ones stand for all."""
    found: list[tuple[Any, Any]] = []
    holders = [root]
    while holders and len(found) < 5000:
        holder = holders.pop(0)
        for key in list(holder if isinstance(holder, dict) else range(len(holder))):
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                holders.append(holder[key])
    return found
