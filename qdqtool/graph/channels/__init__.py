# SPDX-License-Identifier: Apache-2.0
"""Which channel goes where: sizes of axes, parts of tensors, arrays moved as operators move values, and atoms.

An atom is a channel: (tensor, axis, index). Each tensor has an array of atoms that is broadcastable to it. A rule says
what an operator does to that array (`couplings.py`). Atoms that an operator makes one channel (an Add, a depthwise
convolution) are joined by union-find; what is not understood is pinned. `factors.py` asks another question of the same
atoms: which channels must be divided by one factor. There a depthwise convolution separates its sides, and a Sigmoid
pins its input.
"""
