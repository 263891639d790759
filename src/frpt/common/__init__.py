"""Small things every room uses: the batch axis, text tables, clocks. No nodes, no paths."""
