"""The backend "nnapi": lowers partitions of a model to NNAPI models in the same way as ONNX Runtime's execution provider.

`lower` turns a region into a model with tables of lowerings, one module per family of operators; `backend` compiles and runs it.
"""
