"""LiteRT's .tflite files: NNAPI models translated operator by operator, and the bytes that hold them.

`layout` describes the format, `model` is what a file holds, `writer` emits it. `translate` makes it of an NNAPI model by the rows
of `table`; there is one module for each family of operations.
"""
