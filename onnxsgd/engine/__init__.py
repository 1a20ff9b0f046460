"""Engines: what runs a graph forward, backward, and a whole training step."""
