# SPDX-License-Identifier: Apache-2.0
"""Decides which weights are edited so that a model quantizes better, from data. `passes/condition` carries it out."""
