"""The map "Where do I put ..." of mpigraph/README.md: changes are made on a copy of the package, counted, and used.

Those that put something into a list of the library, all in one copy, which one process runs without compiling kernels.
A sampler that chooses neighbours in another way is in ``sampling/test_strategies.py``, a timing in ``test_trace.py``, a
sampler of a user's own in ``examples/test_examples.py``.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from jobs import clean_environment, run_job
from sources import PACKAGE, section

ROWS = re.findall(r"^\| ([^|]+) \| (\d+)[^|]* \|", section("Where do I put ..."), re.MULTILINE)


class Change(NamedTuple):
    """A change of the package.

    Attributes:
        row: how the row of the map begins.
        edits: file, the text that goes (none of a new file), and what comes in its place.
        uses: a script that prints a line: what was added works.
        says: that line.
    """

    row: str
    edits: list[tuple[str, str, str]]
    uses: str
    says: str


LAYER = '''

class Doubled(nn.Module):
    """Sums of the sources' rows, twice."""

    def forward(self, graph, feat):
        with graph.local_scope():
            graph.srcdata["h"] = 2 * feat
            graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "out"))
            return graph.dstdata["out"]


def source_and_destination(
'''
SAMPLER = '''
from mpigraph.dataloading.sampler import BlockSampler
from mpigraph.graphs.block import to_block
from mpigraph.graphs.fields import NID


class EvenSampler(BlockSampler):
    """The in-edges from nodes with an even id."""

    def sample_blocks(self, g, seed_nodes, exclude_eids=None):
        hop = g.sample_neighbors(seed_nodes, -1)
        even = hop.edge_subgraph(hop.edges()[0] % 2 == 0, relabel_nodes=False, store_ids=False)
        block = to_block(even, seed_nodes)
        return block.srcdata[NID], seed_nodes, [block]
'''
DRAWS = "for _, seeds, (b,) in dist.DistNodeDataLoader(g, [3, 4, 5], {}, batch_size=2): assert b.num_edges()\n"
DRAWS += "assert (b.srcdata['_ID'][b.edges()[0]] % 2 == 0).all()\n"
METHOD = """
import numpy as np
from mpigraph.partition.assigning import Method


def stripes(task):
    return (np.arange(task.num_nodes)[task.own] % task.num_parts).astype(np.int32)


STRIPES = Method(stripes, lambda work, *_: (4 * work.num_nodes, 0))
"""
PAIRS = """
import numpy as np
from mpigraph.formats.layout import Layout
from mpigraph.metadata.schema import Schema
from mpigraph.partition.source import GraphSource


def read(path, options):
    src, dst = np.loadtxt(path, np.int64).T
    return GraphSource(Schema.homogeneous(), (int(max(src.max(), dst.max())) + 1,), ((src, dst),))


PAIRS = Layout("pairs", "", lambda path: path.suffix == ".pairs", read)
"""
STORE = '''
import fsspec
import numpy as np


class Rows:
    """Rows of 32-bit numbers in an object, behind a line with their shape."""

    def __init__(self, url):
        self.file = fsspec.open(url, "rb").open()
        self.shape = tuple(map(int, self.file.readline().split()))
        self.begin = self.file.tell()

    def __getitem__(self, rows):
        width = self.shape[1]
        self.file.seek(self.begin + 4 * width * rows.start)
        return np.frombuffer(self.file.read(4 * width * (rows.stop - rows.start)), np.float32).reshape(-1, width)
'''
EXCHANGE = '''

class Counting(ByMessages):
    """Requests to owners, under another name."""

    name = "counting"


EXCHANGES: tuple[type[Exchange], ...] = (Counting, '''
COMMAND = '''@dataclass
class Greet:
    """Greet."""

    name: str = argument("NAME", "whom")


GROUPS: dict'''
CHANGES = [
    Change("a layer", [
        ("nn/layers.py", "\n\ndef source_and_destination(\n", LAYER),
        ("nn/__init__.py", "    GraphConv as GraphConv,\n", "    Doubled as Doubled,\n    GraphConv as GraphConv,\n"),
    ], "h = mg.graph(([0, 1], [2, 2])); print(mg.nn.Doubled()(h, torch.ones(3, 1))[2].item())", "4.0"),
    Change("a sampler: anything drawn by", [
        ("dataloading/even.py", "", SAMPLER),
        ("dataloading/__init__.py", "\nattach(",
         "from mpigraph.dataloading.even import EvenSampler as EvenSampler\nattach("),
    ], DRAWS.format("mg.dataloading.EvenSampler()") + "print('even')", "even"),
    Change("a way to assign nodes to parts", [
        ("partition/stripes.py", "", METHOD),
        ("partition/assign.py", "METHODS = {\n", "from mpigraph.partition.stripes import STRIPES\n"
                                                'METHODS = {\n    "stripes": STRIPES,\n'),
    ], "dist.partition_graph(mg.graph(([0, 1, 2], [1, 2, 3])), 's', 2, folder, part_method='stripes')\n"
       "print(dist.load_partition(f'{folder}/s.json', 1)[0].num_edges())", "2"),
    Change("a file format", [
        ("formats/pairs.py", "", PAIRS),
        ("formats/readers.py", "LAYOUTS = (", "from mpigraph.formats.pairs import PAIRS\nLAYOUTS = (PAIRS, "),
    ], "from mpigraph.formats.readers import read_source\n"
       "(folder / 'x.pairs').write_text('0 1\\n1 5\\n'); print(read_source(folder / 'x.pairs').num_nodes)", "(6,)"),
    Change("a command", [
        ("cli/greet.py", "", "def greet(options):\n    print('hello', options.name)\n    return 0\n"),
        ("cli/grammar.py", "GROUPS: dict", COMMAND),
        ("cli/grammar.py", '"jobs": {Launch', '"jobs": {Greet: "greet", Launch'),
    ], "from mpigraph.cli.main import main; main(['greet', 'you'])", "hello you"),
    Change("a source of features", [
        ("distgraph/object_store.py", "", STORE),
        ("distgraph/tensor.py", "from mpigraph.distgraph.typed_ids import to_rows\n",
         "from mpigraph.distgraph.object_store import Rows\nfrom mpigraph.distgraph.typed_ids import to_rows\n"),
        ("distgraph/tensor.py", 'RowSource]] = {".npy"', 'RowSource]] = {"memory://": Rows, ".npy"'),
    ], "import fsspec; rows = np.arange(404, dtype=np.float32)\n"
       "with fsspec.open('memory://x', 'wb') as file: file.write(b'101 4\\n' + rows.tobytes())\n"
       "t = dist.DistTensor((101, 4), torch.float32, 'x'); t.load('memory://x'); g.ndata['x'] = t\n"
       "print(t[g.ndata['orig'][:].argsort()[[100]]].tolist())", "[[400.0, 401.0, 402.0, 403.0]]"),
    Change("an exchange of sampling requests", [
        ("sampling/exchanges.py", "EXCHANGES: tuple[type[Exchange], ...] = (", EXCHANGE),
        ("config.py", '"alltoallv", "sparse")', '"alltoallv", "sparse", "counting")'),
    ], "print(g.session.store.exchange.name)", "counting"),
]  # fmt: skip
BEGIN = """
import os, sys
from pathlib import Path
os.environ["MPIGRAPH_SAMPLING"] = "counting"
import numpy as np
import torch
import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
assert Path(mg.__file__).parent == Path.cwd() / "mpigraph"
dist.initialize(num_servers=0)
g = dist.DistGraph("oracle", part_config=sys.argv[1])
folder = Path(sys.argv[2])
"""


@pytest.mark.slow
def test_each_change_takes_the_files_of_the_map_and_works(tmp_path: Path, oracle) -> None:
    shutil.copytree(PACKAGE, tmp_path / "mpigraph", ignore=shutil.ignore_patterns("__pycache__"))
    for change in CHANGES:
        (files,) = [int(count) for what, count in ROWS if what.startswith(change.row)]
        assert len({name for name, *_ in change.edits}) == files, change.row
        for name, old, new in change.edits:
            path = tmp_path / "mpigraph" / name
            text = path.read_text() if old else ""
            assert text.count(old) == 1 if old else not path.exists(), (change.row, name)
            path.write_text(text.replace(old, new) if old else new)
    body = [f"print({change.row!r}, end=': ')\n{change.uses}\n" for change in CHANGES]
    (tmp_path / "script.py").write_text(BEGIN + "".join(body))
    env = clean_environment() | {"PYTHONPATH": str(tmp_path), "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}
    done = run_job([sys.executable, "script.py", oracle(1), tmp_path], env, cwd=tmp_path)
    said = [f"{change.row}: {change.says}" for change in CHANGES]
    assert done.status == 0 and done.stdout.splitlines() == said, done.output
