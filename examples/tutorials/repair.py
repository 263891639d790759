# %% [markdown]
# # Repair failing samples
#
# A network works, but fails on a kind of input that it has not seen. You have twenty
# of these failures with their labels, no time to train again, and the training data
# are elsewhere. `frpt.repair` moves the weights just enough that the twenty are right,
# and moves them where the network's old behaviour does not notice.

# %%
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import frpt

torch.manual_seed(0)
(x, y), (x_test, y_test) = frpt.data.digits()
model = frpt.zoo.simple_cnn("mnist")
STEPS = 600
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for rows in torch.randint(len(x), (STEPS, 64)):
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
    schedule.step()
model.eval()

noise = torch.randn(x_test.shape, generator=torch.Generator().manual_seed(0))
noisy = x_test + noise


def accuracy(net: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((net(images).argmax(1) == labels).float().mean())


print(f"clean {accuracy(model, x_test, y_test):.1%}")
print(f"noisy {accuracy(model, noisy, y_test):.1%}")

# %% [markdown]
# ## What you have
#
# Twenty noisy digits that fail, from the first 300 test digits. The last 500 stay
# aside, to measure on.

# %%
with torch.no_grad():
    wrong = (model(noisy[:300]).argmax(1) != y_test[:300]).nonzero()[:20, 0]
failing, labels = noisy[wrong], y_test[wrong]
measured = slice(500, 1000)

# %% [markdown]
# ## Remember, once for a model
#
# A pass over some hundred old inputs, without labels. It measures how much each
# direction of the weights changes what the network does on them. Save it beside the
# checkpoint: it takes the place of the training data.

# %%
memory = frpt.remember(model, x, progress=False)
memory.save("memory/")
print(memory)

# %% [markdown]
# ## Repair
#
# The model itself is not changed: `fix.model` is a copy. `fix.fixed` was found by
# running it.

# %%
fix = frpt.repair(model, failing, labels, memory)
for kind, images in (("noisy", noisy[measured]), ("clean", x_test[measured])):
    before, after = (
        accuracy(net, images, y_test[measured]) for net in (model, fix.model)
    )
    print(f"other {kind} digits: {before:.1%} before, {after:.1%} now")

# %% [markdown]
# Printing it shows what it predicts to cost, which parameters moved, and notes. Read
# the notes: they name samples that cannot be fixed, contradicting labels, and failures
# that are too much alike.

# %%
print(fix)

# %% [markdown]
# ## With some old samples
#
# If you have some old samples with labels, pass them as `keep=`. Half of them choose
# how strongly the old behaviour is held on to, the other half is reported on.

# %%
kept = frpt.repair(
    model, failing, labels, memory, keep=(x_test[300:500], y_test[300:500])
)
print(kept.kept)

# %% [markdown]
# ## What else could you do?
#
# `compare_repairs` runs the same repair as fine-tuning, elastic weight consolidation
# (EWC) and replay of old digits, all with the same rule to stop. *kind*: other digits
# under the same noise; *old*: clean ones.

# %%
# slow: four repairs
table = frpt.compare_repairs(
    model,
    failing,
    labels,
    memory,
    old=(x_test[measured], y_test[measured]),
    kind=(noisy[measured], y_test[measured]),
    progress=False,
)
print(table)

# %% [markdown]
# ## Did it do what the diagnosis says?
#
# For each fixed sample [reconstruction](../method.md) gives the nearest feature of a
# layer with which the label wins. `explain` compares the way that the features went
# with the way to that target. A cosine near 1 would mean that the repair did there
# what the diagnosis asks for. Here it is far below, and features move further than
# their targets are away: each target is one sample's own small change, while the repair
# had to find one change of the weights for all of them.

# %%
print(fix.explain())

# %% [markdown]
# ## Ship it
#
# The patch holds the parameters that moved. It is refused for other weights than it
# was made for, and can be taken back to the last bit.

# %%
fix.diff.save("patch.safetensors")
repaired = frpt.apply(model, "patch.safetensors")
original = frpt.apply(repaired, "patch.safetensors", back=True)
weights = zip(model.parameters(), original.parameters(), strict=True)
print(all(torch.equal(a, b) for a, b in weights))

# %% [markdown]
# ## Look at it
#
# The report of a diagnosis shows the repair as well: which samples were fixed and
# which old ones broke, with pictures, and the trade-off between the two.

# %%
found = frpt.diagnose(
    model, TensorDataset(noisy[:300], y_test[:300]), gallery=8, progress=False
)
path = found.to_html("report.html", title="Noisy digits", repair=kept)
print(path, f"{path.stat().st_size / 1e6:.1f} MB")
