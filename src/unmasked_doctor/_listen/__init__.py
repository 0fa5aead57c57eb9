"""What a forward pass computes: the listener, calls of attention in one layout, and runs with other numbers.

- `hear` records every product and softmax of a forward pass, and the product that each number came from.
- `calls` brings the events of one call of attention into one layout.
- `view` runs a target again, with other inputs or with other numbers in the place of some.
- `wires` follows each head of a call to the layers beside it.
"""
