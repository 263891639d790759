# %% [markdown]
# # A planner with two inputs
#
# The paper's trajectory planner takes a camera image and the state of the car, and
# gives eight poses: where the car should be in the next four seconds. There are no
# classes here: the label is the trajectory itself. We drive it on roads that we draw,
# let the light fail, and ask what its layers should have produced.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor

import frpt

# %% [markdown]
# ## Roads
#
# A road has a curvature, which can be seen in the image only, and the car a speed and
# an acceleration, which are in its status only. The right trajectory needs both.


# %%
def roads(count: int, light: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Images (n, 3, 32, 128) from above, status (n, 8), trajectories (n, 8, 3)."""
    curvature = 0.06 * torch.rand(count) - 0.03
    speed, acceleration = 3 + 9 * torch.rand(count), 2 * torch.rand(count) - 1
    ahead = torch.linspace(40, 0, 32)
    column = 64 + 1.2 * curvature[:, None] * ahead**2
    road = torch.sigmoid(4 - (torch.arange(128) - column[..., None]).abs())
    images = light * (
        0.2 + 0.6 * road[:, None].expand(-1, 3, -1, -1)
    ) + 0.02 * torch.randn(count, 3, 32, 128)
    turn = torch.bucketize(curvature, torch.tensor([-0.01, 0.01]))
    status = torch.cat(
        [
            torch.stack([speed, 0 * speed, acceleration, 0 * speed], 1) / 10,
            F.one_hot(turn, 4),
        ],
        1,
    )
    time = torch.arange(1, 9) / 2
    way = speed[:, None] * time + acceleration[:, None] * time**2 / 2
    heading = curvature[:, None] * way
    radius = 1 / curvature[:, None]
    return (
        images,
        status,
        torch.stack(
            [radius * heading.sin(), radius * (1 - heading.cos()), heading], -1
        ),
    )


torch.manual_seed(0)
images, status, trajectory = roads(384)
figure, axes = plt.subplots(1, 3, figsize=(10, 1.2))
for axis, image in zip(axes, images, strict=False):
    axis.imshow(image.permute(1, 2, 0).clamp(0, 1))
    axis.axis("off")
plt.show()

# %% [markdown]
# ## Train the planner
#
# To keep this short, the ResNet-34 backbone stays as it was initialised; only its
# batch-norm statistics are taken from the roads. What follows it is trained, on
# features that are computed once.

# %%
model = frpt.zoo.planner("resnet34")
with torch.no_grad():
    model.train()(images[:128], status[:128])
    model.eval()
    features = model.backbone.features((images - model.mean) / model.std)

STEPS = 300
trained = [p for name, p in model.named_parameters() if not name.startswith("backbone")]
optimizer = torch.optim.AdamW(trained, lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for rows in torch.randint(len(images), (STEPS, 64)):
    fused = model.fusion(model.project(features[rows]), model.status(status[rows]))
    planned = model.trajectory(model.planning2(model.planning1(fused))).reshape(
        -1, 8, 3
    )
    optimizer.zero_grad()
    F.smooth_l1_loss(planned, trajectory[rows]).backward()
    optimizer.step()
    schedule.step()


def displacement(planned: Tensor, wanted: Tensor) -> Tensor:
    """Mean distance in the plane over the eight poses, for each sample, in metres."""
    return (planned - wanted)[..., :2].norm(dim=-1).mean(-1)


light, dark = roads(16), roads(16, light=0.4)
with torch.no_grad():
    for name, (image, state, wanted) in {"daylight": light, "dusk": dark}.items():
        away = displacement(model(image, state), wanted).mean()
        print(f"{name}: {away:.2f} m from the right trajectory")

# %% [markdown]
# ## What should the layers have produced at dusk?
#
# The two inputs go in as a tuple, and the right trajectory is the label: a tensor
# shaped like the output. `closed` is the share of the output's error that is gone
# when the planner runs on from the target.

# %%
image, state, wanted = dark
rev = frpt.Reverser(model, (image, state))
layers = ["planning2", "planning1", "fusion"]
found = rev.reconstruct((image, state), wanted, at=layers)
for name, rec in found.items():
    away = displacement(rev.run((image, state), name, rec.target), wanted).mean()
    print(
        f"{name:9} {rec.closed.mean():.1%} closed, "
        f"deviation {rec.deviation.mean():.2f}, "
        f"{away:.3f} m from the right trajectory"
    )

# %%
with torch.no_grad():
    before = model(image, state)
after = rev.run((image, state), "fusion", found["fusion"].target)
worst = displacement(before, wanted).argsort(descending=True)[:3]
figure, axes = plt.subplots(1, 3, figsize=(10, 3))
for axis, row in zip(axes, worst, strict=True):
    for poses, style, name in (
        (wanted, "k-", "right"),
        (before, "C1o--", "planned"),
        (after, "C0x", "from the target"),
    ):
        axis.plot(poses[row, :, 1], poses[row, :, 0], style, label=name)
    axis.set_xlabel("to the side, m")
axes[0].set_ylabel("ahead, m")
axes[0].legend()
plt.show()

# %% [markdown]
# ## Which input's reading would have to change?
#
# `project` is what the planner makes of the image, `status` what it makes of the
# state of the car. They are two branches that meet in `fusion`. A layer inside one
# branch can be asked for as well; the other branch is held as it is.

# %%
for name in ("project", "status"):
    rec = rev.reconstruct((image, state), wanted, at=name)
    print(
        f"{name:8} {rec.closed.mean():.1%} closed, deviation {rec.deviation.mean():.2f}"
    )

# %% [markdown]
# The image branch can take back most of the error. The status branch takes back less,
# by a larger change. Both would have to say something quite different: deviations
# above one. The curvature of the road is not in the status. That does not tell which
# branch is at fault; we know that it was the light, the planner does not.
#
# Training with such labels works as with classes: `frpt.post_train(model, dataset,
# at="fusion", metric="ade", ...)`, with a data set of items `((image, status),
# trajectory)`.
