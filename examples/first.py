"""What should the first stage of a digit classifier have produced? The README's example; run it from the root."""

from safetensors.torch import load_file

import frpt

model = frpt.zoo.simple_cnn("mnist").eval()  # any nn.Module will do
model.load_state_dict(load_file("results/checkpoints/mnist_simple_cnn_0.9793_b1737d7e.safetensors"))
_, (x, y) = frpt.data.digits()  # 1,000 real digits and their labels
x = (x - 0.1307) / 0.3081

rev = frpt.Reverser(model, x[:8])  # reads the network and changes nothing in it
rec = rev.reconstruct(x, y, at="stage1")
print(f"the network is wrong about {rec.corrected.sum()} of {len(y)} digits")
right = rev.run(x, "stage1", rec.target).argmax(1) == y
print(f"run on from the targets it is right about {right.sum()} of {len(y)}")
print(f"for that, features of the wrong ones move by {rec.deviation[rec.corrected].mean():.1%} of their norm")
