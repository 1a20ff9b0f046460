"""Reading of graphs: raw prediction, linear parts, trained weights, frozen parts."""
