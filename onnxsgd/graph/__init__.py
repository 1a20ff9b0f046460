"""Graphs: node access, rewriting, names, sizes."""
