"""The script of plain_before.py on any number of ranks: each works on its part of the same batches of 60."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils import data

import hvdtrain

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
training = data.TensorDataset(images[:1400], labels[:1400])
held_out = data.TensorDataset(images[1400:], labels[1400:])

with hvdtrain.start() as run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    model, optimizer = run.distribute(model, optimizer)
    loader = run.loader(training, batch_size=60 // run.size, shuffle=True)
    test_loader = run.loader(held_out, batch_size=60, train=False)

    for _ in range(10):
        for inputs, targets in run.progress(loader):
            loss = criterion(model(inputs), targets)
            run.step(loss, optimizer)

    right = 0
    with torch.no_grad():
        for inputs, targets in test_loader:
            right += (model(inputs).argmax(1) == targets).sum().item()
    accuracy = run.sum(right).item() / len(held_out)
    if run.rank == 0:
        print(json.dumps({"accuracy": accuracy}))
