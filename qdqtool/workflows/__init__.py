# SPDX-License-Identifier: Apache-2.0
"""Public functions that run verbs: `deploy`, `improve`, recipes, `report`. Nothing is imported here, as in verbs/."""
