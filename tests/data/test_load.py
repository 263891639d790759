"""Data sets by name, on folders made here: parquet files, class folders, the hub's answers, the cache."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from frpt import data
from frpt.data.decode import cache_folder, decode
from frpt.data.sets import SETS
from frpt.errors import DatasetError, OptionError

datasets = pytest.importorskip("datasets")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FRPT_DATA", raising=False)
    return tmp_path / "cache"


def picture(seed: int, size: tuple[int, int] = (28, 28), mode: str = "L") -> np.ndarray:
    shape = size if mode == "L" else (*size, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def rows(count: int, image: str = "image", label: str = "label", mode: str = "L", seed: int = 0) -> object:
    cells = [{"bytes": png(picture(seed + i, (28, 28), mode)), "path": None} for i in range(count)]
    held = {image: cells, label: [i % 10 for i in range(count)]}
    features = datasets.Features(
        {image: datasets.Image(), label: datasets.ClassLabel(names=[str(i) for i in range(10)])}
    )
    return datasets.Dataset.from_dict(held, features=features)


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """MNIST's layout on the hub, with 12 and 5 images; training images in two files."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    train = rows(12)
    train.select(range(7)).to_parquet(folder / "train-00000-of-00002.parquet")
    train.select(range(7, 12)).to_parquet(folder / "train-00001-of-00002.parquet")
    rows(5, seed=100).to_parquet(folder / "test-00000-of-00001.parquet")
    return tmp_path / "data"


def class_folders(root: Path, classes: int, size: tuple[int, int], part: str, each: int = 1) -> None:
    for c in range(classes):
        folder = root / part / f"n{c:04d}"
        folder.mkdir(parents=True)
        for i in range(each):
            Image.fromarray(picture(10 * c + i, size, "RGB")).save(folder / f"{i}.png")


def test_parquet_files_give_their_pixels_and_labels(mnist: Path) -> None:
    found = data.load("mnist", "train", mnist, normalize=False)
    expected = torch.stack([torch.from_numpy(picture(i)) for i in range(12)])[:, None] / 255
    x, y = found.tensors
    assert torch.equal(x, expected)
    assert y.tolist() == [i % 10 for i in range(12)]
    assert len(data.load("mnist", "test", mnist)) == 5
    assert not found.complete


def test_normalised_by_the_data_sets_mean_and_deviation(mnist: Path) -> None:
    x, _ = data.load("mnist", "train", mnist).tensors
    raw, _ = data.load("mnist", "train", mnist, normalize=False).tensors
    torch.testing.assert_close(x, (raw - 0.1307) / 0.3081)


def test_items_batches_and_loaders_agree(mnist: Path) -> None:
    found = data.load("mnist", "train", mnist)
    x, y = found.tensors
    assert all(torch.equal(found[i][0], x[i]) and found[i][1] == y[i] for i in range(12))
    (batch, labels), *_ = DataLoader(found, batch_size=12)
    assert torch.equal(batch, x)
    assert torch.equal(labels, y)
    assert torch.equal(found[-1][0], x[11])
    assert len(list(found)) == 12
    with pytest.raises(IndexError):
        found[12]


def test_decoded_at_every_look_or_once(mnist: Path, own_cache: Path) -> None:
    lazy = data.load("mnist", "train", mnist, memory=False)
    assert not list(own_cache.glob("images/*"))
    held = data.load("mnist", "train", mnist, memory=True)
    assert len(list(own_cache.glob("images/*.safetensors"))) == 1
    assert torch.equal(lazy.tensors[0], held.tensors[0])
    assert torch.equal(lazy[3][0], held[3][0])
    assert torch.equal(pickle.loads(pickle.dumps(lazy))[3][0], held[3][0])


def test_the_cache_is_used_and_follows_the_files(mnist: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data.load("mnist", "test", mnist).tensors[0]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datasets", None)  # importing it fails
        assert torch.equal(data.load("mnist", "test", mnist).tensors[0], first)
        with pytest.raises(DatasetError, match=r"frpt\[vision\]"):
            data.load("mnist", "train", mnist)
    rows(6, seed=300).to_parquet(mnist / "mnist" / "test-00000-of-00001.parquet")
    assert len(data.load("mnist", "test", mnist)) == 6
    for file in own_cache.glob("images/*"):
        file.write_bytes(b"not a cache")
    assert len(data.load("mnist", "test", mnist)) == 6


def test_a_cache_that_cannot_be_written_costs_only_a_warning(mnist: Path, own_cache: Path) -> None:
    own_cache.mkdir()
    (own_cache / "images").write_text("a file in the way")
    with pytest.warns(UserWarning, match="not cached"):
        assert len(data.load("mnist", "test", mnist)) == 5


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRPT_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("FRPT_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/frpt")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "frpt"


def test_the_folder_itself_or_one_of_its_name_or_the_environment(
    mnist: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = data.load("mnist", "test", mnist / "mnist").tensors[0]
    monkeypatch.setenv("FRPT_DATA", str(mnist))
    assert torch.equal(data.load("mnist", "test").tensors[0], here)
    (mnist / "mnist").rename(mnist / "mnist-small")
    assert torch.equal(data.load("mnist", "test").tensors[0], here)
    (mnist / "mnist-other").mkdir()
    with pytest.raises(DatasetError, match="mnist-other"):
        data.load("mnist", "test")
    with pytest.raises(DatasetError, match="does not exist"):
        data.load("mnist", "test", tmp_path / "nowhere")


def test_cifar10_is_not_cifar100(tmp_path: Path) -> None:
    """Their names begin alike; columns are called img and fine_label there."""
    for name, label, seed in (("cifar10", "label", 0), ("cifar100", "fine_label", 50)):
        (tmp_path / name).mkdir()
        rows(3, "img", label, "RGB", seed).to_parquet(tmp_path / name / "train-00000-of-00001.parquet")
    ten, hundred = (
        data.load(n, "train", tmp_path, size=28, normalize=False).tensors[0] for n in ("cifar10", "cifar100")
    )
    for found, seed in ((ten, 0), (hundred, 50)):
        expected = torch.from_numpy(picture(seed, (28, 28), "RGB")).permute(2, 0, 1) / 255
        assert torch.equal(found[0], expected)
    assert data.load("cifar10", "train", tmp_path)[0][0].shape == (3, 32, 32)


def test_class_folders_are_cropped_as_the_paper_has_them(tmp_path: Path) -> None:
    """Imagenette: the shorter side to 256, the middle 224 × 224; "test" is called val there."""
    root = tmp_path / "imagenette2-320"
    class_folders(root, 10, (320, 400), "train")
    class_folders(root, 10, (300, 300), "val")
    found = data.load("imagenette", "train", tmp_path, normalize=False)
    assert found.labels.tolist() == list(range(10))
    image = Image.fromarray(picture(30, (320, 400), "RGB")).resize((320, 256), Image.Resampling.BILINEAR)
    middle = np.asarray(image)[16:240, 48:272]
    assert torch.equal(found[3][0], torch.from_numpy(middle.copy()).permute(2, 0, 1) / 255)
    small = data.load("imagenette", "test", tmp_path, size=64)
    assert small[0][0].shape == (3, 64, 64)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (SETS["imagenette"].mean, SETS["imagenette"].std))
    raw = data.load("imagenette", "test", tmp_path, size=64, normalize=False)
    torch.testing.assert_close(small[5][0], (raw[5][0] - mean) / std)


def test_tiny_imagenets_own_layout(tmp_path: Path) -> None:
    """Training images in class/images, validation images in one folder with a list."""
    root = tmp_path / "tiny-imagenet-200"
    for c in range(200):
        folder = root / "train" / f"n{c:04d}" / "images"
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(png(picture(c, (64, 64), "L")))
    (root / "val" / "images").mkdir(parents=True)
    for i, c in enumerate((7, 3, 199)):
        (root / "val" / "images" / f"val_{i}.png").write_bytes(png(picture(c, (64, 64), "RGB")))
    lines = [f"val_{i}.png\tn{c:04d}\t0\t0\t9\t9\n" for i, c in enumerate((7, 3, 199))]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    train, test = (data.load("tiny-imagenet", s, tmp_path, normalize=False) for s in ("train", "test"))
    assert train.labels.tolist() == list(range(200))
    assert train[11][0].shape == (3, 64, 64)  # grey images become RGB
    grey = torch.stack([torch.from_numpy(picture(c, (64, 64), "L")) for c in range(200)]) / 255
    assert torch.equal(train.tensors[0], grey[:, None].expand(-1, 3, -1, -1))  # by several threads, in order
    assert torch.equal(pickle.loads(pickle.dumps(train))[11][0], train[11][0])  # as loaders with workers send it
    assert test.labels.tolist() == [7, 3, 199]
    assert torch.equal(test[1][0], torch.from_numpy(picture(3, (64, 64), "RGB")).permute(2, 0, 1) / 255)


def test_select_and_hold_out(mnist: Path) -> None:
    found = data.load("mnist", "train", mnist)
    some = found.select([3, 1])
    assert torch.equal(some.tensors[0], found.tensors[0][[3, 1]])
    assert torch.equal(some.select([1])[0][0], found[1][0])
    many = found.select(list(range(10)) * 10)
    rest, held = many.hold_out(0.2, seed=1)
    assert held.labels.bincount().tolist() == [2] * 10
    assert rest.labels.bincount().tolist() == [8] * 10
    assert torch.equal(many.hold_out(0.2, seed=1)[1].tensors[0], held.tensors[0])
    with pytest.raises(OptionError, match="share"):
        found.hold_out(1.0)


def test_from_the_hub_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder the hub is asked. Split names differ, and a repository may hold a script instead of data."""
    asked = []

    def answer(path: str, name: str | None, *, split: str, revision: str | None) -> object:
        asked.append((path, name, split, revision))
        if "mnist" in path:
            raise ConnectionError("no network")
        if "woof" in path and revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found imagewoof.py")
        if split not in ("train", "valid"):
            raise ValueError(f"Unknown split {split!r}")
        return rows(4, mode="RGB")

    monkeypatch.setattr(datasets, "load_dataset", answer)
    tiny, woof = "zh-plus/tiny-imagenet", "frgfm/imagewoof"
    assert len(data.load("tiny-imagenet", "test")) == 4
    assert asked == [(tiny, None, "test", None), (tiny, None, "valid", None)]
    assert len(data.load("imagewoof", "train")) == 4
    assert asked[2:] == [(woof, "320px", "train", None), (woof, "320px", "train", "refs/convert/parquet")]
    with pytest.raises(DatasetError, match=r"ylecun/mnist\): no network.*FRPT_DATA"):
        data.load("mnist", "test")
    assert asked[4:] == [("ylecun/mnist", None, "test", None)]  # asked once, not once per name of the split


def test_embedded_digits_are_the_default() -> None:
    train, test = data.load(), data.load("digits", "test", normalize=False)
    assert (len(train), len(test)) == (4000, 1000)
    assert train.complete
    assert torch.equal(test.tensors[0], data.digits()[1][0])
    assert float(train.tensors[0].mean()) == pytest.approx(0, abs=0.05)
    with pytest.raises(OptionError, match="mnist"):
        data.load(size=32)


def test_decoding_keeps_grey_and_colour_apart() -> None:
    colour = png(picture(0, (32, 32), "RGB"))
    assert decode(colour, SETS["cifar10"], 32, "it").shape == (3, 32, 32)
    assert decode(colour, SETS["mnist"], 28, "it").shape == (1, 28, 28)


def test_what_cannot_be_read_is_said(mnist: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="digits, mnist, cifar10"):
        data.load("imagenet")
    with pytest.raises(OptionError, match="train, test"):
        data.load("mnist", "val")
    with pytest.raises(OptionError, match="size"):
        data.load("mnist", "train", mnist, size=0)
    with pytest.raises(DatasetError, match="no train split of cifar10"):
        data.load("cifar10", "train", mnist)
    (mnist / "mnist" / "test-00000-of-00001.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(DatasetError, match="could not be read"):
        data.load("mnist", "test", mnist)
    class_folders(tmp_path / "imagewoof", 3, (20, 20), "train")
    with pytest.raises(DatasetError, match="3 classes, imagewoof has 10"):
        data.load("imagewoof", "train", tmp_path)
    class_folders(tmp_path / "imagenette", 10, (20, 20), "train")
    (tmp_path / "imagenette" / "train" / "n0004" / "0.png").write_bytes(b"no image")
    with pytest.raises(DatasetError, match="image 4 of imagenette"):
        data.load("imagenette", "train", tmp_path)[4]


def test_wrong_columns_and_labels(tmp_path: Path) -> None:
    for name, rowset in (("mnist", rows(3, "photo")), ("cifar10", rows(3).map(lambda r: {"label": 9}))):
        (tmp_path / name).mkdir()
        rowset.to_parquet(tmp_path / name / "train.parquet")
    with pytest.raises(DatasetError, match="photo"):
        data.load("mnist", "train", tmp_path)
    assert data.load("cifar10", "train", tmp_path).labels.tolist() == [9, 9, 9]
    other = datasets.Dataset.from_dict({"image": [{"bytes": png(picture(0)), "path": None}], "label": [10]})
    other.to_parquet(tmp_path / "mnist" / "train.parquet")
    with pytest.raises(DatasetError, match="10 to 10, not 0 to 9"):
        data.load("mnist", "train", tmp_path)
