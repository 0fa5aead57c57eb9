"""What the pages of Attention Unmasked compute, draw and ask, beside the library: a module or a package for each.

`exercises` judges readers' answers, `figures` draws, `teaching` has the small models that pages train, `embeddings` and
its data are the word vectors, and `measure` says what attention costs on a device.
"""

__all__: list[str] = []
