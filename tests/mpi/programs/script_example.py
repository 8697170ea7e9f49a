"""An example, run as it is with an engine of choice; rank 0 saves what its models became.

Called as ``script_example.py EXAMPLE BACKEND FILE``.
"""

import runpy
import sys
from functools import partial

import torch
from torch import nn

import hvdtrain

example, backend, file = sys.argv[1:]
hvdtrain.start = partial(hvdtrain.start, backend=backend)
names = runpy.run_path(example, run_name="__main__")
models = {name: value for name, value in names.items() if isinstance(value, nn.Module)}
states = {name: getattr(model, "module", model).state_dict() for name, model in models.items()}
if names["run"].rank == 0:
    torch.save(states, file)
