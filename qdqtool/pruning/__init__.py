# SPDX-License-Identifier: Apache-2.0
"""Structured pruning: which channels go together, which of them go, and the edit. Nothing goes out unchecked."""
