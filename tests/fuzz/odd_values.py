# SPDX-License-Identifier: Apache-2.0
"""Values that nobody expects: numbers, names, bytes. Every mutator draws from here."""

from __future__ import annotations

import random

INTEGERS = (0, 1, -1, 2, 3, 4, 5, 7, 8, 16, 100, 127, 128, -128, 255, 256, 1000, 65536, 2**31 - 1, 2**31, 2**32, 2**40)
HUGE = (2**62, 2**63 - 1, -(2**63), -(2**31), -(2**62))
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-45,
    1e-20,
    1e10,
    3.4e38,
    1e39,
    -3.4e38,
    float("inf"),
    -float("inf"),
    float("nan"),
)
NAMES = (
    "",
    " ",
    "x",
    "y",
    "a/b:c d",
    "\x1b[31mred\x07",
    "line\nbreak",
    "tab\there",
    "\u00e9\u6f22\U0001f600",
    "\u2028",
    "../../up",
    "%s%n{0}",
    "a" * 300,
    "b" * 100_000,
    "com.microsoft",
    "'; rm x; '",
    '"quoted"',
    "-1",
    "x_Q",
    "x_scale",
)


def integer(random_: random.Random, bits: int = 64) -> int:
    """An odd integer that fits the signed type."""
    value = random_.choice(INTEGERS + HUGE)
    bound = 2 ** (bits - 1)
    return max(-bound, min(bound - 1, value))


def real(random_: random.Random) -> float:
    """An odd float."""
    return random_.choice(FLOATS)


def name(random_: random.Random) -> str:
    """An odd name; long ones are rarer."""
    return random_.choice(NAMES if random_.random() < 0.3 else NAMES[:12])


def octets(random_: random.Random, content: bytes) -> bytes:
    """Bytes flipped, cut, repeated, put in or taken out."""
    if not content:
        return random_.randbytes(random_.randint(0, 64))
    at, length = random_.randrange(len(content)), random_.choice((1, 1, 2, 4, 8, 64, 1000))
    match random_.randrange(6):
        case 0:
            return content[:at] + bytes([content[at] ^ (1 << random_.randrange(8))]) + content[at + 1 :]
        case 1:
            return content[:at] + random_.randbytes(length) + content[at + length :]
        case 2:
            return content[:at]
        case 3:
            return content[:at] + content[at + length :]
        case 4:
            return content[:at] + content[at : at + length] * random_.choice((2, 3, 50)) + content[at:]
        case _:
            return content[:at] + random_.choice((b"\0", b"\xff", b"\xff" * 10, b"\x80", b"\r\n")) + content[at:]
