"""Gradient rules, one module for each family of operators, and their table."""
