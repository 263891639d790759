"""Run by ``test_first_uses``: the first calls of a process; prints which of them moved Python's own state."""

import random
import sys
import warnings
from pathlib import Path

import frpt
from tests.train.toys import blobs, network

folder, data, model = Path(sys.argv[1]), blobs(24), network()  # training it has loaded parts of torch
random.seed(1)
before = random.getstate(), list(warnings.filters)


def look(call: str) -> None:
    global before
    after = random.getstate(), list(warnings.filters)
    for name, was, now in zip(("random", "filters"), before, after, strict=True):
        if was != now:
            print(f"{call} moved {name}")
    before = after


x, y = data.tensors
rev = frpt.Reverser(model, x)
look("Reverser")
rev.reconstruct(x, y, at="1")
look("reconstruct")
found = frpt.diagnose(model, data, ["1"], gallery=1, progress=False)
look("diagnose")
found.to_html(folder / "page.html")
look("to_html")
found.plot("deviation", path=folder / "figure.png")
look("plot")
found.to_csv(folder / "tables")
look("to_csv")
frpt.Reference.fit(model, data, ["1"], progress=False)
look("Reference.fit")
memory = frpt.remember(model, x, progress=False)
look("remember")
frpt.repair(model, x[:4], y[:4], memory)
look("repair")
frpt.write_targets(rev, data, at=["1"], store=folder / "store", progress=False)
look("write_targets")
result = frpt.post_train(model, data, at="1", targets="online", epochs=1, seed=0, val=data, progress=False)
look("post_train")
frpt.stats.paired([1.0, 2.0, 4.0], [1.5, 2.0, 3.0])
look("stats.paired")
print("done")
