"""Diagnosis: deviation, trust, response maps, the report."""
