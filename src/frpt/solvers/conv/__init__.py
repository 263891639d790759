"""Convolutions as linear maps, and the ways to solve them."""
