"""Questions that need only calls of a target: each gives findings, open checks and passed ones.

- `questions` asks which tokens an output depends on, and looks for the cause.
- `numbers` asks about large inputs, training and half precision, `used` whether each parameter counts.
- `promises` gives a finding the two inputs that show it.
- `kept` asks what is kept from call to call, and `structure` what only modules have.
"""
