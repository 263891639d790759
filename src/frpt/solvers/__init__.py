"""Solvers: they know an operator or a function and a right-hand side, not what layer it came from.

Each is a frozen dataclass whose fields are its numbers; ``frpt.options.Preset`` puts them together.
"""
