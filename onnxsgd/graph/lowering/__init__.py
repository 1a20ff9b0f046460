"""Lowering: the same function in simpler operators."""
