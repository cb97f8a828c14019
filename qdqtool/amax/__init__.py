# SPDX-License-Identifier: Apache-2.0
"""Histogram to amax: pure functions, and the C kernel that counts, with a NumPy twin of the same bits."""
