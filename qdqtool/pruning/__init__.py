# SPDX-License-Identifier: Apache-2.0
"""Structured pruning: which channels go together, which of them go, and the edit. Nothing goes out unchecked.

`channel_groups.py` joins classes of channels until what goes leaves every tensor a rectangle, except inside the channel
shuffles that `shuffles.py` makes a Gather. `weight_axes.py` says which axis of a constant follows which axis of a
tensor, and `Cut` what is left of each. The edit is made on a copy and compared with the masked original, which shares
no code with it. `reconstruction.py` fits weights to what is left (rows: `sum_rows.py`, solver: `least_squares.py`).
"""
