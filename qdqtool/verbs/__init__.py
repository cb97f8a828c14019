# SPDX-License-Identifier: Apache-2.0
"""The public verbs, each from one noun to another. What they share is in `opening.py`."""

from qdqtool.verbs.graft import GraftOptions, GraftResult, graft
from qdqtool.verbs.insert import InsertOptions, InsertResult, insert, plan
from qdqtool.verbs.opening import load_table, stored_table
from qdqtool.verbs.peel import PeelOptions, PeelResult, peel
from qdqtool.verbs.ptq import PtqOptions, PtqResult, ptq

__all__ = [
    "GraftOptions",
    "GraftResult",
    "InsertOptions",
    "InsertResult",
    "PeelOptions",
    "PeelResult",
    "PtqOptions",
    "PtqResult",
    "graft",
    "insert",
    "load_table",
    "peel",
    "plan",
    "ptq",
    "stored_table",
]
