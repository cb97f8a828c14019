# SPDX-License-Identifier: Apache-2.0
"""The public verbs, each from one noun to another; a verb is imported from its own file, or from `qdqtool`.

Nothing is imported here: a command pays for its own verb alone.
"""
