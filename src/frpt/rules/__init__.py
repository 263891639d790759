"""One file per op family; importing this package fills the registry."""

from frpt.rules import activation, arithmetic, conv, linear, norm, pool, shape, softmax
from frpt.rules.registry import RULES, Call, Rule, Site, reverses, rule_for

__all__ = [
    "RULES",
    "Call",
    "Rule",
    "Site",
    "activation",
    "arithmetic",
    "conv",
    "linear",
    "norm",
    "pool",
    "reverses",
    "rule_for",
    "shape",
    "softmax",
]
