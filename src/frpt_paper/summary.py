"""From rows per epoch to the paper's metrics per run, and to its paired tables (Supplement B.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from frpt import stats
from frpt.errors import OptionError
from frpt_paper.jobs import ARMS, BACKPROP, FRPT

if TYPE_CHECKING:
    import pandas as pd

RUN = ["dataset", "model", "checkpoint", "l_r", "arm", "preset", "embed", "c_rec", "seed"]
GROUP = ["dataset", "model", "checkpoint", "l_r"]
EPOCHS = (1, 5, 10)


def metrics(
    frame: pd.DataFrame, value: str = "metric", scale: float = 100.0, epochs: Iterable[int] = EPOCHS
) -> pd.DataFrame:
    """Per run: best and mean of ``value`` over its epochs, and after some epochs, in percentage points.

    frame: ``Results.frame()``, with a column epoch that counts from 1. A row per run.
    """
    runs = frame.assign(value=frame[value] * scale).groupby(RUN)
    found = runs["value"].agg(best="max", mean="mean")
    for epoch in epochs:
        at = frame[frame["epoch"] == epoch].set_index(RUN)[value] * scale
        if len(at):
            found[f"epoch {epoch}"] = at
    return found.reset_index()


def paired_table(
    runs: pd.DataFrame, *, arm: str = FRPT, preset: str = "default", embed: str = "nearest", names: Iterable[str] = ()
) -> pd.DataFrame:
    """The best strength of an arm against back-propagation, layer by layer and metric by metric, as in Supplement B.3.

    runs: from ``metrics``. names: which of its metrics; all by default. p_holm and p_bh are p_t adjusted over the whole
    table. Only seeds that every strength of a layer has are compared; layers with fewer than two are left out.
    """
    import pandas as pd

    if arm not in ARMS:
        raise OptionError(f"unknown arm {arm!r}: there are {', '.join(ARMS)}")
    measured = list(names) or [c for c in runs.columns if c not in RUN]
    own = runs["arm"] == arm
    if arm == FRPT:
        own &= (runs["preset"] == preset) & (runs["embed"] == embed)
    kept = runs[own | (runs["arm"] == BACKPROP)]
    rows = []
    for group, part in kept.groupby(GROUP, sort=False):
        for name in measured:
            by_seed = part.pivot(index="seed", columns="c_rec", values=name).dropna()
            if len(by_seed) < 2 or 0.0 not in by_seed or by_seed.shape[1] < 2:
                continue
            found = stats.best_against_reference({float(c): by_seed[c].to_numpy() for c in by_seed})
            p = found.paired
            rows.append(
                dict(zip(GROUP, group, strict=True))
                | {"metric": name, "c_rec_star": found.setting, "reference": found.reference, "n": p.n}
                | {"delta_pp": p.delta, "ci_low": p.ci[0], "ci_high": p.ci[1], "t": p.t, "p_t": p.p_t}
                | {"W": p.w, "p_W": p.p_w, "d_z": p.d_z}
            )
    table = pd.DataFrame(rows)
    if rows:
        table["p_holm"] = stats.holm(table["p_t"].to_numpy())
        table["p_bh"] = stats.benjamini_hochberg(table["p_t"].to_numpy())
    return table
