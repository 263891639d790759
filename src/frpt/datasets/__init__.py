"""Reading map-style data sets."""
