# SPDX-License-Identifier: Apache-2.0
"""Latency of models: timed runs side by side, and the statistics of them."""
