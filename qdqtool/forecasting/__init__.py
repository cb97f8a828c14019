# SPDX-License-Identifier: Apache-2.0
"""The time of an engine, forecast from its predicted layers and the device's published figures. Nothing is measured."""
