# SPDX-License-Identifier: Apache-2.0
"""Reconstruction block by block: each one is trained to give what its float twin gives."""
