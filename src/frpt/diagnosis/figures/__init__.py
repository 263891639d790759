"""The figures of a diagnosis."""
