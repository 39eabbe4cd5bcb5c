"""What must not change: digests of minibatches, shards, trained weights and resumed jobs, here and in another commit.

    python tests/golden/golden.py                # this tree: layouts must agree with each other; prints the digests
    python tests/golden/golden.py --with COMMIT  # and with those of another commit, which runs in a tree of its own

Ends with 1 if a digest differs, between layouts or between commits, or is missing here. Run it after a change that is
to change no result. Minutes on two cores; ``--only draws`` takes one part. Not a test that pytest collects: what is
right stands in the tests, what was so far stands in the other commit.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
Digests = dict[str, set[str]]

# Ranks, servers of a node, ranks of a node (0: all), way to read remote rows, way to sample.
LAYOUTS = [
    (1, 0, 0, "packed", "sparse"),
    (2, 0, 0, "packed", "sparse"),
    (2, 1, 0, "packed", "sparse"),
    (2, 0, 1, "packed", "sparse"),
    (2, 0, 1, "rma", "alltoallv"),
    (3, 1, 0, "packed", "sparse"),
    (3, 0, 2, "rma", "sparse"),
    (3, 0, 2, "packed", "alltoallv"),
    (4, 0, 0, "packed", "sparse"),
    (4, 2, 0, "packed", "sparse"),
    (4, 0, 1, "packed", "alltoallv"),
    (4, 0, 2, "rma", "sparse"),
    (4, 1, 2, "packed", "sparse"),
    (4, 1, 2, "rma", "alltoallv"),
    (4, 1, 2, "packed", "everywhere"),
    (3, 0, 2, "rma", "everywhere"),
]
TRAINING = [LAYOUTS[0], LAYOUTS[2], LAYOUTS[1], LAYOUTS[4], LAYOUTS[12]]  # 1, 1, 2, 2 and 2 trainers
METHODS = {"random": 3, "metis": 4, "multilevel": 4}


def run(tree: Path, ranks: int, *words: object, layout: tuple[int, int, int, str, str] | None = None) -> str:
    """Run a Python of this environment on the package in a tree; return what it printed."""
    env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    if layout is not None:
        _, servers, per_node, rows, sampling = layout
        topology, way = (sampling, "auto") if sampling == "everywhere" else ("owners", sampling)
        env |= {"MPIGRAPH_NUM_SERVERS": str(servers), "MPIGRAPH_TRANSPORT": rows, "MPIGRAPH_SAMPLING": way}
        env |= {"MPIGRAPH_TOPOLOGY": topology}
        env |= {"MPIGRAPH_RANKS_PER_NODE": str(per_node)} if per_node else {}
    launcher = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, *map(str, words)]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True)  # -m looks in cwd first
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, words))} on {layout or ranks}: status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def said(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith("golden "):
            _, name, value = line.split()
            yield name, value


def inputs(folder: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Eight graphs: their name, what ``partition`` reads, and its options."""
    rng = np.random.default_rng(5)
    n, e = 3000, 40_000
    src, dst = ((n * rng.random(e) ** 2).astype(np.int64) for _ in range(2))
    arrays = dict(edge_src=src, edge_dst=dst, num_nodes=np.array(n), feat=rng.random((n, 12), np.float32))
    arrays |= dict(label=rng.integers(0, 7, n), train_mask=rng.random(n) < 0.4, edge_w=rng.random(e, np.float32))
    np.savez(folder / "plain.npz", **arrays)
    yield from ((f"plain-{method}", folder / "plain.npz", ["--method", method]) for method in METHODS)
    yield (
        "plain-16-bits",
        folder / "plain.npz",
        ["--method", "random", "--feat-dtype", "feat=bfloat16", "--balance-train"],
    )
    many = {
        f"a__r{k}__b__{end}": rng.integers(0, size, 40) for k in range(12) for end, size in (("src", 90), ("dst", 60))
    }
    many |= dict(a__num_nodes=np.array(90), b__num_nodes=np.array(60), b__feat=rng.random((60, 3), np.float32))
    many |= dict(a__cites__a__src=rng.integers(0, 90, 900), a__cites__a__dst=rng.integers(0, 90, 900))
    np.savez(folder / "typed.npz", **many)
    yield "typed", folder / "typed.npz", ["--method", "multilevel"]
    yield "typed-reverse", folder / "typed.npz", ["--method", "random", "--add-reverse"]
    for name, header, lines in (
        ("nodes", "id,x,kind,train_mask", (f"n{v},{v / 8},{'abc'[v % 3]},{v % 2}" for v in rng.permutation(500))),
        ("edges", "src,dst,weight", (f"n{u},n{v},{(u + v) / 4}" for u, v in rng.integers(0, 500, (4000, 2)))),
    ):
        (folder / "csv").mkdir(exist_ok=True)
        (folder / f"csv/{name}.csv").write_text("\n".join([header, *lines, ""]))
    yield "csv", folder / "csv", ["--method", "metis", "--categories", "kind"]
    yield "csv-undirected", folder / "csv/edges.csv", ["--method", "random", "--undirected"]


def shards(tree: Path, work: Path) -> Iterator[tuple[str, str]]:
    """The datasets of the parts of eight graphs, partitioned by 1, 2 and 4 ranks."""
    import h5py

    data = work / "data"
    data.mkdir()
    for name, path, options in inputs(data):
        for ranks in (1, 2, 4):
            out = work / f"{name}-{ranks}"
            run(tree, ranks, "-m", "mpigraph", "partition", path, "--parts", 3, "-o", out, "--name", "g", *options)
            for file in sorted(out.rglob("*.h5")):
                with h5py.File(file) as opened:
                    found: list[h5py.Dataset] = []
                    opened.visititems(
                        lambda _, item, found=found: found.append(item) if isinstance(item, h5py.Dataset) else None
                    )
                    for item in found:
                        state = hashlib.sha256(f"{item.dtype} {item.shape}".encode() + item[()].tobytes())
                        yield f"shard_{name}/{file.relative_to(out)}{item.name}", state.hexdigest()[:24]
            shutil.rmtree(out)


def digests(tree: Path, only: list[str]) -> Digests:
    """Everything that a tree gives; a name has several digests where layouts differ."""
    found: Digests = {}
    with tempfile.TemporaryDirectory() as name:
        work, script = Path(name), HERE / "golden_job.py"

        def take(pairs: Iterator[tuple[str, str]]) -> None:
            for key, value in pairs:
                found.setdefault(key, set()).add(value)

        if {"draws", "train", "resume"} & set(only):
            run(tree, 1, script, "write", work)
        for what, layouts in (("draws", LAYOUTS), ("train", TRAINING)):
            for layout in layouts if what in only else []:
                take(said(run(tree, layout[0], script, what, work, layout=layout)))
        if "resume" in only:
            two, three = (2, 0, 0, "packed", "sparse"), (4, 1, 0, "packed", "sparse")
            take(said(run(tree, 2, script, "begin", work, layout=two)))
            for layout in (two, three, LAYOUTS[0]):
                take(said(run(tree, layout[0], script, "resume", work, layout=layout)))
        if "shards" in only:
            take(shards(tree, work))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--with", dest="commit", metavar="COMMIT", help="another commit to compare with")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts (all)")
    args = parser.parse_args()
    here = digests(ROOT, args.only)
    layouts = sorted(name for name, values in here.items() if len(values) > 1)
    print(f"{len(here)} digests, {len(layouts)} of which differ between layouts", *layouts, sep="\n  ")
    if args.commit is None:
        print(*(f"{name} {' '.join(values)}" for name, values in sorted(here.items())), sep="\n")
        return bool(layouts)
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), args.commit], check=True)
        try:
            there = digests(tree, args.only)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    other = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    gone, new = sorted(there.keys() - here.keys()), sorted(here.keys() - there.keys())
    for words, names in ((f"differ from {args.commit}", other), ("are gone", gone), ("are new", new)):
        print(f"{len(names)} {words}", *names, sep="\n  ")
    return bool(layouts or other or gone)


PARTS = ["draws", "train", "resume", "shards"]

if __name__ == "__main__":
    sys.exit(main())
