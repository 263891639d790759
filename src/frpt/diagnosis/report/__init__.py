"""A diagnosis as one self-contained HTML page."""

from frpt.diagnosis.report.page import to_html

__all__ = ["to_html"]
