"""Transformer operators of exporters and graph optimizers, in standard operators."""
