"""Linear maps and their anchored solves."""
