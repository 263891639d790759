"""Linear maps and their anchored solves, a = â + A⁺ r: ``gate.anchored`` is the way in."""
