# SPDX-License-Identifier: Apache-2.0
"""Which channel goes where: sizes of axes, parts of tensors, arrays moved as operators move values, and atoms."""
