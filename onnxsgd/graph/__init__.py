"""Graphs: load, convert, rewrite, choose what to train."""
