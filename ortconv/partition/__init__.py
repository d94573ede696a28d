"""Partitioning: finds the nodes that an execution provider supports, and the reasons against the others."""

from ortconv.partition.partitioner import Partition, Partitioning, Verdict, assign, partition
from ortconv.partition.policy import Objection, Target

__all__ = ["Objection", "Partition", "Partitioning", "Target", "Verdict", "assign", "partition"]
