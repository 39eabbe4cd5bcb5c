"""Test accuracy of the example with features in 16 bits, beside float32 and plain torch; not collected by pytest.

    python tests/accuracy/accuracy_feat_dtype.py DIR [--graphs cora] [--starts python] [--seeds 0 1 2]

The words of cora and oewn (see accuracy.py) are 0 or 1, which 16 bits have exactly. So their rows, divided by their
2-norm, are multiplied by a fixed random matrix of :data:`WIDTH` columns, which gives numbers that are rounded, nearly
all of them. That graph is cut in two parts with its features as float32, float16 and bfloat16, and trained with the
settings of accuracy.py. The table goes to stdout, progress to stderr. The exit status is 1 if a mean differs from that
of float32 in the same start by more than ``accuracy.LIMIT`` points.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import reference_sage
import torch
from accuracy import GRAPHS, LIMIT, NORM, STARTS, arguments, cell, line, output, repeat, train

WIDTH = 256
DTYPES = ["float32", "float16", "bfloat16"]


def main():
    args = arguments(__doc__, ["cora", "oewn"], STARTS)
    rows, failures = [], []
    for name in args.graphs:
        with tempfile.TemporaryDirectory() as folder:
            path = project(args.data / f"{name}.npz", Path(folder) / f"{name}.npz")
            plain = partial(reference_sage.train, reference_sage.load(path, NORM), GRAPHS[name].settings)
            reference = repeat(f"{name}, reference", args.seeds, lambda seed, plain=plain: {"test": plain(seed)})[
                "test"
            ]
            for dtype in DTYPES:
                command = [sys.executable, "-m", "mpigraph", "partition", str(path), "--parts", "2", "--name", name]
                command += [] if dtype == "float32" else ["--feat-dtype", dtype]
                output([*command, "--method", args.method, "-o", f"{folder}/{dtype}"], {})
            for start in args.starts:
                result = {}
                for dtype in DTYPES:
                    run = partial(train, f"{folder}/{dtype}", name, STARTS[start])
                    result[dtype] = repeat(f"{name}, {start}, {dtype}", args.seeds, run)["test"]
                    off = np.mean(result[dtype]) - np.mean(result["float32"])
                    if abs(off) > LIMIT:
                        failures.append(f"{name}, {start}: {dtype} is {off:+.2f} from float32")
                rows.append([name, STARTS[start].title, *map(cell, [reference, *result.values()])])
    titles = ["graph", "start", "plain torch", *DTYPES]
    print(line(titles), "|---" * len(titles) + "|", *map(line, rows), sep="\n")
    print(f"\nSettings: those of accuracy.py, seeds {args.seeds}, {WIDTH} features.")
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


def project(path, out):
    """Write a graph with projected features; return its path."""
    with np.load(path, allow_pickle=False) as z:
        data = {key: z[key] for key in z.files if not key.startswith("feat")}
    words = reference_sage.load(path, NORM).feat.numpy()
    matrix = np.random.default_rng(0).standard_normal((words.shape[1], WIDTH), dtype=np.float32)
    feat = words @ matrix / np.float32(np.sqrt(WIDTH))
    np.savez(out, feat=feat, **data)
    for dtype in DTYPES[1:]:
        rounded = torch.from_numpy(feat).to(getattr(torch, dtype)).float().numpy()
        print(f"{np.mean(rounded != feat):.1%} of the numbers of {out.stem} are rounded in {dtype}", file=sys.stderr)
    return out


if __name__ == "__main__":
    main()
