"""Data: validation and conversion of user input to arrays."""
