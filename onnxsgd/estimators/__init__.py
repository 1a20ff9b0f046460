"""The estimators: parameters, scikit-learn's contract, fitted state, displays, saving."""
