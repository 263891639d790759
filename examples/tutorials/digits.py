# %% [markdown]
# # A CNN on digits
#
# We train a small convolutional network on handwritten digits, look at the ones it
# gets wrong, and ask what each of its layers should have produced for them. It takes
# a few seconds on a laptop.

# %%
from collections import OrderedDict

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import frpt

torch.manual_seed(0)
(x, y), (x_test, y_test) = frpt.data.digits()  # 4,000 and 1,000 real digits
print(x.shape, x_test.shape)

# %% [markdown]
# ## Train a network
#
# Any `nn.Module` will do. The names given here are the names of its layers later on.


# %%
def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    )


model = nn.Sequential(
    OrderedDict(
        first=block(1, 8),
        second=block(8, 16),
        flat=nn.Flatten(),
        hidden=nn.Linear(784, 32),
        act=nn.ReLU(),
        head=nn.Linear(32, 10),
    )
)
STEPS = 300
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for rows in torch.randint(len(x), (STEPS, 64)):
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
model.eval()

with torch.no_grad():
    predicted = model(x_test).argmax(1)
print(f"{(predicted == y_test).sum()} of {len(y_test)} test digits are right")

# %% [markdown]
# ## Which layers are there?
#
# A `Reverser` reads the network once. It changes nothing in it. `layers` lists the
# names, output first.

# %%
rev = frpt.Reverser(model, x[:8])
for name in rev.layers:
    print(f"{name:10} {rev.shape(name)}")

# %% [markdown]
# The plan is the way back from the output to a layer: the operations in between, and
# how each of them would be reversed.

# %%
print(rev.plan("second"))

# %% [markdown]
# ## What should each layer have produced?
#
# For every wrong digit and every layer we ask for the *target*: the nearest feature
# from which the rest of the network predicts the label. The *deviation* is how far
# that is from the feature the network computed, relative to its norm.

# %%
names = ["head", "act", "hidden", "second", "first"]
found = rev.reconstruct(x_test, y_test, at=names)
for name, rec in found.items():
    need = rec.corrected
    wins, away = (rec.wins & need).sum(), rec.deviation[need].mean()
    print(f"{name:7} {need.sum()} wrong, {wins} right from the target, {away:.3f} away")

# %% [markdown]
# The label wins from every target. Digits that were right keep their feature, to the
# last bit:

# %%
rec = found["second"]
print(torch.equal(rec.target[~rec.corrected], rec.anchor[~rec.corrected]))

# %% [markdown]
# ## The hardest digits
#
# The deviation orders the mistakes: a large one means that the layer is far from what
# the label needs. Some of these digits are hard to read for us as well.

# %%
order = torch.where(rec.corrected, rec.deviation, 0).argsort(descending=True)
figure, axes = plt.subplots(1, 8, figsize=(10, 1.8))
for axis, row in zip(axes, order[:8], strict=True):
    axis.imshow(x_test[row, 0], cmap="gray_r")
    axis.set_title(
        f"{y_test[row]}, not {predicted[row]}\n{rec.deviation[row]:.2f}",
        fontsize=9,
    )
    axis.axis("off")
plt.show()

# %% [markdown]
# ## Likelier targets
#
# The nearest target is a small change to which the rest of the network reacts
# strongly, like an adversarial example. It need not look like anything the layer
# produces by itself. A *reference* learns from some training digits how the features
# vary. With it we get the likeliest feature in which the label wins. It lies farther
# away.

# %%
ref = frpt.Reference.fit(model, TensorDataset(x, y), at="second", progress=False)
likely = frpt.Reverser(model, x[:8], reference=ref).reconstruct(
    x_test, y_test, at="second"
)
need = likely.corrected
wins, deviation = (likely.wins & need).sum(), likely.deviation[need].mean()
print(f"{need.sum()} wrong, {wins} right from the target, {deviation:.3f} away")

row = int(order[0])
maps = {
    "anchor": rec.anchor[row],
    "change, nearest": (rec.target - rec.anchor)[row],
    "change, likeliest": (likely.target - likely.anchor)[row],
}
figure, axes = plt.subplots(1, 4, figsize=(10, 2.6))
axes[0].imshow(x_test[row, 0], cmap="gray_r")
axes[0].set_title(f"{int(y_test[row])}, taken for {int(predicted[row])}", fontsize=10)
for axis, (title, feature) in zip(axes[1:], maps.items(), strict=True):
    axis.imshow(feature.norm(dim=0), cmap="viridis")
    axis.set_title(title, fontsize=10)
for axis in axes:
    axis.axis("off")
plt.show()

# %% [markdown]
# Is the likelier target a better answer? Only if it is nearer to what the layer would
# have produced had nothing gone wrong, and here nobody knows that. The
# [benchmarks](../benchmarks.md) make the fault on purpose, so that it is known, and
# measure it.
#
# Next: [find the broken layer](broken_layer.ipynb).
