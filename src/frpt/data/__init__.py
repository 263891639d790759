"""Data for demos and experiments: the paper's data sets by name, and digits that come with a package.

Called by users, the demo and the paper's experiments; nothing else in the library needs it.
"""

from frpt.data.digits import digits
from frpt.data.images import Images
from frpt.data.load import load
from frpt.data.sets import SETS, Info

__all__ = ["SETS", "Images", "Info", "digits", "load"]
