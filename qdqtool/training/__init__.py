# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning a Q/DQ graph: its training form, gradients, losses, the loop. Not the verb, and no framework."""
