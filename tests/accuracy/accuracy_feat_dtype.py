"""Test accuracy of the example with features in 16 bits, beside float32 and plain torch; no tests.

    python tests/accuracy/accuracy_feat_dtype.py DIR [--graphs cora] [--starts python] [--seeds 0 1 2] [--dtypes D]

The words of all graphs but tolokers (see accuracy.py and accuracy_labor.py) are 0 or 1, or one of a few numbers, which
16 bits have exactly. So their rows, divided by their 2-norm, are multiplied by a fixed random matrix of :data:`WIDTH`
columns, which gives numbers that are rounded, nearly all of them. That graph is cut in two parts with its features as
float32 and in each of the dtypes, and trained with the settings of those scripts. The table goes to stdout, progress to
stderr. The exit status is 1 if a mean differs from that of float32 in the same start by more than ``accuracy.LIMIT``
points. ``--alone`` leaves plain torch out.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import reference_sage
import torch
from accuracy import (
    EXAMPLE,
    LIMIT,
    NORM,
    STARTS,
    accuracy_in,
    arguments,
    cell,
    flags_of,
    launched,
    line,
    output,
    repeat,
)  # fmt: skip
from accuracy_labor import FLAGS, GRAPHS

WIDTH = 256
DTYPES = ["float16", "bfloat16"]


def main():
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    more.add_argument("--alone", action="store_true", help="without plain torch")
    args = arguments(__doc__, [name for name in GRAPHS if name != "S"], STARTS, more=[more])
    dtypes = ["float32", *args.dtypes]
    rows, failures = [], []
    for name in args.graphs:
        with tempfile.TemporaryDirectory() as folder:
            path = args.data / f"{name}.npz"
            if name != "tolokers":
                path = project(path, Path(folder) / f"{name}.npz")
            reference = "" if args.alone else cell(reference_of(name, path, args.seeds))
            for dtype in dtypes:
                command = [sys.executable, "-m", "mpigraph", "partition", str(path), "--parts", "2", "--name", name]
                command += [] if dtype == "float32" else ["--feat-dtype", dtype]
                output([*command, "--method", args.method, "-o", f"{folder}/{dtype}"], {})
            for start in args.starts:
                result = {}
                for dtype in dtypes:
                    run = partial(train, f"{folder}/{dtype}", name, STARTS[start])
                    result[dtype] = repeat(f"{name}, {start}, {dtype}", args.seeds, run)["test"]
                    off = np.mean(result[dtype]) - np.mean(result["float32"])
                    if abs(off) > LIMIT:
                        failures.append(f"{name}, {start}: {dtype} is {off:+.2f} from float32")
                rows.append([name, STARTS[start].title, reference, *map(cell, result.values())])
    titles = ["graph", "start", "plain torch", *dtypes]
    print(line(titles), "|---" * len(titles) + "|", *map(line, rows), sep="\n")
    print(f"\nSettings: those of accuracy.py, seeds {args.seeds}, {WIDTH} features.")
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


def reference_of(name, path, seeds):
    """Train plain torch; return the percents."""
    problem = reference_sage.load(path, 0 if name == "tolokers" else NORM)
    return repeat(
        f"{name}, reference", seeds, lambda seed: {"test": reference_sage.train(problem, GRAPHS[name].settings, seed)}
    )["test"]


def train(directory, name, start, seed):
    """Train the example once; return the test accuracy that it prints."""
    s = GRAPHS[name].settings
    flags = f"{flags_of(directory, name, s, seed)} {FLAGS.get(name, '')} --eval_every {s.epochs + 1}"
    return {"test": accuracy_in(launched(start, EXAMPLE, flags))}


def project(path, out):
    """Write a graph with projected features; return its path."""
    with np.load(path, allow_pickle=False) as z:
        data = {key: z[key] for key in z.files if not key.startswith("feat")}
    words = reference_sage.load(path, NORM).feat.numpy()
    matrix = np.random.default_rng(0).standard_normal((words.shape[1], WIDTH), dtype=np.float32)
    feat = words @ matrix / np.float32(np.sqrt(WIDTH))
    np.savez(out, feat=feat, **data)
    for dtype in DTYPES:
        rounded = torch.from_numpy(feat).to(getattr(torch, dtype)).float().numpy()
        print(f"{np.mean(rounded != feat):.1%} of the numbers of {out.stem} are rounded in {dtype}", file=sys.stderr)
    return out


if __name__ == "__main__":
    main()
