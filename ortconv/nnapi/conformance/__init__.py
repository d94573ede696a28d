"""Conformance records, and the check of a device against them."""
