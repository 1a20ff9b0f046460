"""Learners: from the `model` parameter to a trainable graph."""
