"""The objective: losses and penalties attached to a graph."""
