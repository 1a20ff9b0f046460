"""Conversion between opsets, and of operators outside the standard."""
