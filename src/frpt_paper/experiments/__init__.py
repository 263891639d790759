"""One function per table or figure of the paper; ``frpt_paper.catalogue`` lists them by name."""
