"""Settings shared by all tests: one thread, and reproducible hypothesis runs."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("frpt", max_examples=25, deadline=None, derandomize=True)
settings.load_profile("frpt")
