"""Making the runs: pretraining, jobs and their grid, the table they are kept in, processes that work them off."""
