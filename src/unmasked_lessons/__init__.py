"""The lessons of Attention Unmasked: a module or a package for each task of its pages.

`exercises` judges readers' answers, `experiments` computes and measures, `figures` draws, `teaching` has the small
models that pages train, `embeddings` and its data are the word vectors, and `measure` says what attention costs on a
device.
"""

__all__: list[str] = []
