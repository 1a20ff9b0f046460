"""Engines: predictions, training steps, and forward and backward passes, run by the runtime."""
