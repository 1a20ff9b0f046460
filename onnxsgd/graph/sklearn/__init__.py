"""Conversion of scikit-learn estimators, and repair of the result."""
