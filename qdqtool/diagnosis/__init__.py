# SPDX-License-Identifier: Apache-2.0
"""Why a Q/DQ model loses accuracy: causes with evidence, measured on the model and data at hand.

`diagnose` is the one judgment that `lint --data`, `report` and `improve` speak from. A cause is suspected by what its
tensors hold (`suspects.py`), and kept where one change of the model (`one_change.py`) wins back part of the loss.
"""
