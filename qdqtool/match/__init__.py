# SPDX-License-Identifier: Apache-2.0
"""Rules and a graph to a Plan: groups, points, refusals. Edits nothing."""
