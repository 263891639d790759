"""From a model to a captured graph, its cut points and the reverse plan: knows fx nodes, no rules and no solvers."""
