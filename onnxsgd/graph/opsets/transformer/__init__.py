"""Operators of transformers that exporters and optimizers write, in standard operators."""
