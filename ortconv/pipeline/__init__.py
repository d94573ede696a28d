"""The whole conversion, from model files to files in ORT format."""

from ortconv.pipeline.config import config_name, ort_name, required_by
from ortconv.pipeline.conversion import convert
from ortconv.pipeline.options import Options
from ortconv.pipeline.result import Result
from ortconv.pipeline.settings import Settings
from ortconv.pipeline.stages import Observer, Offload, Optimized, optimize, optimize_traced

__all__ = [
    "Observer", "Offload", "Optimized", "Options", "Result", "Settings", "config_name",
    "convert", "optimize", "optimize_traced", "ort_name", "required_by",
]  # fmt: skip
