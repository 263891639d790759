# %% [markdown]
# # Your own training loop
#
# If you have a training loop of your own, you need three pieces: `frpt.freeze` makes
# the part before a layer trainable and keeps everything else as it is;
# `frpt.FeatureTap` reads the layer's feature from your forward pass;
# `frpt.LossBalance` weighs the distance to the targets against your loss. Here the
# targets stay in memory; `examples/loop_plain.py` reads them from a store on disk,
# `examples/loop_lightning.py` and `examples/loop_trainer.py` use Lightning and the
# Hugging Face `Trainer`.

# %%
import torch
import torch.nn.functional as F

import frpt

torch.manual_seed(0)
(x, y), (x_test, y_test) = frpt.data.digits()
x, y = x[:2000], y[:2000]

STEPS = 300
model = frpt.zoo.simple_cnn("mnist")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for rows in torch.randint(len(x), (STEPS, 64)):
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
model.eval()


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        return float((model(x_test).argmax(1) == y_test).float().mean())


print(f"test accuracy {accuracy():.1%}")

# %% [markdown]
# ## Targets
#
# What should `stage2` have produced for each training digit? For digits that are
# right, the answer is what it did produce.

# %%
AT = "stage2"
rev = frpt.Reverser(model, x[:8])
rec = rev.reconstruct(x, y, at=AT)
targets = rec.target
print(rec)

# %% [markdown]
# ## The loop
#
# Everything that is not in `frozen.trainable()` stays as it is, and modules of the
# frozen part stay in evaluation mode through `model.train()`. `frozen.check()`
# compares them bit for bit at the end. Leaving the `with` block removes hooks and
# restores what was trainable before.

# %%
balance = frpt.LossBalance(c_rec=0.3)
with frpt.freeze(model, rev, AT) as frozen, frpt.FeatureTap(model, AT) as tap:
    print("trained:", ", ".join(frozen.parameters))
    optimizer = torch.optim.AdamW(frozen.trainable(), lr=1e-4)
    for epoch in range(3):
        model.train()
        for rows in torch.randperm(len(x)).split(64):
            task = F.cross_entropy(
                model(x[rows]), y[rows]
            )  # the tap sees this forward pass
            distance = F.mse_loss(tap.value, targets[rows])
            loss = balance(task, distance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(
            f"epoch {epoch + 1}: task loss {task:.3f}, distance {distance:.5f}, "
            f"weight {balance.weight:.3g}, test accuracy {accuracy():.1%}"
        )
    frozen.check()

# %% [markdown]
# The weight λ of the distance is `c_rec` times the ratio of the two losses, smoothed
# over steps and at most 10. If targets are near the features, as here, it is at that
# bound, and a larger `c_rec` changes nothing.

# %% [markdown]
# ## The control
#
# Before you believe a gain, run the same loop once more with `targets = rec.anchor`:
# the features of the starting model, in which there is no label. And once with
# `c_rec=0`, which is plain back-propagation. [Post-train with
# controls](post_train.ipynb) explains why, and `frpt.compare` does it in one call.
