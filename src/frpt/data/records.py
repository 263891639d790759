"""Encoded images and labels, from parquet files, image folders or the Hugging Face hub. Called by ``load``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from frpt.data.sets import IMAGE_COLUMNS, LABEL_COLUMNS, SPLITS, Info
from frpt.errors import DatasetError
from frpt.files.digest import Sha256

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
_ANNOTATIONS = "val_annotations.txt"
_CONVERTED = "refs/convert/parquet"


class Records(Protocol):
    """labels: (n,) class ids. ``encoded`` gives the bytes of image files."""

    labels: Sequence[int]

    def encoded(self, rows: Sequence[int]) -> list[bytes]: ...


@dataclass(frozen=True)
class Location:
    """Where a split is: parquet files, or image files with their labels; nothing of either stands for the hub."""

    parquet: tuple[Path, ...] = ()
    images: tuple[Path, ...] = ()
    labels: tuple[int, ...] = ()

    def key(self) -> str:
        """A digest of the files' names, sizes and times: another one where the data may have changed."""
        digest = Sha256()
        for file in (*self.parquet, *self.images):
            stat = file.stat()
            digest.update(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]


class HuggingFaceRows:
    """Rows of a Hugging Face data set, memory-mapped."""

    def __init__(self, rows: Any, where: str) -> None:
        self._image = _column(rows.column_names, IMAGE_COLUMNS, where)
        self.labels: Sequence[int] = list(rows[_column(rows.column_names, LABEL_COLUMNS, where)])
        self._rows = rows.cast_column(self._image, needed("datasets").Image(decode=False))

    def encoded(self, rows: Sequence[int]) -> list[bytes]:
        cells = self._rows[list(rows)][self._image]
        return [c["bytes"] if c["bytes"] is not None else Path(c["path"]).read_bytes() for c in cells]


class ImageFiles:
    """Image files, one per sample."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int]) -> None:
        self._paths, self.labels = paths, labels

    def encoded(self, rows: Sequence[int]) -> list[bytes]:
        return [self._paths[row].read_bytes() for row in rows]


def needed(module: str) -> Any:
    """An optional package, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DatasetError(f"reading images needs {module}: pip install 'frpt[vision]'") from error


def locate(info: Info, split: str, root: Path, itself: bool = True) -> Location | None:
    """The split in a folder of the data set's name in ``root``, e.g. imagenette2-320, or in root itself; None without.

    itself: root may hold the files whatever it is called; else only if it has the data set's name.
    """
    if not root.is_dir():
        raise DatasetError(f"the data folder {str(root)!r} does not exist")
    pattern = re.compile(rf"{re.escape(info.name)}(2|[-_].*|2[-_].*)?", re.IGNORECASE)
    named = sorted(p for p in root.iterdir() if p.is_dir() and pattern.fullmatch(p.name))
    exact = [p for p in named if p.name.lower() == info.name]
    if not exact and len(named) > 1:
        raise DatasetError(f"{str(root)!r} has several folders for {info.name}: {[p.name for p in named]}; name one")
    own = [root] if itself or pattern.fullmatch(root.name) else []
    for folder in [*(exact or named), *own]:
        location = _in_folder(info, split, folder)
        if location is not None:
            return location
    return None


def open_records(info: Info, split: str, location: Location | None, cache: Path) -> Records:
    """The records of a located split, or of the hub's where there is no location."""
    if location is not None and location.images:
        return ImageFiles(location.images, location.labels)
    datasets = needed("datasets")
    if location is None:
        return HuggingFaceRows(_from_hub(datasets, info, split), info.hub)
    files = [str(f) for f in location.parquet]
    try:
        rows = datasets.Dataset.from_parquet(files, cache_dir=str(cache / "arrow"))
    except Exception as error:  # whatever pyarrow and datasets raise for a damaged file
        raise DatasetError(f"{files} could not be read: {error}. Fetch them again.") from error
    return HuggingFaceRows(rows, files[0])


def _in_folder(info: Info, split: str, folder: Path) -> Location | None:
    names = SPLITS[split]
    for name in names:
        places = [folder, folder / "data", folder / name]
        files = [f for p in places if p.is_dir() for f in sorted(p.glob("*.parquet")) if _belongs(f, name, folder)]
        if files:
            return Location(parquet=tuple(files))
    for name in names:
        if (folder / name).is_dir():
            return _image_folder(info, folder, folder / name)
    return None


def _belongs(file: Path, name: str, folder: Path) -> bool:
    inside = file.parent == folder / name
    return inside or re.fullmatch(rf"{name}([-_.].*)?", file.stem) is not None


def _image_folder(info: Info, folder: Path, part: Path) -> Location:
    """A folder per class, their sorted names the class ids; or Tiny-ImageNet's list of validation images."""
    train = folder / SPLITS["train"][0]
    classes = sorted(p.name for p in (train if train.is_dir() else part).iterdir() if p.is_dir())
    if len(classes) != info.classes:
        raise DatasetError(f"{str(part)!r} has {len(classes)} classes, {info.name} has {info.classes}")
    number = {name: i for i, name in enumerate(classes)}
    listing = part / _ANNOTATIONS
    if listing.is_file():
        rows = [line.split("\t")[:2] for line in listing.read_text().splitlines() if line]
        unknown = sorted({name for _, name in rows} - set(number))
        if unknown:
            raise DatasetError(f"{str(listing)!r} names classes that have no folder: {unknown[:4]}")
        labelled = sorted((part / "images" / image, number[name]) for image, name in rows)
    else:
        labelled = [
            (file, number[name])
            for name in classes
            for file in sorted((part / name).rglob("*"))
            if file.suffix.lower() in _SUFFIXES
        ]
    if not labelled:
        raise DatasetError(f"there are no images in {str(part)!r}")
    return Location(images=tuple(f for f, _ in labelled), labels=tuple(y for _, y in labelled))


def _from_hub(datasets: Any, info: Info, split: str) -> Any:
    """By the names a split may have; a repository that is a script, by the hub's own conversion to parquet."""
    last: Exception | None = None
    for revision in (None, _CONVERTED):
        for name in SPLITS[split]:
            try:
                return datasets.load_dataset(info.hub, info.config, split=name, revision=revision)
            except Exception as error:  # no network, no such split, a moved repository
                last = error
            if "split" not in str(last).lower():
                break
        if "script" not in str(last):
            break
    raise DatasetError(
        f"{info.name} could not be fetched from the Hugging Face hub ({info.hub}): {last}. Check the network, or put "
        f"its parquet files or image folders into a folder {info.name!r} and pass the folder above it as folder= "
        "(--data) or in FRPT_DATA."
    ) from last


def _column(columns: Sequence[str], known: Sequence[str], where: str) -> str:
    for name in known:
        if name in columns:
            return name
    raise DatasetError(f"{where} has the columns {list(columns)}; none of {list(known)} is among them")
