"""The room that knows graph, rules and solvers together."""
