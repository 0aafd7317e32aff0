"""The networks of the comparison in PyTorch, as ringstep has them."""

import torch
from torch import nn


def lenet5():
    return nn.Sequential(
        *[nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)],
        *[nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)],
        *[nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten()],
        *[nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)],
    )


def cnn():
    return nn.Sequential(
        *[nn.Conv2d(3, 6, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)],
        *[nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()],
        *[nn.Linear(400, 120), nn.ReLU(inplace=True), nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, 10)],
    )


def vgg11():
    layers, channels = [], 3
    for filters in [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]:
        if filters == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU(inplace=True)]
            channels = filters
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


class BasicBlock(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.body = nn.Sequential(
            *[nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(inplace=True)],
            *[nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)],
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != filters:
            conv = nn.Conv2d(channels, filters, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(filters))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def resnet18():
    layers, channels = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    for filters, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [BasicBlock(channels, filters, stride), BasicBlock(filters, filters, 1)]
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


MODELS = {"lenet5": lenet5, "cnn": cnn, "vgg11": vgg11, "resnet18": resnet18}


def make(name):
    """A network whose weights, and what batch norm has seen, are the same numbers each time."""
    torch.manual_seed(0)
    model = MODELS[name]()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, 0, 0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
    return model


def make_images(name, batch):
    channels = 1 if name == "lenet5" else 3
    return torch.randn(batch, channels, 32, 32)
