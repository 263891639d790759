"""The paper's Tables 8 and 9, the planners' scores on NAVSIM, and what to know when reading them.

`frpt navsim compare` sets them beside the user's own; the driving experiment does so too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frpt.errors import OptionError
from frpt_paper.tables.published import numbers

if TYPE_CHECKING:
    import pandas as pd

NAVSIM = "navsim.csv"
NAMES = {"resnet34": "ResNet-34", "vit_b16": "ViT-B/16"}
REMARK = (
    "The paper's rows are single runs: a mean over its 12,146 scenes is good to about 0.26 unpaired, and its gaps are "
    "0.1 to 0.9. In the ResNet-34 table rows with c_rec = 0.02 have round entries (97.00, 91.00, 76.50, PDMS 82.00); "
    "that PDMS is 0.44 above a linear fit to the sub-scores of all other rows (standard deviation 0.04)."
)
"""The last numbers: tests/navsim/test_score_tables.py."""


def navsim_rows(backbone: str, at: str | None = None) -> pd.DataFrame:
    """The paper's rows of a backbone: the baseline's, and those of all layers or of one."""
    if backbone not in NAMES:
        raise OptionError(f"unknown backbone {backbone!r}: there are {', '.join(NAMES)}")
    rows = numbers(NAVSIM)
    rows = rows[rows["backbone"] == NAMES[backbone]]
    if at is not None:
        known = [name for name in dict.fromkeys(rows["l_R"]) if name != "baseline"]
        if at not in known:
            raise OptionError(f"the paper's table of {NAMES[backbone]} has no layer {at!r}: it has {', '.join(known)}")
        rows = rows[rows["l_R"].isin(["baseline", at])]
    return rows.reset_index(drop=True)
