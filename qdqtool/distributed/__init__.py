# SPDX-License-Identifier: Apache-2.0
"""A calibration in shards, on one machine or on a Dask cluster. What is counted is `observers/`."""
