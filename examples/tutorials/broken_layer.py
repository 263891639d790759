# %% [markdown]
# # Find the broken layer
#
# A network that worked gives bad answers: weights were merged badly, a file was
# damaged, a layer was quantised too coarsely. Which layer is it? We break one on
# purpose, so that we know, and let `frpt.diagnose` find it.

# %%
import copy
from collections import OrderedDict

import torch
import torch.nn.functional as F
from IPython.display import Image, display
from torch import nn
from torch.utils.data import TensorDataset

import frpt

torch.manual_seed(0)
(x, y), (x_test, y_test) = frpt.data.digits()
test = TensorDataset(x_test, y_test)


def block(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()
    )


healthy = nn.Sequential(
    OrderedDict(
        block1=block(1, 8, 2),
        block2=block(8, 12, 1),
        block3=block(12, 16, 2),
        block4=block(16, 16, 2),
        flat=nn.Flatten(),
        head=nn.Linear(256, 10),
    )
)
layers = ["block4", "block3", "block2", "block1"]
STEPS = 400
optimizer = torch.optim.AdamW(healthy.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for rows in torch.randint(len(x), (STEPS, 64)):
    optimizer.zero_grad()
    F.cross_entropy(healthy(x[rows]), y[rows]).backward()
    optimizer.step()
    schedule.step()
healthy.eval()


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(x_test).argmax(1) == y_test).float().mean())


print(f"accuracy {accuracy(healthy):.1%}")

# %% [markdown]
# ## Break it
#
# Noise is added to the weights of one convolution. Its norm is 1.5 times theirs.


# %%
def broken_at(layer: str, strength: float = 1.5, seed: int = 0) -> nn.Module:
    model = copy.deepcopy(healthy)
    weight = model.get_submodule(layer)[0].weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weight += strength * weight.norm() * noise / noise.norm()
    return model


model = broken_at("block3")
print(f"accuracy {accuracy(model):.1%}")

# %% [markdown]
# ## Diagnose it
#
# One call, on the test digits and their labels. It knows neither the healthy weights
# nor the training data.

# %%
found = frpt.diagnose(model, test, at=layers, progress=False)
print(found)

# %% [markdown]
# How to read the table:
#
# - **fault**: each layer's own weights are refitted alone on half of some samples;
#   this is the share of the loss which that takes back on the other half, with its
#   95 % interval. The layer with the largest fault is named in the verdict, if all
#   others take back clearly less; a lead of less than a tenth makes a short list.
# - **deviation**: how far features are from their targets, relative to their norm. It
#   does *not* tell where the fault is: it depends on how strongly the rest of the
#   network reacts to a layer.
# - **in reference**: the same in standard deviations of the layer.
# - **label wins** and **trust** say whether the targets can be trusted: trust is the
#   share of samples whose label wins from the target, times the share of a correction
#   that stays when the feature is moved a little.

# %% [markdown]
# ## Is that luck?
#
# We break each block in turn, with other noise, strong and weak, and look at what is
# named first.

# %%
# slow: eight diagnoses
for strength in (1.5, 0.9):
    for layer in layers:
        model = broken_at(layer, strength, seed=1)
        other = frpt.diagnose(
            model, test, at=layers, gallery=0, pairs=0, progress=False
        )
        fault = {finding.name: finding.fault for finding in other.layers}
        named = ", ".join(f"{name} {fault[name]:.1%}" for name in other.ranking[:3])
        print(
            f"noise {strength}, broken {layer}, accuracy {accuracy(model):.1%}: {named}"
        )

# %% [markdown]
# Not always: where the first name is wrong, the broken block is close behind. In a
# network as small as this one, a refit of a neighbour undoes nearly as much of the
# damage, so the faults lie close together. Read the ranking as a short list, together
# with its numbers. On CIFAR-10, `benchmarks/diagnose.py` counts how often the broken
# layer or the one after it is named first.

# %% [markdown]
# ## Look at a sample
#
# Where does a layer respond? The maps are Grad-CAM: of the feature as it is, for the
# class the network took; of the feature as it should have been, for the label; and of
# what would have to change.

# %%
shown = found.gallery[0].index
found.plot("responses", shown, path="responses.png")
display(Image("responses.png", width=560))

# %% [markdown]
# `found.to_html("report.html")` writes all of this to one page: verdict, tables,
# confused pairs of classes, and the response maps of many samples.

# %%
path = found.to_html("report.html", title="A damaged CNN")
print(path, f"{path.stat().st_size / 1e6:.1f} MB")
