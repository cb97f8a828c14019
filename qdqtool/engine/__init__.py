# SPDX-License-Identifier: Apache-2.0
"""Layers of built engines, by log or export, beside the predicted ones; what layers cost; two engines. No pairs."""
