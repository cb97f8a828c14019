# SPDX-License-Identifier: Apache-2.0
from fuzz_report import Report
def save_faults(families, place, limits, only, keep):
    return Report(keep)
