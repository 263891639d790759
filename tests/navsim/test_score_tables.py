"""Scores compared scene by scene, beside the paper's rows; tables that cannot be compared are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from frpt.cli.main import app
from frpt.errors import InputError, OptionError
from frpt.navsim import METRICS, compare_scores, read_scores
from frpt.stats import paired
from frpt_paper.tables.navsim_tables import REMARK, navsim_rows
from frpt_paper.tables.published import numbers

SCENES = 40


def scores(seed: int, shift: float = 0.0) -> pd.DataFrame:
    """As run_pdm_score of version 1.1 writes them: a row for each scene in any order, and their average."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"token": [f"scene{i}" for i in rng.permutation(SCENES)], "valid": [True] * SCENES})
    common = np.random.default_rng(99).random(SCENES)
    for name in METRICS.values():
        own = np.array([common[int(token[5:])] for token in frame["token"]])
        frame[name] = 0.5 * own + shift + 0.01 * rng.random(SCENES)
    average = frame.drop(columns=["token", "valid"]).mean().to_dict() | {"token": "average", "valid": True}
    return pd.concat([frame, pd.DataFrame([average])], ignore_index=True)


def test_differences_are_paired_by_scene(tmp_path: Path) -> None:
    first, second = scores(0), scores(1, shift=0.05)
    first.to_csv(tmp_path / "bp.csv")
    second.to_csv(tmp_path / "frpt.csv")
    compared = compare_scores([tmp_path / "bp.csv", tmp_path / "frpt.csv"])
    assert (compared.names, compared.scenes, compared.left_out) == (["bp", "frpt"], SCENES, 0)
    a, b = (f[f["token"] != "average"].set_index("token")["score"] * 100 for f in (first, second))
    expected = paired(b.loc[a.index].to_numpy(), a.to_numpy())
    found = compared.differences["frpt"]["PDMS"]
    assert found.delta == pytest.approx(expected.delta)
    assert found.ci == pytest.approx(expected.ci)
    assert found.ci[0] > 4.5
    assert found.ci[1] < 5.5  # paired: scenes differ by 50 points, and runs by 1 within a scene
    assert compared.means["bp"]["PDMS"] == pytest.approx(a.mean())
    assert "frpt − bp" in str(compared)


def test_scenes_that_a_run_failed_on_are_left_out(tmp_path: Path) -> None:
    first, second = scores(0), scores(1)
    second.loc[3, list(METRICS.values())] = np.nan
    second.loc[3, "valid"] = False
    first.loc[5, "valid"] = False
    for name, frame in (("a", first), ("b", second)):
        frame.to_csv(tmp_path / f"{name}.csv")
    compared = compare_scores([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert (compared.scenes, compared.left_out) == (SCENES - 2, 2)
    assert "2 left out" in str(compared)


def test_tables_that_cannot_be_compared(tmp_path: Path) -> None:
    good = scores(0)
    good.to_csv(tmp_path / "good.csv")

    def refused(frame: pd.DataFrame, match: str) -> None:
        frame.to_csv(tmp_path / "bad.csv")
        with pytest.raises(InputError, match=match):
            compare_scores([tmp_path / "good.csv", tmp_path / "bad.csv"])

    refused(good.drop(columns="token"), "no column 'token'")
    refused(good.drop(columns="comfort"), "lacks comfort")
    refused(good.assign(lane_keeping_stage_one=1.0), "EPDMS")
    refused(good.drop(index=[0, 1]), "0 are in the former alone, 2 in the latter alone")
    refused(good[good["token"] == "average"], "no scene's row")
    refused(pd.concat([good, good.iloc[:1]]), "twice")
    refused(good.assign(valid=False), "nothing to compare")
    with pytest.raises(InputError, match="at least two"):
        compare_scores([tmp_path / "good.csv"])
    with pytest.raises(InputError, match="cannot be read"):
        read_scores(tmp_path / "missing.csv")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(InputError, match="cannot be read"):
        read_scores(tmp_path / "empty.csv")


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        scores(0).to_csv(tmp_path / run / "scores.csv")
    compared = compare_scores([tmp_path / run / "scores.csv" for run in ("a", "b")])
    assert compared.names == [str(tmp_path / run / "scores.csv") for run in ("a", "b")]
    times = [tmp_path / run / "2026.01.02.03.04.05" / "2026.01.02.03.04.06.csv" for run in ("a", "b")]
    for file in times:
        file.parent.mkdir()
        scores(0).to_csv(file)
    assert compare_scores(times).names == ["a", "b"]
    assert all(test.delta == 0 for test in compared.differences[compared.names[1]].values())


def test_the_papers_rows() -> None:
    assert len(numbers("navsim.csv")) == 21 + 25
    rows = navsim_rows("vit_b16", "image embedding")
    assert list(rows["l_R"]) == ["baseline"] + ["image embedding"] * 4
    assert rows["PDMS"].max() == 79.38
    with pytest.raises(OptionError, match="planning z_1"):
        navsim_rows("resnet34", "image embedding")
    with pytest.raises(OptionError, match="vit_b16"):
        navsim_rows("resnet50")


def test_the_remark_on_round_rows_is_true() -> None:
    """PDMS fitted to the sub-scores of all rows but ResNet-34's with c_rec = 0.02."""
    rows = numbers("navsim.csv")
    doubted = (rows["backbone"] == "ResNet-34") & (rows["c_rec"] == 0.02)
    known, parts = rows[~doubted], ["NC", "DAC", "EP", "TTC", "Comf"]
    weights, *_ = np.linalg.lstsq(np.c_[np.ones(len(known)), known[parts]], known["PDMS"].to_numpy(), rcond=None)
    away = rows["PDMS"] - np.c_[np.ones(len(rows)), rows[parts]] @ weights
    spread = float(np.std(away[~doubted], ddof=len(parts) + 1))
    largest = away[doubted].idxmax()
    assert (rows["l_R"][largest], rows["PDMS"][largest]) == ("planning z_1", 82.0)
    assert f"{away[largest]:.2f} above" in REMARK
    assert f"deviation {spread:.2f}" in REMARK


def test_in_the_shell(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        scores(seed).to_csv(tmp_path / f"{name}.csv")
    run = CliRunner(env={"COLUMNS": "250"}).invoke
    files = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    plain = run(app, ["navsim", "compare", *files])
    assert plain.exit_code == 0
    assert "the paper's" not in plain.output
    beside = run(app, ["navsim", "compare", *files, "--backbone", "resnet34", "--at", "fusion z"])
    assert "81.95" in beside.output
    assert "single runs" in beside.output
    alone = run(app, ["navsim", "compare", *files, "--at", "fusion z"])
    assert alone.exit_code == 2
    assert "--backbone" in alone.output
    bad = run(app, ["navsim", "compare", files[0]])
    assert bad.exit_code == 2
