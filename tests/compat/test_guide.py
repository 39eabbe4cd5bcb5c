"""Chapter 7 of DGL's user guide in its versions: what its code blocks do, as plain Python and on two ranks."""

from pathlib import Path

import pytest
from jobs import ROOT, mpiexec, run, warm_python

from mpigraph.cli.main import main
from mpigraph.distributed import load_partition_book, load_partition_feats

SCRIPTS = ROOT / "tests" / "compat" / "scripts"
AS_DGL = ("-m", "mpigraph", "run", "--as-dgl")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_from_a_graph_to_a_model(ranks: int, tmp_path: Path) -> None:
    run(*warm_python(), *AS_DGL, SCRIPTS / "guide_preprocessing.py", tmp_path, cwd=tmp_path)
    start = mpiexec(ranks) if ranks > 1 else []
    env = ["env", f"MPIGRAPH_PART_CONFIG={tmp_path / 'plain' / 'plain.json'}", "MPIGRAPH_NUM_SERVERS=0"]
    output = run(*start, *env, *warm_python(), *AS_DGL, SCRIPTS / "guide.py", tmp_path, cwd=tmp_path)
    for rank in range(ranks):
        assert f"trainer {rank} of {ranks} is done" in output
    if ranks == 1:
        chunks_are_read(tmp_path)


def chunks_are_read(folder: Path) -> None:
    """Both versions of the chunked format, with the parts that another program chose."""
    for kind in ("by_type", "by_chunk"):
        out = folder / f"{kind}_parts"
        options = ["--parts", "2", "--assignment", str(folder / kind / "parts"), "-o", str(out)]
        assert main(["partition", str(folder / kind), *options]) == 0
        (config,) = out.glob("*.json")
        book = load_partition_book(config, 0)[0]
        assert len(book.partid2nids(0, "paper")) == len(book.partid2nids(1, "author")) == 50
        assert load_partition_feats(config, 1)[0]["paper/feat"].tolist() == list(range(1, 100, 2))
