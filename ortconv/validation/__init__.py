"""Proves a conversion: the result loads where it is used, and computes the same as the source."""
