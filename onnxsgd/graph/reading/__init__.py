"""Reading of graphs: raw score, linear parts, trained weights, frozen parts."""
