"""Learners: from the `model` parameter to a graph that can learn."""
