"""Tables in csv and parquet files, and what is read from them."""

import pyarrow as pa
from input_checks import rows
from pyarrow import parquet

from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_source


def folder_of(folder, files):
    """Write a table to each file: text, bytes, or columns of parquet."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, dict):
            parquet.write_table(pa.table(content), path, row_group_size=2)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def read(folder, files, num_nodes=None, **options):
    """Read the graph of some files; a single content is edges."""
    if not isinstance(files, dict) or "src" in files:
        files = {f"edges.{'parquet' if isinstance(files, dict) else 'csv'}": files}
    return read_source(folder_of(folder / "in", files), num_nodes, tables=TableOptions(**options))


def ends(source, relation=0):
    """Sources and destinations, as lists."""
    return [rows(end).tolist() for end in source.edges[relation]]


def features(source):
    """All features by name: dtype, and rows as lists."""
    tables = [*source.node_feats.values(), *source.edge_feats.values()]
    return {name: (its.dtype, rows(its.values).tolist()) for table in tables for name, its in table.items()}


def lines(header, *rows):
    """Return csv with a header."""
    return "\n".join([header, *rows, ""])
