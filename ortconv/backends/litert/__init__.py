"""The backend "litert": partitions of a model as .tflite models, run by Google's LiteRT.

`export` makes the files, `runtime` is the only importer of ai_edge_litert, `backend` claims, compiles and runs.
"""
