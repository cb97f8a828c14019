# SPDX-License-Identifier: Apache-2.0
"""Recipes: steps of verbs in one file, each done once, kept by what it was made from, taken up again after a kill."""
