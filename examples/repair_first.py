"""Fix twenty digits that fail under noise, without the training data. The README's example; run it from the root."""

import torch
from safetensors.torch import load_file

import frpt

model = frpt.zoo.simple_cnn("mnist").eval()  # any nn.Module will do
model.load_state_dict(load_file("results/checkpoints/mnist_simple_cnn_0.9793_b1737d7e.safetensors"))
(old, _), (x, y) = frpt.data.digits()
old, x = (old - 0.1307) / 0.3081, (x - 0.1307) / 0.3081
noisy = x + 1.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
failing = (model(noisy[:500]).argmax(1) != y[:500]).nonzero()[:20, 0]  # all that you have

memory = frpt.remember(model, old, progress=False)  # once: 500 old inputs, no labels; keep it beside the weights
fix = frpt.repair(model, noisy[failing], y[failing], memory)  # a repaired copy and a patch

print(f"{fix.fixed.sum()} of {len(failing)} failing digits are right now")
for kind, images in (("noisy", noisy[500:]), ("clean", x[500:])):
    before, after = ((net(images).argmax(1) == y[500:]).float().mean() for net in (model, fix.model))
    print(f"500 other {kind} digits: {before:.0%} right before, {after:.0%} now")
