#!/usr/bin/env python3
"""Cuts the embedded sample out of the four original MNIST files: make.py DIR_WITH_MNIST

The first 2,000 training and the first 1,000 test images with their labels, as gzipped IDX again. The gzip header
carries no time and no name, so the result depends on nothing but the input.
"""

import gzip
import struct
import sys
from pathlib import Path

source, target = Path(sys.argv[1]), Path(__file__).parent
for split, count in [("train", 2000), ("t10k", 1000)]:
    for kind, dims in [("images-idx3", 3), ("labels-idx1", 1)]:
        name = f"{split}-{kind}-ubyte.gz"
        raw = gzip.decompress((source / name).read_bytes())
        header = struct.unpack(f">{1 + dims}I", raw[: 4 + 4 * dims])
        size = 1
        for dim in header[2:]:
            size *= dim
        start = 4 + 4 * dims
        cut = struct.pack(f">{1 + dims}I", header[0], count, *header[2:]) + raw[start : start + count * size]
        (target / name).write_bytes(gzip.compress(cut, compresslevel=9, mtime=0))
