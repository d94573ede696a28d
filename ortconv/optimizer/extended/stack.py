"""Slices of a tensor that are stacked again are the tensor."""

from __future__ import annotations

from ortconv.ir.graph import Ints, Node, Value
from ortconv.ir.schema import attribute
from ortconv.ir.types import Dim
from ortconv.optimizer.conditions import axes_of, ints, with_shape
from ortconv.optimizer.engine import New, Replacement, RulePass, rule
from ortconv.optimizer.extended.slices import Part, slice_of
from ortconv.optimizer.pattern import Match, P
