"""The layout of tables against what was written by hand; comparison with other numbers; the paper's own files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from frpt import stats
from frpt.errors import OptionError
from frpt_paper.experiments.adaptation import means
from frpt_paper.runs.jobs import ANCHOR, BACKPROP, FRPT
from frpt_paper.tables import published
from frpt_paper.tables.classification_tables import arms_table, main_table, nested_table, p_text, paired
from frpt_paper.tables.printed import Cell, PrintedTable, interval
from frpt_paper.tables.statistics import START, arm_of, gains, layer_order

NOISE = {0.0: (0.0, 0.1, -0.1), 0.1: (0.02, 0.1, -0.08), 0.3: (0.0, 0.15, -0.1)}


def runs(dataset: str = "cifar10") -> pd.DataFrame:
    """Three seeds: at out, c_rec helps by 0.5 and 0.7; at 1, it costs 0.2 and 0.3; anchor-only does half as much."""
    rows = []
    gain = {"out": {0.0: 0.0, 0.1: 0.5, 0.3: 0.7}, "1": {0.0: 0.0, 0.1: -0.2, 0.3: -0.3}}
    for layer in ("1", "out"):
        for arm, preset, share in ((BACKPROP, "", 0.0), (ANCHOR, "", 0.5), (FRPT, "paper", 1.0)):
            for c in (0.0,) if arm == BACKPROP else (0.1, 0.3):
                for seed in range(3):
                    value = 66.0 + share * gain[layer][c] + NOISE[c][seed]
                    row = {"dataset": dataset, "model": "simple_cnn", "checkpoint": "start", "lr": 1e-4, "l_r": layer}
                    row |= {"arm": arm, "start": 66.25}
                    row |= {"preset": preset, "embed": "nearest" if arm == FRPT else "", "c_rec": c, "seed": seed}
                    rows.append(row | {"best": value + 1, "mean": value, "epoch 1": value, "epoch 5": value - 1})
    return pd.DataFrame(rows)


MARKDOWN = r"""### CIFAR-10

| Model     | l_R | c_rec | Start | Epoch 5 Acc        | Mean Acc           | Best Acc           |
|-----------|-----|-------|-------|--------------------|--------------------|--------------------|
| SimpleCNN | out | 0     | 66.25 | 65.00 ± 0.10       | 66.00 ± 0.10       | 67.00 ± 0.10       |
|           |     | 0.1   | 66.25 | 65.51 ± 0.09       | 66.51 ± 0.09       | 67.51 ± 0.09       |
|           |     | 0.3   | 66.25 | **65.72 ± 0.13**\* | **66.72 ± 0.13**\* | **67.72 ± 0.13**\* |
|           | 1   | 0     | 66.25 | **65.00 ± 0.10**\* | **66.00 ± 0.10**\* | **67.00 ± 0.10**\* |
|           |     | 0.1   | 66.25 | 64.81 ± 0.09       | 65.81 ± 0.09       | 66.81 ± 0.09       |
|           |     | 0.3   | 66.25 | 64.72 ± 0.13       | 65.72 ± 0.13       | 66.72 ± 0.13       |
"""

LATEX = r"""    \toprule
    Model & $l_R$ & $c_{\mathrm{rec}}$ & Start & Epoch 5 Acc & Mean Acc & Best Acc \\
    \midrule
    \multirow{6}{*}{SimpleCNN} & \multirow{3}{*}{out} & 0 & 66.25 & 65.00 ± 0.10 & 66.00 ± 0.10 & 67.00 ± 0.10 \\
     &  & 0.1 & 66.25 & 65.51 ± 0.09 & 66.51 ± 0.09 & 67.51 ± 0.09 \\
     &  & 0.3 & 66.25 & \textbf{65.72 ± 0.13}$^{*}$ & \textbf{66.72 ± 0.13}$^{*}$ & \textbf{67.72 ± 0.13}$^{*}$ \\
    \cline{2-7}
     & \multirow{3}{*}{1} & 0 & 66.25 & \textbf{65.00 ± 0.10}$^{*}$ & """.replace("±", r"$\pm$")


def test_the_main_table(tmp_path: Path) -> None:
    table = main_table(arm_of(runs(), FRPT, "paper"), "table", "CIFAR-10")
    assert table.markdown().startswith(MARKDOWN)
    assert LATEX in table.latex()
    assert table.latex().count(r"\bottomrule") == 1
    table.save(tmp_path)
    kept = pd.read_csv(tmp_path / "table.csv")
    assert set(published.numbers().columns) <= set(kept.columns)  # what was kept can be compared with
    row = kept[(kept["l_R"] == "out") & (kept["c_rec"] == 0.3) & (kept["metric"] == "epoch5")].iloc[0]
    assert (row["dataset"], row["model"], row["best_in_group"], row["significant"]) == ("CIFAR-10", "SimpleCNN", 1, 1)


def test_the_supplements_table() -> None:
    table = paired(runs(), "paired", "start", FRPT, "paper")
    head = ["l_R", "Metric", "c_rec*", "Reference", "n", "Δ", "95% CI", "t(df)", "p_t", "W", "p_W", "d_z"]
    assert table.head[:12] == head
    first = next(r for r in table.rows if r[:2] == ["out", "mean"])
    found = stats.paired([66.7, 66.85, 66.6], [66.0, 66.1, 65.9])
    expected = ["out", "mean", "0.3", "c_rec=0", "3", "0.72", f"[{found.ci[0]:.2f}, {found.ci[1]:.2f}]"]
    expected += [f"{found.t:.2f}(2)", p_text(found.p_t), f"{found.w:.2f}", p_text(found.p_w), f"{found.d_z:.2f}"]
    assert first[:12] == expected
    assert next(r for r in table.rows if r[:2] == ["1", "mean"])[3] == "second-best c_rec=0.1"
    assert [r[0] for r in table.rows] == ["out"] * 4 + ["1"] * 4
    assert (p_text(5e-5), p_text(0.01234)) == ("<1e-4", "0.0123")


def test_the_arms_side_by_side() -> None:
    data = gains(runs())
    at = data[(data["l_r"] == "out") & (data["c_rec"] == 0.3) & (data["arm"] == FRPT)].set_index("against")["delta"]
    assert at.to_dict() == pytest.approx({BACKPROP: 0.7 + 0.05 / 3, ANCHOR: 0.35, START: 0.45 + 0.05 / 3})
    alone = data[(data["l_r"] == "out") & (data["arm"] == BACKPROP)]  # has no other to be compared with
    assert alone["against"].tolist() == [START]
    assert alone["delta"].tolist() == pytest.approx([-0.25])
    rows = arms_table(runs(), "arms", "arms").rows
    assert [r[1:5] for r in rows[:3]] == [
        ["out", "0", BACKPROP, "66.25"],
        ["out", "0.1", ANCHOR, "66.25"],
        ["out", "0.1", "FR-PT, paper", "66.25"],
    ]
    assert {r[6] for r in rows if r[3] == ANCHOR} == {"–"}
    assert sorted(["2", "out", "10", "1"], key=layer_order) == ["out", "10", "2", "1"]


def test_embeddings_are_named_where_there_are_several() -> None:
    own = runs()
    other = own[own["arm"] == FRPT].assign(embed="one_hot")
    labels = {str(row[3]) for row in arms_table(pd.concat([own, other]), "arms", "arms").rows}
    assert labels == {BACKPROP, ANCHOR, "FR-PT, paper, nearest", "FR-PT, paper, one_hot"}
    assert {str(row[3]) for row in arms_table(own, "arms", "arms").rows} == {BACKPROP, ANCHOR, "FR-PT, paper"}


def test_rates_have_a_column_where_there_are_several() -> None:
    own = pd.concat([runs(), runs().assign(lr=3e-4, mean=runs()["mean"] - 1)])
    main, arms = main_table(arm_of(own, FRPT, "paper"), "t", "t"), arms_table(own, "arms", "arms")
    for table in (main, arms):
        assert list(table.head[:3]) == ["Model", "rate", "l_R"]
        assert list(dict.fromkeys(str(row[1]) for row in table.rows)) == ["0.0001", "0.0003"]
    nested = nested_table(own, "n", "n", [(FRPT, "paper")])
    assert [row[:3] for row in nested.rows] == [["SimpleCNN", r, x] for r in ("0.0001", "0.0003") for x in ("out", "1")]
    fewer = own[(own["lr"] == 1e-4) | (own["c_rec"] != 0.1)]  # a single strength at the other rate
    assert {row[1] for row in nested_table(fewer, "n", "n", [(FRPT, "paper")]).rows} == {"0.0001"}
    assert [row[0] for row in paired(own, "p", "p", FRPT, "paper").rows] == ["0.0001"] * 8 + ["0.0003"] * 8
    by_rate = gains(own).query("arm == @BACKPROP and l_r == 'out'").set_index("lr")["delta"]
    assert by_rate.to_dict() == pytest.approx({1e-4: -0.25, 3e-4: -1.25})


def test_the_nested_choice() -> None:
    table = nested_table(runs(), "nested", "nested", [(FRPT, "paper"), (ANCHOR, "")])
    values = {c: [66.0 + {0.0: 0, 0.1: 0.5, 0.3: 0.7}[c] + e for e in NOISE[c]] for c in NOISE}
    found = stats.nested(values)
    row = table.data[(table.data["l_r"] == "out") & (table.data["arm"] == FRPT)].iloc[0]
    assert (row["delta"], row["p_t"], row["chosen"]) == (
        pytest.approx(found.paired.delta),
        found.paired.p_t,
        "0.3 0.3 0.3",
    )
    assert [r[1:3] for r in table.rows] == [
        ["out", "FR-PT, paper"],
        ["out", ANCHOR],
        ["1", "FR-PT, paper"],
        ["1", ANCHOR],
    ]
    assert nested_table(runs().query("seed < 2"), "n", "n", [(ANCHOR, "")]).rows == []


def test_comparison_with_means(tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    lines = ["dataset,model,l_R,c_rec,metric,mean,std"]
    lines += [f"CIFAR-10,SimpleCNN,out,{c},mean,{m},0.05" for c, m in ((0, 65.0), (0.1, 65.4), (0.3, 65.0))]
    lines += [f"CIFAR-10,SimpleCNN,1,{c},mean,{m},0.05" for c, m in ((0, 65.0), (0.1, 65.1), (0.3, 64.7))]
    file.write_text("\n".join(lines) + "\n")
    table = published.beside(runs(), published.read(file), "compare", arm=FRPT, preset="paper", label="other")
    data = table.data.set_index(["l_R", "c_rec"])
    assert data["difference"].to_dict() == pytest.approx(
        {("out", 0.1): 0.1 + 0.04 / 3, ("out", 0.3): 0.7 + 0.05 / 3, ("1", 0.1): -0.3 + 0.04 / 3, ("1", 0.3): 0.05 / 3}
    )
    assert data["same_sign"].to_dict() == {("out", 0.1): True, ("out", 0.3): False, ("1", 0.1): False, ("1", 0.3): True}
    assert data["overlap"].to_dict() == {("out", 0.1): False, ("out", 0.3): False, ("1", 0.1): False, ("1", 0.3): True}
    assert "2 of 4 gains have the same sign, 1 intervals overlap" in table.note
    assert table.rows[0][:6] == ["SimpleCNN", "out", "0.1", "mean", "66.51", "65.40"]


def test_comparison_with_paired_tests() -> None:
    theirs = published.numbers(published.PAIRED)
    table = published.beside(runs(), theirs, "compare", arm=FRPT, preset="paper")
    data = table.data.set_index(["l_R", "metric"])
    assert data.loc[("out", "mean"), "their_gain"] == 0.74
    assert data.loc[("out", "mean"), "overlap"]
    assert data.loc[("1", "mean"), "gain"] == pytest.approx(-0.2 + 0.04 / 3)  # c_rec = 0 is the best: a loss
    assert not data.loc[("1", "mean"), "same_sign"]
    assert len(published.beside(runs("cifar100").query("c_rec != 0.1"), theirs, "c", arm=ANCHOR).data)
    nothing = published.beside(
        runs("imagewoof").query("l_r == 'out'").assign(l_r="9"), theirs, "c", arm=FRPT, preset="paper"
    )
    assert "no row" in nothing.note


def test_what_cannot_be_compared_with(tmp_path: Path) -> None:
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(OptionError, match="c_rec_star"):
        published.read(file)


def test_the_papers_grid() -> None:
    assert published.papers_grid("mnist", "simple_cnn") == {
        "out": (0, 0.1, 0.3),
        "2": (0, 0.1, 0.3),
        "1": (0, 0.1, 0.3),
    }
    assert list(published.papers_grid("cifar10", "simple_cnn")) == ["out", "4", "3", "2", "1"]
    assert published.papers_grid("cifar10", "simple_vit") == {}
    assert published.papers_models("tiny-imagenet") == ("simple_cnn", "resnet34", "simple_vit")
    assert len(published.numbers(published.PAIRED)) == 425


def test_texts_for_latex() -> None:
    table = PrintedTable("t", "50 % of a_b → c", ["l_R", "x"], [[Cell("a&b", bold=True), "−1 < 2"]], pd.DataFrame())
    assert r"50 \% of a\_b $\rightarrow$ c" in table.latex()
    assert r"\textbf{a\&b} & $-$1 $<$ 2 \\" in table.latex()


def test_means_of_an_adaptation_are_over_kinds_first_then_over_seeds() -> None:
    flips = {"new_fixed": 4, "new_broken": 2, "old_fixed": 1, "old_broken": 3}
    rows = [
        {"l_r": "2", "size": 100, "arm": BACKPROP, "seed": seed, "corruption": kind, "strength": 2, "new_start": 0.4,
         "new": new, "old": 0.6, **flips}
        for seed, kind, new in ((0, "blur", 0.5), (0, "fog", 0.7), (1, "blur", 0.6), (1, "fog", 0.8))
    ]  # fmt: skip
    table = means(pd.DataFrame(rows), "means", "Means")
    assert table.data["new"].tolist() == pytest.approx([0.6, 0.7])
    (row,) = table.rows
    assert row[:4] == ["2", "100", "40.00", BACKPROP]
    assert (row[4].mean, row[4].std) == pytest.approx((65.0, 100 * 0.005**0.5))  # type: ignore[union-attr]
    assert row[6:] == ["4", "2", "1", "3"]


def test_the_papers_gains_beside_its_starts() -> None:
    data = published.against_starts()
    assert len(data) == 85
    out = data[data["l_R"] == "out"].set_index(["dataset", "model"])
    assert len(out) == 13
    row = out.loc[("CIFAR-10", "SimpleCNN")]
    assert (row["start"], row["bp"], row["fr"], row["c_rec"]) == (66.63, 65.68, 66.42, 0.3)
    assert (row["fr_minus_bp"], row["start_minus_bp"]) == pytest.approx((0.74, 0.95))
    assert out["fr_minus_bp"].corr(out["start_minus_bp"]) == pytest.approx(0.93, abs=0.005)
    named = published.numbers(published.STARTS)
    written = named["checkpoint"].str.split("_").str[-1].astype(float) * 100  # the caption ends in the accuracy
    assert written.tolist() == pytest.approx(named["start"].tolist())
    assert set(named["checkpoint"]) == set(published.numbers(published.PAIRED)["checkpoint"])


def test_an_interval_without_width_is_not_printed_as_one() -> None:
    assert interval(0.5, 0.25, 0.75) == "+0.50 [+0.25, +0.75]"
    assert interval(0.5, 0.5, 0.5 + 1e-12) == "+0.50 [no interval]"
