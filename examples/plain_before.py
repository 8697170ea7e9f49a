"""A usual PyTorch script: a small network learns scikit-learn's handwritten digits, in one process."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils import data

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
training = data.TensorDataset(images[:1400], labels[:1400])
held_out = data.TensorDataset(images[1400:], labels[1400:])

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
loader = data.DataLoader(training, batch_size=60, shuffle=True)
test_loader = data.DataLoader(held_out, batch_size=60)

for _ in range(10):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()

right = 0
with torch.no_grad():
    for inputs, targets in test_loader:
        right += (model(inputs).argmax(1) == targets).sum().item()
accuracy = right / len(held_out)
print(json.dumps({"accuracy": accuracy}))
