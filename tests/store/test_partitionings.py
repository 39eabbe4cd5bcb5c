"""Files of two partitionings are never mixed: not in a folder, not among nodes, not by a writer that was killed."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from interrupted import interrupt
from layouts import Job, Layout, alone, own_on_layouts
from oracle import NAME, write_oracle

import mpigraph.distributed as dist
from mpigraph.errors import PartitionError, ShardFormatError
from mpigraph.storage.part_config import PartConfig, text_of


def open_alone(folder: Path) -> str:
    """Return the error of opening the graph of a folder, which is that of reading it part by part."""
    path = str(folder / f"{NAME}.json")
    with pytest.raises((PartitionError, ShardFormatError)) as loading:
        for part in range(2):
            dist.load_partition(path, part)

    def body() -> str:
        with pytest.raises(type(loading.value)) as opening:
            dist.DistGraph(NAME, part_config=path)
        return str(opening.value)

    text = str(alone(body))
    assert str(loading.value) in text
    return text


@pytest.mark.parametrize("name", ["part1/graph.h5", "part0/node_feat.h5", "part1/edge_feat.h5"])
def test_a_shard_of_another_partitioning_is_refused(oracle: Callable[..., str], tmp_path: Path, name: str) -> None:
    shutil.copytree(Path(oracle(2)).parent, tmp_path / "right")
    write_oracle(tmp_path / "again", 2, seed=1)
    shutil.copy(tmp_path / "again" / name, tmp_path / "right" / name)
    text = open_alone(tmp_path / "right")
    assert f"right/{name}: belongs to another partitioning" in text and "files of two partitionings are mixed" in text


def test_an_interrupted_partitioning_leaves_no_configuration(
    oracle: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "graph"
    shutil.copytree(Path(oracle(2)).parent, folder)
    cut = partial(write_oracle, folder, seed=1)
    interrupt(monkeypatch, 1, cut)  # the first part is the new one, and the second is still the old one
    assert "oracle.json: cannot read the partition configuration: No such file" in open_alone(folder)
    shutil.copy(oracle(2), folder)  # even if the old one is brought back
    assert "part0/graph.h5: belongs to another partitioning" in open_alone(folder)
    cut()
    assert alone(lambda: dist.DistGraph(NAME, part_config=str(folder / "oracle.json")).num_nodes()) == 101
    assert not list(folder.rglob(".*"))


@own_on_layouts([Layout(2, 0, 1), Layout(3, 1, 0)])
def test_ranks_that_find_different_partitionings(
    layout: Job, oracle: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if one of two nodes had another copy at the same path."""
    rank, last = layout.comm.rank, layout.comm.size - 1
    read, other = PartConfig.read, oracle(2, "metis")
    monkeypatch.setattr(PartConfig, "read", lambda path, text: read(other if rank == last else path))

    def body() -> None:
        with pytest.raises(PartitionError, match="nodes have different graphs there") as caught:
            dist.DistGraph(NAME, part_config=oracle(2))
        text = str(caught.value)
        assert f"{read(other).checksum} on rank {last}" in text and f"{read(oracle(2)).checksum} on rank 0" in text

    layout.run(body)


@own_on_layouts([Layout(2, 0, 2), Layout(2, 0, 1), Layout(3, 0, 2)])
def test_one_rank_of_each_node_reads(
    layout: Job, oracle: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the last node, the configuration is missing at first."""
    reads: list[str] = []
    first, last = (rank - rank % layout.layout[2] for rank in (layout.comm.rank, layout.comm.size - 1))

    def reading(path: str) -> bytes:
        reads.append(path)
        return text_of(tmp_path / "none.json" if len(reads) == 1 and first == last else path)

    monkeypatch.setattr("mpigraph.store.host_ranges.text_of", reading)

    def body() -> None:
        with pytest.raises(PartitionError, match=rf"failed on rank {last}: \S*none.json: cannot read"):
            dist.DistGraph(NAME, part_config=oracle(2))
        assert dist.DistGraph(NAME, part_config=oracle(2)).num_nodes() == 101
        assert len(reads) == 2 * (layout.comm.rank == first)

    layout.run(body)


def test_a_graph_that_was_partitioned_again_while_it_is_open(tmp_path: Path) -> None:
    def body() -> None:
        path = write_oracle(tmp_path, 2)
        dist.DistGraph(NAME, part_config=path)
        dist.DistGraph(NAME, part_config=path)
        write_oracle(tmp_path, 2)  # equal files
        dist.DistGraph(NAME, part_config=path)
        write_oracle(tmp_path, 2, seed=1)
        with pytest.raises(PartitionError, match="is open already, and was partitioned again since"):
            dist.DistGraph(NAME, part_config=path)

    alone(body)


def test_a_graph_of_an_older_format(oracle: Callable[..., str], tmp_path: Path) -> None:
    content = json.loads(Path(oracle(2)).read_text()) | {"format_version": 1}
    del content["identity"]
    (tmp_path / f"{NAME}.json").write_text(json.dumps(content))
    with pytest.raises(
        PartitionError, match=r"oracle.json: format version 1 .this library reads 6.: partition the graph"
    ):
        PartConfig.read(tmp_path / f"{NAME}.json")
