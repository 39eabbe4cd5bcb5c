"""Random runs of rows read by the library's reader of features on disk, beside ``fio`` (Debian's) on the same file.

    python tests/perf/disk_reader.py DIR --graph igb

Both read blocks of the same size, at random places, past the page cache, with the same number of threads, and as many
bytes; a block of ours is some consecutive rows, in whole pages. Bytes are those that the kernel counts, for both.
"""

import json
import shutil
import subprocess
import sys
import time
from functools import partial

import common
import numpy as np

from mpigraph.rows.sources.disk import Reading, open_rows
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig

MUST = 0.8
PAGE = 4096
FIO = "fio"


def main():
    p = common.parser(__doc__, graphs=("products", "igb", "S"))
    p.add_argument("--blocks", type=int, nargs="+", default=[8192, 65536], help="bytes (%(default)s)")
    p.add_argument("--threads", type=int, default=16)
    p.add_argument("--megabytes", type=int, default=256, help="that a side reads (%(default)s)")
    args = p.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is not installed (apt-get install fio)")
    config = PartConfig.read(args.dir / args.graph / "parts-2" / f"{args.graph}.json")
    rows = []
    with PartFiles(config) as files:
        for block in args.blocks:
            sides = {
                common.OURS: partial(ours, files, block, args),
                FIO: partial(fio, config.part_path(0, "node_feats"), block, args),
            }
            found, _ = common.alternate(sides, args.rounds, args.quiet)
            what = f"blocks of {block // 1024} KiB, {args.threads} threads"
            rows.append(common.compare(what, "MB/s", found, FIO, must=MUST, more_is_better=True))
    common.report(args, rows)


def ours(files, block, args):
    """Read random blocks of the first part; return MB/s."""
    row_bytes = int(np.prod(files.config.node_features["_N"]["feat"].shape)) * 4
    count = int(np.diff(files.config.book.node_offsets[0])[0])
    reading = Reading(threads=args.threads, gap=0, direct=True)
    source = open_rows(files, "node_feats", "_N/feat", [(0, 0, count)], {}, reading)
    each = max(1, (block - PAGE) // row_bytes)  # the first and the last row seldom begin or end with a page
    blocks = np.random.default_rng(time.monotonic_ns()).permutation(count // (each + PAGE // row_bytes + 2))
    blocks = blocks[: (args.megabytes << 20) // block]
    starts = np.sort(blocks) * (each + PAGE // row_bytes + 2)
    rows = (starts[:, None] + np.arange(each)).reshape(-1)
    out = np.ones((len(rows), row_bytes // 4), np.float32)  # in memory, as fio's buffers are
    source.read(rows[:1], out, np.arange(1))  # kernels are loaded, and threads begun
    before, begin = read_bytes(), time.perf_counter()
    source.read(rows, out, np.arange(len(rows)))
    return (read_bytes() - before) / 1e6 / (time.perf_counter() - begin)


def read_bytes():
    """Bytes that this process has read from disks."""
    lines = open("/proc/self/io", encoding="ascii").read().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def fio(path, block, args):
    """Read random blocks of a file; return MB/s."""
    words = [f"--filename={path}", f"--bs={block}", f"--numjobs={args.threads}", "--thread", "--direct=1"]
    words += [f"--io_size={(args.megabytes << 20) // args.threads}", "--rw=randread", "--ioengine=psync", "--readonly"]
    words += ["--name=rows", "--group_reporting", "--output-format=json"]
    done = subprocess.run(["fio", *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"] / 1e6


if __name__ == "__main__":
    main()
