"""The paper's networks, layer by layer."""

from frpt.zoo.simple_cnn import SimpleCNN, simple_cnn

__all__ = ["SimpleCNN", "simple_cnn"]
