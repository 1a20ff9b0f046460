"""Data: from what users hand over to checked arrays."""
