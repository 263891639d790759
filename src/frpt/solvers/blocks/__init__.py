"""Solvers for any differentiable block, Φ(a) = t with a near â: ``composite`` chooses among them."""
