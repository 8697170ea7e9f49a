"""Every call of the Backend protocol, checked on every rank; the engine's name is the argument."""

import os
import sys

import torch

from hvdtrain.backends.start import start_backend
from hvdtrain.topology.environ import find_world

backend = start_backend(sys.argv[1], find_world(os.environ))
rank, size = backend.rank, backend.size

mine = torch.tensor([[rank + 1.0, 10.0 * rank]], dtype=torch.float64)
total = backend.sum(mine, "total")
assert total.tolist() == [[size * (size + 1) / 2, 10.0 * size * (size - 1) / 2]]
assert mine.tolist() == [[rank + 1.0, 10.0 * rank]], "the argument must stay as it was"

assert backend.broadcast({"from": rank}) == {"from": 0}
assert backend.gather(("rank", rank)) == [("rank", other) for other in range(size)]

norm = torch.nn.BatchNorm1d(2)
norm.running_mean.fill_(float(rank + 5))
backend.agree_buffers(norm)
assert norm.running_mean.tolist() == [5.0, 5.0]

# Replicas start as rank 0's, state of the optimizer included.
torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
before = [parameter.detach().clone() for parameter in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=1.0 + rank, momentum=0.5)
if rank == 0:
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, 2.0)
replica = backend.distribute(model, optimizer)
weights = backend.gather([parameter.tolist() for parameter in replica.module.parameters()])
assert all(theirs == weights[0] for theirs in weights)
if rank == 0:
    assert all(torch.equal(a, b) for a, b in zip(before, replica.module.parameters(), strict=True))
assert [group["lr"] for group in replica.optimizer.param_groups] == [1.0]
buffers = [replica.optimizer.state[p]["momentum_buffer"] for p in replica.module.parameters()]
assert all(torch.equal(buffer, torch.full_like(buffer, 2.0)) for buffer in buffers)

# A gradient is the mean over the ranks: d/dw of (rank + 1) * sum(w x) with x = 1 is rank + 1.
start = [parameter.detach().clone() for parameter in replica.module.parameters()]
replica.optimizer.zero_grad()
(replica.model(torch.ones(1, 3)).sum() * (rank + 1)).backward()
replica.optimizer.step()
step = 0.5 * 2.0 + (size + 1) / 2
for old, new in zip(start, replica.module.parameters(), strict=True):
    assert torch.allclose(old - new, torch.full_like(old, step)), (old - new, step)
backend.close()
print(f"rank {rank} of {size} ok", flush=True)
