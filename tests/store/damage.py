"""Damaged partitions: every variant loads as it was, or is one error of this library that names a file.

    python tests/store/damage.py [--variants 2000] [--seed 0] [--workers 2]

Variants are drawn by a seed: bit flips, cut and longer files, swapped and foreign shards, another partitioning of the
same name, contents that contradict themselves under valid checksums, edited configurations. Each is opened by a job,
and read part by part or staged, by a process that is forked, before MPI starts, from one that has imported everything.
A table of outcomes follows; the status is 1 if one is a wrong result, a crash, a hang, or another error.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import mpi4py

mpi4py.rc.initialize = False  # each worker starts MPI itself

import h5py  # noqa: E402
import numpy as np  # noqa: E402

import mpigraph.distributed as dist  # noqa: E402
from mpigraph.cli import stage as staging  # noqa: E402
from mpigraph.errors import PartitionError, ShardFormatError  # noqa: E402
from mpigraph.kernels import warm_up  # noqa: E402
from mpigraph.metadata.schema import Schema  # noqa: E402
from mpigraph.partition.pipeline import partition_source  # noqa: E402
from mpigraph.partition.source import Feature, GraphSource  # noqa: E402
from mpigraph.session.context import current  # noqa: E402
from mpigraph.storage.part_config import PartConfig  # noqa: E402

NAME = "graph"
PARTS = 2
FILES = [f"part{k}/{name}.h5" for k in range(PARTS) for name in ("graph", "node_feat", "edge_feat")]
RELATIONS = (("a", "cites", "a"), ("b", "in", "a"))
KEYS = [":".join(relation) for relation in RELATIONS]
PATIENCE = 60.0  # seconds of one variant, on a busy machine
MEMORY = 4 << 30  # bytes that a worker may map beyond what it starts with

Draw = random.Random
Damage = Callable[[Draw, Path, Path], None]  # draws, the graph's folder, that of all graphs
KINDS: dict[str, Damage] = {}


def kind(damage: Damage) -> Damage:
    KINDS[damage.__name__.replace("_", " ")] = damage
    return damage


# ---- graphs ----------------------------------------------------------------------------------------------------------


def make_graph(folder: Path, seed: int, nodes: tuple[int, int] = (40, 40), name: str = NAME) -> None:
    """Write a small graph of two types that have equally many nodes, so that swapped ones are not seen by a count."""
    draws = np.random.default_rng(seed)
    ends = [(draws.integers(0, nodes[src], 120), draws.integers(0, nodes[0], 120)) for src in (0, 1)]
    table = {"feat": Feature.of(draws.standard_normal((40, 3), np.float32)), "mask": Feature.of(np.arange(40) % 3 == 0)}
    other = {"feat": Feature(draws.integers(0, 9, (nodes[1], 2)).astype(np.uint16), "bfloat16")}
    edge = {KEYS[0]: {"weight": Feature.of(draws.random(120))}}
    source = GraphSource(Schema(("a", "b"), RELATIONS), nodes, tuple(ends), {"a": table, "b": other}, edge)
    partition_source(source, name, PARTS, folder, "random", seed=seed)


# ---- what is read ----------------------------------------------------------------------------------------------------


def digest(*arrays: Any) -> bytes:
    """A hash of arrays with their shapes and dtypes."""
    state = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        state.update(repr((array.shape, array.dtype)).encode())
        state.update(array.tobytes())
    return state.digest()


def opened(path: str, to: Path) -> bytes:
    """Open the graph in this process's job; a hash of all that a trainer can read of it."""
    store = current().store
    graph = store.open_graph(NAME, path)
    try:
        arrays = []
        for relation in range(len(graph.topology.config.schema.relations)):
            edges = graph.topology.adjacency(relation, 0)
            src = graph.topology.config.schema.ends(relation)[0]
            nodes = np.arange(graph.topology.config.book.num_nodes(src))
            arrays += [edges.indptr, edges.indices, graph.topology.out_degrees(nodes, relation)]
        for (policy, name), number in sorted(graph.features.items(), key=str):
            rows = store.tensors[number]
            arrays += [np.frombuffer(repr((policy, name)).encode(), np.uint8), rows.gather(np.arange(rows.shape[0]))]
        return digest(*arrays)
    finally:
        del store.graphs[NAME], store.graph_of_number[graph.number]
        store.free(graph.features.values())
        graph.topology.close()


def loaded(path: str, to: Path) -> bytes:
    """Read the graph part by part; a hash of it."""
    arrays = []
    for part in range(PARTS):
        graph, nodes, edges, *_ = dist.load_partition(path, part)
        for relation in graph.canonical_etypes:
            arrays += [end.numpy() for end in graph.edges(etype=relation)]
        for table in (nodes, edges):
            arrays += [rows_of(table[name]) for name in sorted(table)]
    return digest(*arrays)


def rows_of(tensor: Any) -> Any:
    """A tensor of any dtype as bytes."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def staged(path: str, to: Path) -> bytes:
    """Stage all parts; a hash of where the copies are not those of the originals, which are judged where they load."""
    config = PartConfig.read(path)
    for shard in staging.shards_of(config, range(config.num_parts), to):
        if not staging.is_staged(shard, config):
            staging.copy_shard(shard, config)
    config.write(to)
    return digest([(to / name).read_bytes() == (config.directory / name).read_bytes() for name in FILES])


USES = (opened, loaded, staged)


# ---- damages ---------------------------------------------------------------------------------------------------------


def some_file(draw: Draw, graph: Path) -> Path:
    return graph / draw.choice(FILES)


def flip(data: bytearray, draw: Draw, count: int) -> None:
    for _ in range(count):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


@kind
def flipped_bits(draw: Draw, graph: Path, bases: Path) -> None:
    path = some_file(draw, graph)
    data = bytearray(path.read_bytes())
    flip(data, draw, draw.choice((1, 1, 2, 16)))
    path.write_bytes(data)


@kind
def flipped_metadata(draw: Draw, graph: Path, bases: Path) -> None:
    """In what is HDF5's: the first bytes, and what is behind its own signatures."""
    path = some_file(draw, graph)
    data = bytearray(path.read_bytes())
    marks = [0] + [i for word in (b"OHDR", b"FRHP", b"FHDB", b"BTHD", b"BTLF", b"OCHK") for i in every(data, word)]
    at = draw.choice(marks)
    for _ in range(draw.choice((1, 1, 3))):
        data[min(len(data) - 1, at + draw.randrange(64))] = draw.randrange(256)
    path.write_bytes(data)


def every(data: bytearray, word: bytes) -> list[int]:
    places, at = [], data.find(word)
    while at >= 0:
        places.append(at)
        at = data.find(word, at + 1)
    return places


@kind
def overwritten(draw: Draw, graph: Path, bases: Path) -> None:
    path = some_file(draw, graph)
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data))
    size = draw.choice((8, 64, 512, 4096))
    data[at : at + size] = draw.choice((bytes(size), b"\xff" * size, b" " * size, draw.randbytes(size)))
    path.write_bytes(data)


@kind
def cut_off(draw: Draw, graph: Path, bases: Path) -> None:
    path = some_file(draw, graph)
    os.truncate(path, draw.choice((0, 1, 8, 48, draw.randrange(path.stat().st_size))))


@kind
def longer(draw: Draw, graph: Path, bases: Path) -> None:
    path = some_file(draw, graph)
    with open(path, "ab") as file:
        file.write(draw.randbytes(draw.choice((1, 100, 5000))))


@kind
def swapped_files(draw: Draw, graph: Path, bases: Path) -> None:
    one, other = draw.sample(FILES, 2)
    os.rename(graph / one, graph / "aside")
    os.rename(graph / other, graph / one)
    os.rename(graph / "aside", graph / other)


@kind
def copied_files(draw: Draw, graph: Path, bases: Path) -> None:
    one, other = draw.sample(FILES, 2)
    shutil.copy(graph / one, graph / other)


@kind
def missing_files(draw: Draw, graph: Path, bases: Path) -> None:
    for name in draw.sample([*FILES, f"{NAME}.json"], draw.choice((1, 1, 3))):
        (graph / name).unlink()


@kind
def another_partitioning(draw: Draw, graph: Path, bases: Path) -> None:
    """Some files of another partitioning of the same name, or of another seed, size or graph."""
    other = bases / draw.choice(("again", "seed", "size", "name"))
    names = draw.sample(FILES, draw.randrange(1, len(FILES)))
    if draw.random() < 0.2:
        names = [f"{NAME}.json"]
    for name in names:
        if (other / name).exists():
            shutil.copy(other / name, graph / name)
        else:
            shutil.copy(other / "other.json", graph / name)


@kind
def nonsense(draw: Draw, graph: Path, bases: Path) -> None:
    path = graph / draw.choice([*FILES, f"{NAME}.json"])
    path.write_bytes(draw.choice((b"", b"{}", b"[", b"\x89HDF\r\n\x1a\n", b"[" * 100_000, draw.randbytes(3000))))


@kind
def edited_configuration(draw: Draw, graph: Path, bases: Path) -> None:
    """One or two values changed of what the checksum is for."""
    path = graph / f"{NAME}.json"
    content = json.loads(path.read_text())
    outside_checksum = {key: content.pop(key) for key in list(content) if key == "report" or key.startswith("part-")}
    for _ in range(draw.choice((1, 1, 2))):
        edit(draw, content)
    path.write_text(json.dumps(content | outside_checksum, default=str))


ODD = (-1, 0, 1, 2**31, 2**40, 2**62, 2**63, 2**64, 10**400, 1.5, 1e999, True, None, "", "7", [], {}, [[0, 1]], "../x",
       "/etc/passwd", "part0/../../x", "a\0b", "..", ".", "x" * 5000, "\ud800", [[0, 2**62]] * 2, "object",
       "complex128")  # fmt: skip


def edit(draw: Draw, content: Any) -> None:
    """Change something at a random place."""
    while True:
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        key = draw.choice(keys)
        inner = content[key]
        if isinstance(inner, (dict, list)) and inner and draw.random() < 0.7:
            content = inner
            continue
        how = draw.random()
        if how < 0.15:
            del content[key]
        elif how < 0.3 and len(keys) > 1:
            other = draw.choice(keys)
            content[key], content[other] = content[other], content[key]
        elif how < 0.45 and isinstance(inner, int):
            content[key] = inner + draw.choice((-1, 1, 8))
        else:
            content[key] = draw.choice(ODD)
        return


def change(draw: Draw, graph: Path, alter: Callable[[h5py.File, str], None], names: list[str] | None = None) -> None:
    """Alter a dataset of some file."""
    path = some_file(draw, graph)
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        datasets: list[str] = []
        file.visititems(lambda name, item: datasets.append(name) if isinstance(item, h5py.Dataset) else None)
        if datasets:
            alter(file, draw.choice(datasets))


def rewrite(file: h5py.File, name: str, values: Any, logical: str = "") -> None:
    """Give a dataset other values, with checksums that fit them."""
    old = file[name]
    logical = logical or old.attrs["dtype"].decode()
    rows = int(old.attrs["segment_rows"])
    del file[name]
    dataset = file.create_dataset(name, data=values, track_times=False)
    crcs = [zlib.crc32(np.ascontiguousarray(values[at : at + rows])) for at in range(0, len(values), rows)]
    dataset.attrs.update(dtype=np.bytes_(logical), segment_rows=rows, crc32=np.array(crcs, np.uint32))


@kind
def contradictions(draw: Draw, graph: Path, bases: Path) -> None:
    """Contents that contradict themselves, under checksums and a configuration that were made for them."""
    path = graph / f"part{draw.randrange(PARTS)}/graph.h5"
    key = f"relations/{draw.choice(KEYS)}"
    with h5py.File(path, "r+", libver=("v110", "v110")) as file:
        indptr, indices = (file[f"{key}/{field}"][...] for field in ("indptr", "indices"))
        how = draw.choice(("begin", "end", "falls", "huge", "beyond", "negative", "unsorted"))
        at = draw.randrange(1, len(indptr) - 1)
        edge = draw.randrange(len(indices))
        long_rows = np.flatnonzero((np.diff(indptr) > 1) & (indices[indptr[:-1] % len(indices)]
                                                           != indices[(indptr[1:] - 1) % len(indices)]))  # fmt: skip
        row = int(draw.choice(long_rows.tolist()))
        first, last = int(indptr[row]), int(indptr[row + 1]) - 1
        if how == "begin":
            indptr[0] = draw.choice((-1, 1))
        elif how == "end":
            indptr[-1] += draw.choice((-1, 1, 2**40))
        elif how == "falls":
            indptr[at] = draw.choice((-1, -(2**40), int(indptr[-1]) + 1))
        elif how == "huge":
            indptr[at:] = 2**62
        elif how == "beyond":
            indices[edge] = draw.choice((40, 2**31 - 1, 0x20202020))
        elif how == "negative":
            indices[edge] = draw.choice((-1, -(2**31)))
        else:
            indices[first], indices[last] = indices[last], indices[first]
        for field, values in (("indptr", indptr), ("indices", indices)):
            rewrite(file, f"{key}/{field}", values)


@kind
def other_shapes(draw: Draw, graph: Path, bases: Path) -> None:
    """Datasets that are longer, shorter, wider or of another dtype than the configuration says."""

    def alter(file: h5py.File, name: str) -> None:
        values = file[name][...]
        logical = file[name].attrs["dtype"].decode()
        how = draw.choice(("longer", "shorter", "wider", "dtype", "logical", "bool"))
        if how == "longer":
            values = np.concatenate([values, np.full((draw.choice((1, 1000)), *values.shape[1:]), 0x20, values.dtype)])
        elif how == "shorter":
            values = values[: max(0, len(values) - 1 - draw.randrange(3))]
        elif how == "wider":
            values = np.stack([values, values], -1)
        elif how == "dtype":
            logical = draw.choice([d for d in ("int8", "int32", "int64", "float64") if d != logical])
            values = values.astype(logical)
        elif how == "logical":
            logical = draw.choice(("bfloat16", "uint16", "uint8"))
        else:
            logical = "bool"
        rewrite(file, name, values, logical)

    change(draw, graph, alter)


@kind
def interrupted(draw: Draw, graph: Path, bases: Path) -> None:
    """The files of a partitioning into the same folder that was killed: no configuration, or only an old one."""
    other = bases / "again"
    for name in FILES[: draw.randrange(1, len(FILES))]:
        shutil.copy(other / name, graph / name)
    if draw.random() < 0.5:
        (graph / f"{NAME}.json").unlink()
    (graph / "part1" / ".graph.h5.tmp").write_bytes(b"half")


# ---- workers ---------------------------------------------------------------------------------------------------------


def make_variant(number: int, seed: int, folder: Path) -> tuple[str, Path]:
    """Make a damaged copy of the graph; return what was done, and where it is."""
    names = sorted(KINDS)
    name = names[number % len(names)]
    graph = folder / "graph"
    shutil.copytree(folder.parent / "bases" / "right", graph)
    KINDS[name](random.Random(f"{seed}/{number}"), graph, folder.parent / "bases")
    return name, graph


def outcome(use: Callable[[str, Path], bytes], graph: Path, to: Path, right: bytes) -> tuple[str, str]:
    """Return the outcome of one use of a variant, and its explanation."""
    try:
        content = use(str(graph / f"{NAME}.json"), to)
        result = ("as it was", "") if content == right else ("WRONG", "another result, without an error")
    except (PartitionError, ShardFormatError) as error:
        named = str(graph) in str(error)
        result = ("our error", "") if named else ("STRAY", f"names no file: {error}")
    except BaseException as error:
        result = ("STRAY", "".join(traceback.format_exception(error)[-3:]))
    return result


def begin_job() -> None:
    from mpi4py import MPI

    MPI.Init_thread()
    dist.initialize(num_servers=0, timeout=10 * PATIENCE)


def write_reference(folder: Path) -> None:
    """Write the digests of the undamaged graph, in a process of its own."""
    begin_job()
    path = str(folder / "bases" / "right" / f"{NAME}.json")
    (folder / "digests").write_text(json.dumps({use.__name__: use(path, folder / "reference").hex() for use in USES}))
    os._exit(0)


def attempt(folder: Path, seed: int, number: int, right: dict[str, bytes]) -> None:
    """Try a variant, in a process of its own, and write what came of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    begin_job()
    threading.excepthook = lambda _: None  # an error of the background would end the process before it is reported
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    name, graph = make_variant(number, seed, folder)
    uses = (opened, USES[1 + number // len(KINDS) % (len(USES) - 1)])
    outcomes = [(number, name, use.__name__, *outcome(use, graph, folder / "to", right[use.__name__])) for use in uses]
    (folder / "outcomes").write_text(json.dumps(outcomes))
    os._exit(0)


def prepare(folder: Path) -> None:
    """Write the graphs."""
    bases = folder / "bases"
    for name, seed, nodes in (
        ("right", 1, (40, 40)),
        ("again", 1, (40, 40)),
        ("seed", 2, (40, 40)),
        ("size", 1, (40, 41)),
    ):
        make_graph(bases / name, seed, nodes)
    make_graph(bases / "name", 1, name="other")


def run(folder: Path, variants: int, seed: int, workers: int) -> list[tuple[int, str, str, str, str]]:
    """Try all variants; return for each use of each: number, kind, use, outcome, and what is to be said."""
    prepare(folder)
    forked, names = multiprocessing.get_context("fork"), sorted(KINDS)
    reference = forked.Process(target=write_reference, args=(folder,))
    reference.start()
    reference.join()
    right = {name: bytes.fromhex(text) for name, text in json.loads((folder / "digests").read_text()).items()}
    left, results = list(reversed(range(variants))), []
    running: dict[Any, tuple[int, Path, float]] = {}
    while left or running:
        while left and len(running) < workers:
            number = left.pop()
            home = folder / f"variant{number}"
            home.mkdir()
            process = forked.Process(target=attempt, args=(home, seed, number, right))
            process.start()
            running[process] = number, home, time.monotonic()
        wait([process.sentinel for process in running], 1.0)
        for process, (number, home, begun) in list(running.items()):
            hangs = process.is_alive() and time.monotonic() - begun > PATIENCE
            if process.is_alive() and not hangs:
                continue
            process.kill()
            process.join()
            del running[process]
            if process.exitcode == 0:
                results += map(tuple, json.loads((home / "outcomes").read_text()))
            else:
                kind_of_end = "HANG" if hangs else "CRASH"
                results.append((number, names[number % len(names)], "?", kind_of_end, f"status {process.exitcode}"))
            shutil.rmtree(home)
    return results


def table(results: list[tuple[int, str, str, str, str]]) -> str:
    """Outcomes by kind of damage; two uses of each variant."""
    columns = ["as it was", "our error", "WRONG", "STRAY", "CRASH", "HANG"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for _, name, _, result, _ in results:
        counts[name][result] += 1
        counts["all"][result] += 1
    lines = [f"{'':24}" + "".join(f"{column:>11}" for column in columns)]
    for name in [*sorted(KINDS), "all"]:
        lines.append(f"{name:24}" + "".join(f"{counts[name][column]:>11}" for column in columns))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    begin = time.monotonic()
    warm_up()
    folder = Path(tempfile.mkdtemp(prefix="damage-", dir=os.environ.get("TMPDIR")))
    try:
        results = run(folder, arguments.variants, arguments.seed, arguments.workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(results))
    bad = [entry for entry in results if entry[3].isupper()]
    for number, name, use, result, text in sorted(bad)[:40]:
        print(f"\nvariant {number} ({name}), {use}: {result} {text}")
    seen = len({number for number, *_ in results})
    print(f"\n{seen} variants, {len(results)} uses, {len(bad)} bad, {time.monotonic() - begin:.0f} s")
    return 1 if bad or seen != arguments.variants else 0


if __name__ == "__main__":
    sys.exit(main())
