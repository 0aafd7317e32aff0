"""Writes a network as PyTorch has it for other runtimes: MODEL-BATCH.onnx, and MODEL-BATCH.npz with images and what the
network makes of them. The batch is fixed, so that a runtime can choose its algorithms for it.

    export.py DIRECTORY vgg11-64 resnet18-1 ...
"""

import sys
import warnings
from pathlib import Path

import numpy
import torch
from models import make, make_images


def main():
    directory, names = Path(sys.argv[1]), sys.argv[2:]
    directory.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", DeprecationWarning)
    for name in names:
        model_name, batch = name.split("-")
        model, images = make(model_name).eval(), make_images(model_name, int(batch))
        # The newer exporter needs one more package, and these networks nothing that the older one cannot do.
        torch.onnx.export(model, (images,), directory / f"{name}.onnx", dynamo=False)
        with torch.inference_mode():
            numpy.savez(directory / f"{name}.npz", images=images.numpy(), scores=model(images).numpy())


if __name__ == "__main__":
    main()
