"""The backend "litert": partitions of a model as .tflite models, run by Google's LiteRT.

`runtime` is the only importer of ai_edge_litert; `backend` claims, makes the files, compiles and runs.
"""
