# SPDX-License-Identifier: Apache-2.0
"""Which tensors are observed, how, and in how many passes over the data; checkpoint files. Chooses no method."""
