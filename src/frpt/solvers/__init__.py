"""Solvers: they know an operator and a right-hand side, not what layer it came from."""
