"""Recurrent networks: unrolled steps become one node again, and the products of all steps one product."""

from __future__ import annotations

from ortconv.optimizer.extended.recurrent import lstm, slices, step_products

PASSES = (*lstm.PASSES, *slices.PASSES, *step_products.PASSES)
