# SPDX-License-Identifier: Apache-2.0
"""What `deploy` and `improve` decide: what a board can run, what is tried, what is kept. Nothing is run here."""
