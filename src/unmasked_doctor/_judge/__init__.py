"""Whether the steps of attention are right: `inside` asks the other modules in their order.

- `steps` has a table of rows for each step from the scores to the weights.
- `made` finds the rows of parameters that make queries, keys and values; `names` reads the parameters' names.
- `rows` judges these rows, their order and the scale, `turns` how positions turn queries and keys.
- `equal` compares the target's outputs with an independent attention.
"""
