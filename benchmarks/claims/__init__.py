"""The claims of the table of alternatives: one module for each library, with a function for each claim.

A module lacks the functions of claims for which its library has nothing to call. A function raises an
exception if the claim does not hold; it may return a text for the table. :mod:`alternatives` runs each in a
process.
"""
