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
def test_from_a_graph_to_a_model(ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*warm_python(), *AS_DGL, SCRIPTS / "guide_preprocessing.py", tmp_path, cwd=tmp_path)
    start = mpiexec(ranks) if ranks > 1 else []
    env = ["env", f"MPIGRAPH_PART_CONFIG={tmp_path / 'plain' / 'plain.json'}", "MPIGRAPH_NUM_SERVERS=0"]
    output = run(*start, *env, *warm_python(), *AS_DGL, SCRIPTS / "guide.py", tmp_path, cwd=tmp_path)
    for rank in range(ranks):
        assert f"trainer {rank} of {ranks} is done" in output
    if ranks == 1:
        chunks_are_read(tmp_path)
        command_lines_are_taken(tmp_path, capsys)


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


def command_lines_are_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of DGL's launch.py and copy_files.py."""
    (folder / "ip_config.txt").write_text("127.0.0.1 30050\n127.0.0.2\n")
    capsys.readouterr()
    both = ["--workspace", str(folder), "--ip_config", str(folder / "ip_config.txt")]
    launch = ["launch", "--dry-run", *both, "--num_trainers", "2", "--num_samplers", "4", "--num_servers", "1"]
    command = "python3 train.py --graph-name plain --ip_config ip_config.txt --num_workers 4"
    assert main([*launch, "--part_config", "plain/plain.json", command]) == 0
    printed = capsys.readouterr().out
    assert "train.py --graph-name plain" in printed and "MPIGRAPH_PART_CONFIG" in printed
    copy = ["copy", "--dry-run", *both, "--rel_data_path", "data", "--script_folder", str(SCRIPTS)]
    assert main([*copy, "--part_config", str(folder / "plain" / "plain.json")]) == 0
    printed = capsys.readouterr().out
    assert "127.0.0.2" in printed and "part1" in printed
