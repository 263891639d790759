"""`frpt remember`, `frpt repair`, `frpt apply`, from files to files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from frpt.cli.main import app

runner = CliRunner(env={"COLUMNS": "200"})
HERE = "tests.repairs.test_repair_command"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3)).eval()


def old() -> TensorDataset:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, net()(x).argmax(1))


def failures() -> TensorDataset:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, (net()(x).argmax(1) + 1) % 3)


def run(*words: str) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_from_files_to_files(tmp_path: Path) -> None:
    memory, out = tmp_path / "memory", tmp_path / "fix"
    said = run("remember", f"{HERE}:net", "--data", f"{HERE}:old", "--out", str(memory))
    assert "Memory(300 inputs, 2 weights" in said
    said = run("repair", f"{HERE}:net", "--data", f"{HERE}:failures", "--memory", str(memory), "--out", str(out),
               "--budget", "1.0")  # fmt: skip
    assert "12 failing samples" in said
    repaired = net()
    repaired.load_state_dict(load_file(out / "model.safetensors"))
    x, y = failures().tensors
    assert (repaired(x).argmax(1) == y).double().mean() >= 0.75
    file = tmp_path / "applied.safetensors"
    run("apply", f"{HERE}:net", "--patch", str(out / "patch.safetensors"), "--out", str(file))
    there = load_file(out / "model.safetensors")
    assert all(torch.equal(value, there[name]) for name, value in load_file(file).items())
    back = tmp_path / "back.safetensors"
    run("apply", f"{HERE}:net", "--weights", str(file), "--patch", str(out / "patch.safetensors"), "--back",
        "--out", str(back))  # fmt: skip
    assert all(torch.equal(v, net().state_dict()[k]) for k, v in load_file(back).items())


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    run("remember", f"{HERE}:net", "--data", f"{HERE}:old", "--out", str(memory))
    nothing = runner.invoke(
        app, ["repair", f"{HERE}:net", "--data", f"{HERE}:old", "--memory", str(memory), "--out", "x"]
    )
    assert nothing.exit_code == 2
    assert "nothing to repair" in nothing.output
    other = {k: v + 1 for k, v in net().state_dict().items()}
    save_file(other, tmp_path / "other.safetensors")
    refused = runner.invoke(
        app, ["repair", f"{HERE}:net", "--weights", str(tmp_path / "other.safetensors"), "--data", f"{HERE}:failures",
              "--memory", str(memory), "--out", "x"]
    )  # fmt: skip
    assert refused.exit_code == 2
    assert "weights have changed since" in refused.output
