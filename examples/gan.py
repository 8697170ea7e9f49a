"""A small GAN draws handwritten digits: two models and two optimizers on any number of ranks."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn

import hvdtrain

GLOBAL_BATCH = 60  # images in a step over all ranks
NOISE = 16

images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 8 - 1
criterion = nn.BCEWithLogitsLoss()

with hvdtrain.start() as run:
    generator = nn.Sequential(nn.Linear(NOISE, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    optimizer_g = torch.optim.SGD(generator.parameters(), lr=0.2)
    optimizer_d = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    generator, optimizer_g = run.distribute(generator, optimizer_g)
    discriminator, optimizer_d = run.distribute(discriminator, optimizer_d)
    dataset = torch.utils.data.TensorDataset(images)
    loader = run.loader(dataset, batch_size=GLOBAL_BATCH // run.size)
    test_loader = run.loader(dataset, batch_size=GLOBAL_BATCH // run.size, train=False)
    random = torch.Generator().manual_seed(0)

    def draw_noise(count: int) -> torch.Tensor:
        """This rank's rows of the noise of the global batch, which is the same for any number of ranks."""
        rows = torch.randn(GLOBAL_BATCH, NOISE, generator=random)
        return rows[run.rank :: run.size][:count].to(run.device)

    for _ in run.epochs(5):
        for (real,) in run.progress(loader):
            made = generator(draw_noise(len(real)))
            ones = torch.ones(len(real), 1, device=run.device)
            loss_d = criterion(discriminator(real), ones) + criterion(discriminator(made.detach()), 0 * ones)
            run.step(loss_d, optimizer_d)
            run.step(criterion(discriminator(made), ones), optimizer_g)

    fooled = told = 0
    with torch.no_grad():
        for (real,) in test_loader:
            told += (discriminator(real) > 0).sum().item()
            fooled += (discriminator(generator(draw_noise(len(real)))) > 0).sum().item()
    told, fooled = run.sum(told).item() / len(dataset), run.sum(fooled).item() / len(dataset)
    if run.rank == 0:
        print(json.dumps({"ranks": run.size, "real_taken_for_real": told, "made_taken_for_real": fooled}))
