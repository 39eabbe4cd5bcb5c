"""Files of a directory are read in the order in which people count them."""

from pathlib import Path

from mpigraph.formats.input_files import in_natural_order
from mpigraph.formats.readers import read_source


def test_numbers_in_names_count_by_their_value():
    names = ["part-2", "part-10", "part-10-1", "part-10-2", "part-10-11", "part-x", "x", "9", "10", "1", "01"]
    ordered = ["01", "1", "9", "10", "part-2", "part-10", "part-10-1", "part-10-2", "part-10-11", "part-x", "x"]
    assert [path.name for path in in_natural_order(map(Path, names))] == ordered


def test_edge_lists_of_a_directory(tmp_path):
    for number in (0, 2, 10, 1):
        (tmp_path / f"part-{number}.csv").write_text(f"src,dst\n{number},0\n")
    assert read_source(tmp_path, num_nodes=11).edges[0][0][:].tolist() == [0, 1, 2, 10]
