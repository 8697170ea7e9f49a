"""Two CPU ranks fit a line with Horovod's optimizer; rank 0 prints what came of it as JSON.

Each rank sees half of the points. Only with averaged gradients do both reach the line of all points,
bit for bit alike.
"""

import json

import horovod.torch as hvd
import torch


def main() -> None:
    hvd.init()
    inputs = torch.linspace(-1.0, 1.0, 64).unsqueeze(1)[hvd.rank() :: hvd.size()]
    targets = 3.0 * inputs + 0.5 + (0.2 if hvd.rank() == 0 else -0.2)
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(1, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2), named_parameters=model.named_parameters()
    )
    for _ in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    found = torch.cat([model.weight.detach().flatten(), model.bias.detach()])
    everywhere = hvd.allgather(found.unsqueeze(0))
    if hvd.rank() == 0:
        alike = bool((everywhere == everywhere[0]).all())
        print(json.dumps({"weight": found[0].item(), "bias": found[1].item(), "alike": alike}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
