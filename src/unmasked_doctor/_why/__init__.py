"""Why a promise is broken: what is asked once calls have shown that it is, and never before.

- `trace` runs calls that differ in one thing side by side, operator by operator, and tells the line of each.
- `reasons` gives what calls found a cause: of what is random or kept, of items that mix, of later tokens that are seen.
- `masked` compares what a mask should hide with the weights that were heard, `pieces` a piece with the whole.
"""
