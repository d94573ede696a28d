"""Partitioning: finds the nodes that an execution provider supports, and the reasons against the others."""

from ortconv.partition.objections import Objection
from ortconv.partition.partitioner import Partition, Partitioning, Verdict, assign, partition
from ortconv.partition.policy import Target

__all__ = ["Objection", "Partition", "Partitioning", "Target", "Verdict", "assign", "partition"]
