"""Data for demos and experiments."""
