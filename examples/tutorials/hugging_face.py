# %% [markdown]
# # A Hugging Face model
#
# A transformer from `transformers`, with keyword inputs and an output object, works
# like any other model. To stay free of downloads, we train a tiny BERT from scratch
# on real text that is on every machine with this library: the first sentences of the
# documentation of NumPy, SciPy, pandas and PyTorch. The task: which library is a
# sentence from?

# %%
import inspect
import re
from collections import Counter

import numpy
import pandas
import scipy.signal
import scipy.special
import scipy.stats
import torch
import transformers
from torch.utils.data import Dataset

import frpt

PLACES = {
    "numpy": [numpy, numpy.linalg, numpy.ma, numpy.ndarray],
    "scipy": [scipy.stats, scipy.signal, scipy.special],
    "pandas": [pandas, pandas.DataFrame, pandas.Series, pandas.Index],
    "torch": [torch, torch.Tensor, torch.nn, torch.nn.functional],
}
NAMES = {*PLACES, "pytorch"}


def sentence(text: str) -> list[str]:
    """The words of the first sentence that is prose, in lower case."""
    for part in text.split("\n\n"):
        if not set("(:") & set(part.split("\n")[0]):
            return re.findall(r"[a-z]+", part.split(". ")[0].lower())
    return []


def sentences(places: list[object]) -> set[str]:
    """First sentences of what these modules and classes document."""
    found = set()
    for place in places:
        for name in dir(place):
            if name.startswith("_"):
                continue
            words = sentence(inspect.getdoc(getattr(place, name, None)) or "")
            if 4 <= len(words) <= 16 and not NAMES & set(words):
                found.add(" ".join(words))
    return found


texts = {library: sentences(places) for library, places in PLACES.items()}
data = sorted(
    {(text, label) for label, library in enumerate(texts) for text in texts[library]}
)
libraries = list(texts)
print({library: len(found) for library, found in texts.items()})
print(data[100], data[-100])

# %% [markdown]
# Words become numbers by a plain vocabulary; a sentence has 18 places, filled up with
# padding, which the attention mask hides.

# %%
torch.manual_seed(0)
SPECIAL = ["[PAD]", "[CLS]", "[UNK]"]
counts = Counter(word for text, _ in data for word in text.split())
vocabulary = SPECIAL + [word for word, _ in counts.most_common(1500)]
number = {word: i for i, word in enumerate(vocabulary)}


class Sentences(Dataset):
    """Items: (keyword inputs of the model, label)."""

    def __init__(self, rows: list[tuple[str, int]]) -> None:
        self.rows = rows
        self.ids = torch.zeros(len(rows), 18, dtype=torch.long)
        for i, (text, _) in enumerate(rows):
            tokens = [1, *(number.get(word, 2) for word in text.split())]
            self.ids[i, : len(tokens)] = torch.tensor(tokens)
        self.labels = torch.tensor([label for _, label in rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return self.batch(torch.tensor(i))

    def batch(self, rows: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        ids = self.ids[rows]
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}, self.labels[rows]


order = torch.randperm(len(data)).tolist()
train = Sentences([data[i] for i in order[:-300]])
test = Sentences([data[i] for i in order[-300:]])
print(len(train), len(test))

# %% [markdown]
# ## Train a tiny BERT

# %%
config = transformers.BertConfig(
    vocab_size=len(vocabulary),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=18,
    num_labels=len(libraries),
)
model = transformers.BertForSequenceClassification(config)
STEPS = 250
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for rows in torch.randint(len(train), (STEPS, 64)):
    inputs, labels = train.batch(rows)
    optimizer.zero_grad()
    model(**inputs, labels=labels).loss.backward()
    optimizer.step()
model.eval()

inputs, labels = test.batch(torch.arange(len(test)))
with torch.no_grad():
    predicted = model(**inputs).logits.argmax(1)
print(f"{(predicted == labels).sum()} of {len(labels)} test sentences are right")

# %% [markdown]
# ## What should its layers have produced?
#
# Keyword inputs go in as a dict. The field `logits` of the output object is found by
# itself.

# %%
rev = frpt.Reverser(model, inputs)
layers = ["bert.encoder.layer.1", "bert.encoder.layer.0"]
for name in layers:
    print(name, rev.shape(name))

found = rev.reconstruct(inputs, labels, at=layers)
for name, rec in found.items():
    need = rec.corrected
    wins, away = (rec.wins & need).sum(), rec.deviation[need].mean()
    print(f"{name}: {need.sum()} wrong, {wins} right from the target, {away:.3f} away")

# %% [markdown]
# ## Which words would have to be read differently?
#
# The target of a sentence has a vector for every token. How much each of them
# changes, as a share of the whole change, says where the first layer's reading would
# have to differ. `[CLS]` is the place that the classifier reads in the end. This is
# the nearest change that helps; it need not be how a human would explain the mistake.

# %%
rec = found["bert.encoder.layer.0"]
change = (rec.target - rec.anchor).square().sum(-1)
share = change / change.sum(-1, keepdim=True)
for row in rec.corrected.nonzero().flatten()[:5].tolist():
    text = ["[CLS]", *test.rows[row][0].split()]
    print(f"{libraries[labels[row]]}, taken for {libraries[predicted[row]]}:")
    print("   ", " ".join(f"{word} {share[row, i]:.0%}" for i, word in enumerate(text)))

# %% [markdown]
# Padding is hidden by the attention mask. It cannot change the answer, so no target
# moves it:

# %%
padding = inputs["attention_mask"][rec.corrected] == 0
print(float(change[rec.corrected][padding].max()))

# %% [markdown]
# ## A diagnosis
#
# The data set gives dicts of keyword inputs; nothing else is needed.

# %%
# slow: the model is captured again for other batch sizes
print(
    frpt.diagnose(
        model, test, at=layers, class_names=libraries, gallery=0, progress=False
    )
)
