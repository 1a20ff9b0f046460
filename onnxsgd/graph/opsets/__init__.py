"""Conversion between opsets, and of non-standard operators."""
