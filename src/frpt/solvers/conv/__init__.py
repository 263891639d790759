"""Convolutions as linear maps, and the ways to solve them: ``choose`` says which."""
