"""The compiled training step, for one batch, for an epoch, and for a GPU."""
