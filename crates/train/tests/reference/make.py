#!/usr/bin/env python3
"""Trains LeNet-5 with PyTorch on the course's job and writes down what came out: pip install torch numpy safetensors

The first 100 images of the sample in crates/data/sample, in their order, batches of 20, SGD with lr 0.01, 100 epochs.
lenet5-init.safetensors holds the initial weights, lenet5.json the loss and accuracy of each epoch, the accuracy on the
1,000 test images, and the sum and the norm of each final tensor. A second, short job has momentum and weight decay.
"""

import gzip
import json
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
SAMPLE = HERE / "../../../data/sample"


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, 10)

    def forward(self, x):
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)
        x = torch.tanh(self.conv3(x)).flatten(1)
        return self.fc2(torch.tanh(self.fc1(x)))


def load(split):
    read = lambda name: gzip.decompress((SAMPLE / name).read_bytes())
    pixels = numpy.frombuffer(read(f"{split}-images-idx3-ubyte.gz"), numpy.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = numpy.frombuffer(read(f"{split}-labels-idx1-ubyte.gz"), numpy.uint8, offset=8)
    images = F.pad(torch.from_numpy(pixels.copy()).float() / 255, (2, 2, 2, 2))
    return (images - 0.1307) / 0.3081, torch.from_numpy(labels.astype(numpy.int64))


def train(weights, images, labels, epochs, batch, **sgd):
    model = LeNet5()
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), **sgd)
    losses, accuracies = [], []
    for _ in range(epochs):
        loss_sum = correct = 0
        for x, y in zip(images.split(batch), labels.split(batch)):
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(y)
            correct += (logits.argmax(1) == y).sum().item()
        losses.append(loss_sum / len(labels))
        accuracies.append(correct / len(labels))
    test_images, test_labels = load("t10k")
    with torch.no_grad():
        test_accuracy = (model(test_images).argmax(1) == test_labels).double().mean().item()
    tensors = {name: tensor.double() for name, tensor in model.state_dict().items()}
    return {
        "epoch_losses": losses,
        "epoch_accuracies": accuracies,
        "test_accuracy": test_accuracy,
        "sums": {name: tensor.sum().item() for name, tensor in tensors.items()},
        "norms": {name: tensor.norm().item() for name, tensor in tensors.items()},
    }


torch.manual_seed(0)
torch.set_num_threads(1)
weights = {name: tensor.clone() for name, tensor in LeNet5().state_dict().items()}
save_file(weights, HERE / "lenet5-init.safetensors")
images, labels = (part[:100] for part in load("train"))
result = {
    "torch": torch.__version__,
    "plain": train(weights, images, labels, epochs=100, batch=20, lr=0.01),
    "momentum": train(weights, images, labels, epochs=10, batch=16, lr=0.02, momentum=0.9, weight_decay=0.01),
}
(HERE / "lenet5.json").write_text(json.dumps(result, indent=1) + "\n")
