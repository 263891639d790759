"""Synthetic scenes to train planners on: roads, traffic, a driver, a camera, the data set."""
