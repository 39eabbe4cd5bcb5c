"""The commands of ``python -m mpigraph``: for each a dataclass, whose docstring describes it and whose fields it takes.

``main`` makes the parsers. A command is a function of its name in a module of ``cli``, which gets an instance; the
module is imported when the command runs, since some load libraries for seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def option(text: str, metavar: str | None = None, default: Any = None, *flags: str, **more: Any) -> Any:
    """Return a field for an option, by default ``--its-name``; ``more`` goes to argparse's ``add_argument``.

    The field's type says what it takes: a bool is a flag, a sequence one value each time.
    """
    return field(default=default, metadata={"help": text, "flags": flags, "metavar": metavar, **more})


def of_dgl(text: str, metavar: str | None = None, default: Any = None, **more: Any) -> Any:
    """Return a field for an option that DGL has, with the underscores of its name."""
    return option(text, metavar, default, underscores=True, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return a field for a positional argument."""
    return field(default=None, metadata={"help": text, "metavar": metavar, **more})


def _part_config() -> Any:
    return argument("PART_CONFIG", "<name>.json of a partitioned graph")


def _out(text: str = "directory to write") -> Any:
    return option(text, "DIR", None, "-o", "--out", required=True)


def _overwrite(where: str = "another graph in --out") -> Any:
    return option(f"write over {where} (default: refuse)", default=False)


def _servers() -> Any:
    return option("servers on each node; 0: trainers host the graph (default: MPIGRAPH_NUM_SERVERS, else 1)", "N")


def _json() -> Any:
    return option("the result for scripts, as JSON", default=False)


@dataclass
class Generate:
    """Write a generated graph.

    It has power-law degrees, planted communities and features that correlate with the label, as .npy files that
    'partition' reads. One process writes it.
    """

    num_nodes: int = option("number of nodes", "N", None, "--nodes", required=True)
    num_edges: int = option("number of directed edges (both directions count)", "N", None, "--edges", required=True)
    out: str = _out("directory to write, which every rank sees")
    feat_dim: int = option("length of a feature row (%(default)s)", default=100)
    num_classes: int = option("number of labels (%(default)s)", "N", 47, "--classes")
    homophily: float = option("fraction of the edges inside a class (%(default)s)", default=0.6)
    block_share: float = option("fraction of those inside a block (%(default)s)", default=0.5)
    block_size: int = option("nodes of a block (0: by the mean degree)", default=0)
    train_fraction: float = option("fraction of training nodes (%(default)s)", default=0.1)
    seed: int = option("equal seeds give equal graphs (%(default)s)", default=0)
    overwrite: bool = _overwrite()


def _table(text: str, metavar: str | None = None, default: Any = None, **more: Any) -> Any:
    return option(text, metavar, default, section="csv and parquet files", **more)


@dataclass
class Partition:
    """Partition a graph.

    Writes the parts as HDF5 shards with a JSON configuration. Started by mpiexec or srun, all ranks do it together; the
    files are the same for any number of ranks.
    """

    input: str = argument(
        "INPUT",
        "an .npz, HDF5, .csv or .parquet file, or the .json of a partitioned graph, also of DGL; or the directory of a "
        "generated graph, of OGB, MAG240M, IGB, GraphBolt, DGL's chunked format or PyG's Partitioner, or of tables "
        "such as nodes.csv and edges.csv (examples/partitioning.md; examples/inputs.md has recipes for other formats)",
    )
    out: str = _out()
    parts: int | None = option("number of parts (default: those of an INPUT that is partitioned)", "N")
    method: str | None = option("how nodes are assigned to parts (metis)", "random|metis|multilevel")
    assignment: str | None = option(
        "parts made elsewhere: a .npy or text file with the part of each node, or a folder with one for each node type "
        "(examples/partitioning.md)",
        "PATH",
    )
    balance_train: bool = option("spread the training nodes evenly", default=False)
    balance_edges: bool = option("spread the edges evenly", default=False)
    seed: int = option("equal seeds give equal parts (%(default)s)", default=0)
    name: str | None = option("name of the graph (default: name of INPUT)", "NAME")
    undirected: bool = option(
        "add the reverse of every edge: within a type to its relation, else as a relation rev_<name>", default=False
    )
    add_reverse: bool = option("add the reverse of every relation as a relation rev_<name>", default=False)
    feat_dtype: Sequence[str] = option(
        "store float features in 16 bits, float16 or bfloat16, and read them as they were: all with rows of numbers, "
        "or those that are named (may be repeated)",
        "[NAME=]DTYPE",
        (),
    )
    memory: str | None = option("what a rank may take, such as 8GiB (default: its share of free memory)", "SIZE")
    scratch: str | None = option(
        "directory of temporary files, as large as the edges and, of parquet, HDF5 and partitioned input, the features "
        "(default: --out)",
        "DIR",
    )
    resume: bool = option(
        "after a run that was killed: keep the complete parts of the same input and options, verified, and write only "
        "the others (default: keep the assignment of nodes alone)",
        default=False,
    )
    overwrite: bool = _overwrite()
    json: bool = _json()
    nodes: Sequence[str] = _table(
        "a file of nodes beside a file of edges, with ids, features, labels, masks (may be repeated, as nodes_TYPE.csv "
        "for each type); or a number: ids are 0 to N-1 (default: the nodes that edges name)",
        "FILE|N",
        (),
    )
    columns: Sequence[str] = _table(
        "feature NAME is of this column, or has these side by side (patterns such as 'f*'); NAME id, src or dst: "
        "the ids of nodes or of the ends of edges (may be repeated)",
        "NAME=COLUMN[,COLUMN]",
        (),
    )
    types: Sequence[str] = _table(
        "a column is of this dtype, such as float32; string: ids stay as they are written, other columns are left out "
        "(default: what its values are; may be repeated)",
        "COLUMN=DTYPE",
        (),
    )
    categories: Sequence[str] = _table("number a column of names in their order (may be repeated)", "COLUMN", ())
    fill: Sequence[str] = _table(
        "what rows without a value get, of numbers (default: NaN; may be repeated)", "COLUMN=NUMBER|mean", ()
    )
    no_header: bool = _table(
        "text has no line of names: columns are src, dst, column2 and so on, of nodes id, column1 and so on",
        default=False,
    )
    decimal: str = _table("what stands in numbers before a fraction", default=".", choices=(".", ","))
    node_type: str | None = _table("the column of a table of nodes that has the type of each", "COLUMN")
    edge_type: str | None = _table("the column of a table of edges that has the relation of each", "COLUMN")


@dataclass
class Export:
    """Write a partitioned graph as .npy files in its original order.

    'partition' reads the folder, which has the original ids; examples/inputs.md has recipes from there to DGL and PyG.
    On several ranks the first writes all.
    """

    part_config: str = _part_config()
    out: str = _out()
    overwrite: bool = _overwrite("another export in --out")


@dataclass
class Info:
    """Show counts, edge cut, balance, halo and memory of a partitioned graph.

    Shows types and features, the edge cut and the balance, and for each part the nodes, the edges, the edges from other
    parts and their sources (the halo), the bytes on disk, and the memory that a host of this part needs for topology
    and features; last the memory that topology and each feature take on a host where there are 1, 2, 4, ... of them.
    Reads all edges; under srun or mpiexec the ranks divide the parts.
    """

    part_config: str = _part_config()
    json: bool = _json()


@dataclass
class Verify:
    """Read all files of a partitioned graph and check them.

    Checks the checksums, that the files belong to the configuration, and that their contents are consistent. Under srun
    or mpiexec the ranks divide the parts. The status is 0, or 2 after a line for each bad file.
    """

    part_config: str = _part_config()
    json: bool = _json()


@dataclass
class HostOptions:
    """Options of both commands that reach hosts by ssh."""

    ssh_port: int | None = of_dgl("where ssh is used (default: ssh's own)", "PORT")
    ssh_username: str = of_dgl("where ssh is used (default: ssh's own)", "NAME", "")


@dataclass
class Launch(HostOptions):
    """Start a job by the arguments of DGL's launch.py.

    By srun in a Slurm allocation, else by mpiexec on the hosts of ip_config.txt. Paths are relative to the workspace.
    """

    job: str | None = argument(
        "COMMAND",
        'what every rank runs, as one argument: "python train.py --lr 0.01"; no shell reads it (else "sh -c \'...\'")',
        nargs="?",
    )
    ip_config: str | None = of_dgl("the hosts, one 'ADDRESS [PORT]' on each line; in Slurm only their number", "FILE")
    num_trainers: int = of_dgl("trainers on each host", required=True)
    num_servers: int = of_dgl("servers on each host; 0: trainers host the graph (%(default)s)", default=1)
    num_samplers: int = of_dgl("threads with which each trainer samples; 0 is 1 (%(default)s)", default=0)
    part_config: str | None = of_dgl("becomes MPIGRAPH_PART_CONFIG", "FILE.json")
    workspace: str = option("working directory on every host (default: this one)", "DIR", ".")
    num_omp_threads: int | None = of_dgl("becomes OMP_NUM_THREADS (default: share the cores)", "N")
    extra_envs: Sequence[str] = of_dgl("further variables of every rank", "NAME=VALUE", (), nargs="+")
    num_server_threads: int = of_dgl("accepted for DGL's sake", "N", 1)
    server_name: str | None = of_dgl("accepted for DGL's sake", "NAME")
    keep_alive: bool = of_dgl("accepted for DGL's sake: servers end with their job", default=False)
    graph_format: str = of_dgl("accepted for DGL's sake: shards serve every use", "FORMAT", "csc")
    mpiexec: str = option("default: srun in Slurm, else the mpiexec beside this Python, else on PATH", "PROGRAM", "")
    launcher_flags: str = of_dgl("for srun or mpiexec, such as =--mpi=pmi2", "=FLAGS", "")
    dry_run: bool = option("print the command and do not run it", default=False)


@dataclass
class Copy(HostOptions):
    """Copy parts and scripts to the hosts by the arguments of DGL's copy_files.py.

    By rsync and ssh: part k of a graph to host k, its configuration and a folder of scripts to all. Inside of a Slurm
    allocation 'stage' copies parts to the nodes' own disks.
    """

    ip_config: str = of_dgl("the hosts, one 'ADDRESS [PORT]' on each line", "FILE", required=True)
    part_config: str = of_dgl("the partitioned graph", "FILE.json", required=True)
    workspace: str = option("absolute path of the job's directory on every host", "DIR", required=True)
    rel_data_path: str = of_dgl("where the parts go, relative to the workspace", "DIR", required=True)
    script_folder: str | None = of_dgl("goes into the workspace of every host", "DIR")
    dry_run: bool = option("print the commands and run none", default=False)


@dataclass
class Stage:
    """Copy to each node the parts that its hosts will read.

    To the nodes' own disks, verified by their checksums. Files that are there and right are kept. Start it by srun or
    mpiexec with the nodes and ranks of the job that follows, or with one rank on each node.
    """

    part_config: str = _part_config()
    to: str = option("directory on every node's own disk", "DIR", required=True)
    servers: int | None = _servers()
    overwrite: bool = _overwrite("another graph in --to")


@dataclass
class Doctor:
    """Test if a job can run on these nodes.

    Start it as a job is started. Prints what the ranks find, tries how rows and neighbours travel, and exits with 0 if
    a job can run, else with 1 and the reason. Takes seconds, a minute to compile kernels.
    """

    servers: int | None = _servers()
    json: bool = _json()


@dataclass
class Run:
    """Run a script written for DGL.

    Runs it as python does. With --as-dgl its 'import dgl' gives mpigraph: mpiexec -n 4 python -m mpigraph run --as-dgl
    train.py ARGUMENTS
    """

    script: str = argument("SCRIPT", "the script, or the module's name")
    arguments: Sequence[str] = argument("ARGUMENTS", "its arguments", nargs="...")
    as_dgl: bool = option("'import dgl' gives mpigraph", default=False)
    module: bool = option("run a module by its name, as python -m does", None, False, "-m")


@dataclass
class Report:
    """Say why a job was slow, from the report that it wrote.

    Writes DIR/report.html again from the summary beside it and prints the verdict: the rank or stage that makes the job
    slow.
    """

    folder: str = argument("DIR", "the folder of a report (MPIGRAPH_REPORT, mg.report)")
    json: bool = _json()


@dataclass
class Examples:
    """Copy the example scripts into a folder."""

    directory: str = argument("DIR", "new folder to write")


class Slurm(Examples):
    """Copy the Slurm scripts into a folder."""


@dataclass
class Docs:
    """Write the reference of all public names into a folder, by pdoc, as HTML that opens without a network."""

    directory: str = argument("DIR", "folder to write")


GROUPS: dict[str, dict[type, str]] = {  # commands, which have the names of their classes, and the modules of these
    "graphs": {Generate: "partition", Partition: "partition", Export: "partition", Info: "info", Verify: "info"},
    "jobs": {Launch: "launch", Copy: "launch", Stage: "stage", Doctor: "doctor", Run: "scripts", Report: "doctor"},
    "to begin with": {Examples: "scripts", Slurm: "scripts", Docs: "docs"},
}
STATUSES = {
    0: "done",
    1: "doctor: no job can run here; a job: a script raised an error",
    2: "wrong words, input or files, after a line that names them",
    75: "a job saved a checkpoint and asks to be started again (mpigraph.checkpoint.requeue)",
    124: "a job made no progress within MPIGRAPH_TIMEOUT",
    130: "interrupted by Ctrl-C",
    141: "the reader of the output left, as in info ... piped to head",
}
