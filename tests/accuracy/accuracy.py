"""Test accuracy of the example beside plain torch, in all starts, samplers and dtypes; not collected by pytest.

    python tests/accuracy/accuracy.py STUDY DIR [--graphs cora] [--starts python servers-1] [--seeds 0 1 2]

A study is "starts", "samplers" or "dtypes" (:data:`STUDIES`). DIR holds the files <graph>.npz, made from
public data sets with the keys that examples/README.md lists. cora is Planetoid's (of PyG), with its split.
amazon_computers (``Amazon(name="Computers")``) and coauthor_cs (``Coauthor(name="CS")``) are split at random, 20 nodes
of each class to train and 30 to validate; tolokers is that of the heterophilous graphs of Platonov et al. (2023), with
its first split; S is generated. oewn are the synsets of Open English WordNet with 2000 words of their glosses as
features and their lexicographer files as classes, half of them at random to train, a quarter to validate.

Each graph is partitioned in two and trained in each start by the example, with the settings and seeds of the loop in
plain torch (``reference_sage.py``). The features of "dtypes" are 0 or 1 or one of a few numbers,
which 16 bits have exactly, so their rows are multiplied by a fixed random matrix first. README's cells go to stdout,
progress to stderr. The exit status is 1 if a mean is farther from what it is compared with than the study allows.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch looks

import numpy as np
import reference_sage
import torch
from reference_sage import Settings


class Start(NamedTuple):
    """A start of an example: number of ranks (0: without mpiexec), and of servers on each node."""

    title: str
    ranks: int
    num_servers: int
    ranks_per_node: int = 0


class Study(NamedTuple):
    """What is compared: with plain torch, or with the first variant.

    Attributes:
        graphs: their names.
        variants: title -> options of ``partition`` and flags of the example.
        plain: plain torch is trained, too.
        least, most: points that a mean may differ.
        with_first: compare with the first variant.
    """

    graphs: tuple[str, ...]
    variants: dict[str, tuple[str, str]]
    plain: bool
    least: float
    most: float
    with_first: bool = True


SETTINGS = {
    "cora": Settings((25, 10), 64, 0.5, 0.5, 0.01, 5e-4, epochs=100, batch_size=140),
    "amazon_computers": Settings((10, 10), 64, 0.5, 0.5, 0.005, 5e-4, epochs=100, batch_size=100),
    "oewn": Settings((5, 5), 64, 0.0, 0.5, 0.01, 0.0, epochs=2, batch_size=1024),
    "coauthor_cs": Settings((10, 10), 64, 0.5, 0.5, 0.005, 5e-4, epochs=30, batch_size=100),
    "tolokers": Settings((10, 10), 128, 0.0, 0.2, 0.01, 0.0, epochs=50, batch_size=500),
    "S": Settings((10, 25), 64, 0.0, 0.5, 0.005, 0.0, epochs=6, batch_size=2000),
}
S = "--nodes 200000 --edges 5000000 --feat-dim 100 --classes 47 --homophily 0.85 --block-share 0.65 --block-size 400"
AS_THEY_ARE = ("tolokers", "S")  # their rows are not divided by their 2-norm
WIDTH = 256  # of the random matrix
STARTS = {
    "python": Start("`python`", 0, 0),
    "servers-0": Start("4 ranks, 0 servers", 4, 0),
    "servers-1": Start("4 ranks, 1 server", 4, 1),
    "servers-2": Start("4 ranks, 2 servers", 4, 2),
    "two-nodes": Start("2 simulated nodes, 1 server each", 4, 1, ranks_per_node=2),
}
LABOR = {f"`batch_dependency={n}`": ("", f"--sampler labor --batch_dependency {n}") for n in (4, 16, 64)}
SAMPLERS = {"uniform": ("", ""), "LABOR": ("", "--sampler labor")}
SAMPLERS |= {"`layer_dependency`": ("", "--sampler labor --layer_dependency")} | LABOR
DTYPES = {"float32": ("", "")} | {name: (f"--feat-dtype {name}", "") for name in ("float16", "bfloat16")}
STUDIES = {
    "starts": Study(("cora", "amazon_computers", "oewn"), {"example": ("", "")}, True, -1.5, 1.5, with_first=False),
    "samplers": Study(tuple(SETTINGS), SAMPLERS, False, -0.5, 100),
    "dtypes": Study(tuple(SETTINGS)[:-1], DTYPES, True, -1.5, 1.5),
}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE = 900.0  # seconds of one run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--graphs", nargs="+", choices=SETTINGS)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--method", default="metis", help="how a graph is partitioned (%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    study, wrong = STUDIES[args.study], []
    show(["graph", "start", *(["plain torch"] if study.plain else []), *study.variants])
    for name in args.graphs or study.graphs:
        with tempfile.TemporaryDirectory() as folder:
            plain = prepare(args, study, name, Path(folder))
            base = repeat(f"{name}, plain torch", args.seeds, plain) if study.plain else []
            for start in args.starts:
                results = {}
                for title, (_, flags) in study.variants.items():
                    words = f"{flags_of(name, f'{folder}/{title}')} {flags}"
                    run = partial(train, name, STARTS[start], words)
                    results[title] = repeat(f"{name}, {start}, {title}", args.seeds, run)
                columns = [base, *results.values()] if study.plain else list(results.values())
                show([name, STARTS[start].title, *map(cell, columns)])
                yardstick = next(iter(results.values())) if study.with_first else base
                for title, percents in results.items():
                    off = np.mean(percents) - np.mean(yardstick)
                    wrong += (
                        [] if study.least <= off <= study.most else [f"{name}, {start}, {title}: {off:+.2f} points"]
                    )
    print("\n".join(wrong), file=sys.stderr)
    sys.exit(bool(wrong))


def prepare(args: Any, study: Study, name: str, folder: Path) -> Callable[[int], float]:
    """Write the parts of a graph, a folder for each variant; return the training by plain torch."""
    path = args.data / f"{name}.npz"
    source = folder / "source"
    source.mkdir()
    if name == "S":
        output([sys.executable, "-m", "mpigraph", "generate", *S.split(), "--train-fraction", "0.08", "-o", source])
    else:
        dense = reference_sage.with_dense_rows(path, source)
        source = path = projected(dense) if args.study == "dtypes" and name != "tolokers" else dense
    for title, (options, _) in study.variants.items():
        command = [sys.executable, "-m", "mpigraph", "partition", source, "--parts", "2", "--name", name]
        output([*command, *options.split(), "--method", args.method, "-o", folder / title])
    plain = reference_sage.load(path, norm_of(name)) if study.plain else None
    return lambda seed: reference_sage.train(plain, SETTINGS[name], seed)


def projected(path: Path) -> Path:
    """Replace the features of a file by numbers that 16 bits round, nearly all of them."""
    with np.load(path, allow_pickle=False) as z:
        data = {key: z[key] for key in z.files}
    words = reference_sage.load(path, 2).feat.numpy()
    matrix = np.random.default_rng(0).standard_normal((words.shape[1], WIDTH), dtype=np.float32)
    np.savez(path, **data | {"feat": words @ matrix / np.float32(np.sqrt(WIDTH))})
    return path


def norm_of(name: str) -> int:
    return 0 if name in AS_THEY_ARE else 2


def flags_of(name: str, folder: str) -> str:
    """The settings as flags of the example."""
    where = f"--part_config {folder}/{name}.json --graph_name {name} --norm {norm_of(name)} --eval_every 1000"
    s = SETTINGS[name]
    return (
        f"{where} --num_hidden {s.hidden} --fan_out {','.join(map(str, s.fanouts))} --feat_drop {s.feat_drop} "
        f"--dropout {s.dropout} --lr {s.lr} --weight_decay {s.weight_decay} --batch_size {s.batch_size} "
        f"--num_epochs {s.epochs}"
    )


def train(name: str, start: Start, flags: str, seed: int) -> float:
    """Train an example once, and evaluate it after the last epoch; return the test accuracy that it prints."""
    env = {"MPIGRAPH_RANKS_PER_NODE": str(start.ranks_per_node)} if start.ranks_per_node else {}
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    launcher = [mpiexec, "-n", start.ranks] if start.ranks else []
    script = EXAMPLES / "node_classification.py"
    words = [*flags.split(), "--seed", seed, "--num_servers", start.num_servers]
    printed = output([*launcher, sys.executable, script, *words], env)
    found = re.search(r"^test accuracy ([0-9.]+)", printed, re.MULTILINE)
    assert found is not None, printed
    return float(found[1])


def output(command: list[Any], env: dict[str, str] | None = None) -> str:
    """Run a command to its end; return what it printed, and stop with that if it failed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process: Any = subprocess.Popen(list(map(str, command)), env=os.environ | (env or {}), **pipes)
    try:
        printed = process.communicate(timeout=DEADLINE)[0]
    finally:
        process.terminate()  # a launcher takes its ranks with it
    if process.returncode:
        sys.exit(f"{command}\nended with {process.returncode}:\n{printed}")
    return str(printed)


def repeat(what: str, seeds: list[int], run: Callable[[int], float]) -> list[float]:
    """Run once for each seed; return the percents."""
    percents = []
    for seed in seeds:
        begin = time.perf_counter()
        percents.append(100 * run(seed))
        print(f"{time.perf_counter() - begin:6.1f} s  {what}, seed {seed}: {percents[-1]:.2f}", file=sys.stderr)
    return percents


def cell(percents: list[float]) -> str:
    return f"{np.mean(percents):.1f} ({np.ptp(percents):.1f})"


def show(cells: list[str]) -> None:
    """Print a line of the table."""
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
