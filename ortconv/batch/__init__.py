"""Many models at once: independent pieces of work, workers that may die, and a journal."""

from ortconv.batch.conversions import Conversions, Failure, convert_all

__all__ = ["Conversions", "Failure", "convert_all"]
