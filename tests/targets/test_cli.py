"""`frpt targets` from the shell."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import frpt
from frpt.cli.main import app
from tests.targets.common import data
from tests.targets.test_crash import flip

runner = CliRunner(env={"COLUMNS": "200"})
MODEL, DATA = "tests.targets.common:model", "tests.targets.common:data"


def frpt_targets(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["targets", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def test_write_info_verify_and_rewrite(tmp_path: Path) -> None:
    write = ["write", MODEL, tmp_path, "--data", DATA, "--at", "2", "--shard-size", 16, "--margin", 0.05]
    code, said = frpt_targets(*write, "--rank", 1, "--world", 2)
    assert code == 0, said
    assert "writer 1 of 2 is done; others are not" in said
    code, said = frpt_targets("info", tmp_path)
    assert code == 2
    assert "incomplete" in said
    code, said = frpt_targets(*write)
    assert code == 0, said
    assert "72 samples" in said
    code, shown = frpt_targets("info", tmp_path)
    assert code == 0
    assert shown.strip() in said
    assert "embedding nearest, margin 0.05" in shown
    assert "(b, 12)" in shown
    code, said = frpt_targets("verify", tmp_path)
    assert code == 0
    assert "all 5 shards are sound" in said
    store = frpt.TargetStore(tmp_path)
    before, _ = store.read("2", range(len(data())))
    flip(tmp_path / "shard-000002.safetensors", 200)
    code, said = frpt_targets("verify", tmp_path)
    assert code == 1
    assert "1 of 5 shards are damaged" in said
    assert "shard-000002.safetensors" in said
    code, said = frpt_targets("verify", tmp_path, "--rewrite", MODEL, "--data", DATA)
    assert code == 2
    assert "embedding.margin is 0.05 in the store, None now" in said
    code, said = frpt_targets("verify", tmp_path, "--rewrite", MODEL, "--data", DATA, "--margin", 0.05)
    assert code == 0, said
    assert "shard-000002.safetensors" in said
    assert frpt.TargetStore(tmp_path).read("2", range(len(data())))[0].equal(before)


def test_errors_are_one_line_and_exit_code_two(tmp_path: Path) -> None:
    for arguments, words in [
        (["info", tmp_path], "not a target store"),
        (["write", MODEL, tmp_path, "--data", "tests.targets.common", "--at", "2"], "package.module:factory"),
        (["write", MODEL, tmp_path, "--data", DATA, "--at", "nothing"], "no layer is called 'nothing'"),
        (["write", MODEL, tmp_path, "--data", DATA, "--at", "2", "--mode", "half"], "mode must be"),
        (["verify", tmp_path, "--rewrite", MODEL], "not a target store"),
    ]:
        code, said = frpt_targets(*arguments)
        assert code == 2
        assert words in said


def odd() -> nn.Module:
    """Takes pictures of 6 × 10, which nothing but the data set tells."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(64, 3)).eval()


def odd_data() -> TensorDataset:
    return TensorDataset(torch.randn(24, 1, 6, 10, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3)


def test_the_data_set_says_what_inputs_are_like(tmp_path: Path) -> None:
    here = "tests.targets.test_cli"
    code, said = frpt_targets("write", f"{here}:odd", tmp_path, "--data", f"{here}:odd_data", "--at", "0")
    assert code == 0, said
    assert "24 samples" in said
