# SPDX-License-Identifier: Apache-2.0
"""Edits of a graph: insert, peel, fold, rename, rewrite; weights in `condition/`. What is edited was decided before."""
