"""A CNN trained on digits, one of its layers (stage2) damaged, and looked for; the page is report.html."""

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import frpt
from frpt.data.digits import digits

torch.manual_seed(0)
(x, y), (x_test, y_test) = digits(0)
model = frpt.zoo.simple_cnn("mnist")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for rows in torch.randint(len(x), (400, 128)):
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
with torch.no_grad():
    weight = model.get_submodule("stage2.0").weight
    weight += 0.05 * torch.randn_like(weight) * weight.norm()

found = frpt.diagnose(model.eval(), TensorDataset(x_test, y_test), at=["stage2", "stage1"])
print(found)
found.to_html("report.html")
