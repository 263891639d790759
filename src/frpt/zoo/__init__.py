"""The paper's networks, layer by layer; ``model.layers`` maps the paper's l_R to names that ``at`` takes.

Called by the demo, the examples, the benchmarks and the paper's experiments.
"""

from frpt.zoo.planner import Planner, PlannerOptions, planner
from frpt.zoo.resnet import ResNet, resnet
from frpt.zoo.simple_cnn import SimpleCNN, simple_cnn
from frpt.zoo.simple_vit import SimpleViT, simple_vit

__all__ = [
    "Planner",
    "PlannerOptions",
    "ResNet",
    "SimpleCNN",
    "SimpleViT",
    "planner",
    "resnet",
    "simple_cnn",
    "simple_vit",
]
