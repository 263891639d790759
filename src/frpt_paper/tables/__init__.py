"""From the table of runs to the paper's statistics, its tables and figures, and the paper's own numbers beside them."""
