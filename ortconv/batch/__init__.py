"""Many models at once: independent pieces of work, workers that may die, and a journal."""

from ortconv.batch.conversions import Conversions, convert_all
from ortconv.batch.engine import Failure

__all__ = ["Conversions", "Failure", "convert_all"]
