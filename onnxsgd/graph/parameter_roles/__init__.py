"""Roles of initializers: weights, intercepts, constants."""
