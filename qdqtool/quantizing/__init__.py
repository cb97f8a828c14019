# SPDX-License-Identifier: Apache-2.0
"""The stages of `insert` that every verb shares which places, moves or tries pairs: prepare, plan, place, fit.

`plan`, `insert --dry-run`      prepare, plan, `settle`
`graft`                         prepare, plan, `settle` with the scales of the cache, place; then types
cost notes, `--build`           plan, place and fit on a copy, once for each choice of options
`condition`                     plan; place on an edited copy (`conditioning/condition_context.py`)
`sensitivity`, `--keep-float`   plan; `settle` for each set of operators in float, run in stages on one graph
`lint`, `report`                plan, `settle`: what `insert` would do, beside what the file has
`peel`                          fit and place backwards (`undo_rewrites`, `peel_pairs`); plan, for the cache of a DLA

No data are run here.
"""
