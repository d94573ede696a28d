"""LiteRT's .tflite files: NNAPI models translated operator by operator, and the bytes of the files.

`layout` describes the format, `model` is the content of a file, `writer` serializes it. `translate` converts an NNAPI model by the
rows of `table`. There is one module for each family of operations.
"""
