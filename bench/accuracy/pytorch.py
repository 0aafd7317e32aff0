"""VGG-11 on CIFAR-10 with the recipe of experiments/vgg11-cifar10-accuracy.toml, in PyTorch on two threads: prints a line
an epoch with training loss and accuracy, test accuracy and seconds. accuracy.sh runs it beside ringstep.
"""

import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))
from engine.models import MODELS

BATCH, LR, MOMENTUM, WEIGHT_DECAY, WARM_UP_EPOCHS = 128, 0.1, 0.9, 5e-4, 0.5
MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32).reshape(3, 1, 1)
DEVIATION = np.array([0.2470, 0.2435, 0.2616], dtype=np.float32).reshape(3, 1, 1)
PADDING = 4


def read(folder, names):
    """Pixels and labels; an image is a label and its pixels, colour by colour."""
    raw = np.concatenate([np.fromfile(folder / name, dtype=np.uint8).reshape(-1, 3073) for name in names])
    return raw[:, 1:].reshape(-1, 3, 32, 32), torch.tensor(raw[:, 0], dtype=torch.long)


def tensor(pixels):
    numbers = torch.from_numpy((pixels.astype(np.float32) / 255 - MEAN) / DEVIATION)
    return numbers.to(memory_format=torch.channels_last)


def augmented(padded, images, random):
    """A window of each padded image, every other one mirrored."""
    out = np.empty((len(images), 3, 32, 32), np.uint8)
    for at, image in enumerate(images):
        y, x = random.integers(0, 2 * PADDING + 1, 2)
        window = padded[image, :, y : y + 32, x : x + 32]
        out[at] = window[:, :, ::-1] if random.random() < 0.5 else window
    return out


def main():
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(2)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    train, labels = read(folder, [f"data_batch_{i}.bin" for i in range(1, 6)])
    test, test_labels = read(folder, ["test_batch.bin"])
    padded = np.pad(train, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    model = MODELS["vgg11"]().to(memory_format=torch.channels_last)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    steps = math.ceil(len(labels) / BATCH)
    total, warm_up, step = epochs * steps, int(WARM_UP_EPOCHS * steps), 0
    for epoch in range(epochs):
        model.train()
        order, started, loss_sum, correct = random.permutation(len(labels)), time.time(), 0.0, 0
        for first in range(0, len(labels), BATCH):
            chosen = order[first : first + BATCH]
            if step < warm_up:
                share = (step + 1) / warm_up
            else:
                share = 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up)))
            for group in optimizer.param_groups:
                group["lr"] = LR * share
            optimizer.zero_grad()
            logits = model(tensor(augmented(padded, chosen, random)))
            batch_loss = loss(logits, labels[chosen])
            batch_loss.backward()
            optimizer.step()
            step += 1
            loss_sum += batch_loss.item() * len(chosen)
            correct += (logits.argmax(1) == labels[chosen]).sum().item()
        model.eval()
        right = 0
        with torch.inference_mode():
            for first in range(0, len(test_labels), 500):
                part = slice(first, first + 500)
                right += (model(tensor(test[part])).argmax(1) == test_labels[part]).sum().item()
        accuracies = f"{correct / len(labels):.2%} {right / len(test_labels):.2%}"
        print(f"{epoch}: {loss_sum / len(labels):.4f} {accuracies}, {time.time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
