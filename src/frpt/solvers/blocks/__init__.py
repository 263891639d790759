"""Solvers for any differentiable block."""
