"""Preprocessing of data as the first nodes of a graph."""
