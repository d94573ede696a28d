"""The backend "nnapi": partitions of a model lowered to NNAPI models, as ONNX Runtime's execution provider lowers them.

`lower` turns a region into a model by the tables of lowerings, one module for each family of operators; `backend` compiles
and runs it.
"""
