"""Conformance records, and a device held against them."""
