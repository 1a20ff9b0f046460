"""Training: the loop over epochs, stopping, the compiled program of a fit."""
