"""Patches: exact there and back, refused for other weights, never half-written."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from frpt.errors import PatchError
from frpt.repairs import Patch, apply


def pair(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    before = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).to(dtype).eval()
    after = copy.deepcopy(before)
    with torch.no_grad():
        after[0].weight += 0.1 * torch.randn(5, 4).to(dtype)
        after[0].weight[0, 0] = -after[0].weight[0, 0]  # another sign: all bits
    return before, after


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_there_and_back_to_the_last_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    before, after = pair(dtype)
    kept = copy.deepcopy(before)
    file = Patch.between(before, after).save(tmp_path / "sub" / "patch.safetensors")
    there = apply(before, file)
    assert same(there, after)
    assert same(before, kept)
    assert same(apply(there, file, back=True), before)
    assert not list((tmp_path / "sub").glob("*.tmp"))


def test_only_what_moved_is_in_it() -> None:
    before, after = pair()
    patch = Patch.between(before, after)
    assert list(patch.bits) == ["0.weight"]
    assert "0.weight" in str(patch)
    assert 0 < patch.moved["0.weight"] < 1
    assert str(Patch.between(before, before)) == "nothing is changed"


def test_other_weights_are_refused() -> None:
    before, after = pair()
    patch = Patch.between(before, after)
    with pytest.raises(PatchError, match=r"'0\.weight' has other values than it was made for"):
        apply(after, patch)
    with pytest.raises(PatchError, match="taken back from"):
        apply(before, patch, back=True)
    with pytest.raises(PatchError, match="has no parameter"):
        apply(nn.Linear(2, 2), patch)


def test_what_no_patch_leads_between_is_refused() -> None:
    before, after = pair()
    for other, words in [
        (nn.Sequential(*before[:2]), r"only one of them has '2\.weight'"),
        (nn.Sequential(*before, nn.Linear(3, 3)), r"only one of them has '3\.weight'"),
        (nn.Sequential(before[0], before[1], nn.Linear(5, 4)), r"'2\.weight' is \(3, 5\) .* and \(4, 5\)"),
        (copy.deepcopy(before).double(), r"torch\.float32 before and \(5, 4\) torch\.float64"),
        (before.state_dict(), "a network, a torch.nn.Module, and this is a OrderedDict"),
    ]:
        with pytest.raises(PatchError, match=words):
            Patch.between(before, other)  # type: ignore[arg-type]
    patch = Patch.between(before, after)
    with pytest.raises(PatchError, match="this is a OrderedDict"):
        apply(before.state_dict(), patch)  # type: ignore[arg-type]
    with pytest.raises(PatchError, match="this is a Linear"):
        apply(before, after[0])


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    before, after = pair()
    file = Patch.between(before, after).save(tmp_path / "patch.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 4
    file.write_bytes(data)
    with pytest.raises(PatchError, match="damaged"):
        apply(before, file)
    file.write_bytes(data[:20])
    with pytest.raises(PatchError, match="cannot be read"):
        apply(before, file)
    with pytest.raises(PatchError, match="cannot be read"):
        apply(before, tmp_path / "nothing.safetensors")
