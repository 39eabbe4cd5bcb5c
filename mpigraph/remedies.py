"""Remedies of the errors of torch that first scripts meet: a line below the traceback.

In a job of several ranks ``mpi/abort.py`` prints uncaught errors, by :func:`format_error`. In a process alone
:func:`show_remedies` puts a hook behind Python's own.
"""

import re
import sys
import traceback
from types import TracebackType

from mpigraph.errors import MPIGraphError
from mpigraph.log import line_of, lines_of

_REMEDIES: tuple[tuple[type[Exception], str, str], ...] = (  # class, pattern in the message, remedy
    (
        ValueError,
        r"environment variable \w+ expected, but not set",
        "call mpigraph.distributed.initialize() before init_process_group(): it sets RANK and the other variables that "
        "torch reads",
    ),
    (
        RuntimeError,
        "No rendezvous handler for mpi4py://",
        "call mpigraph.distributed.initialize() before init_process_group(): it offers torch this backend",
    ),
    (
        ValueError,
        "Default process group has not been initialized",
        'call torch.distributed.init_process_group("gloo") after mpigraph.distributed.initialize()',
    ),
    (
        RuntimeError,
        r"same dtype, but got:? (double|float)|scalar type (double|float)|dtype (double|float) but expected",
        "float64 meets float32: convert features and labels by .float(), or store them so "
        "(python -m mpigraph partition --types COLUMN=float32)",
    ),
    (
        RuntimeError,
        "expected target dtype to be Long",
        "labels of classes are int64: .long(); for labels with fractions take a loss of regression",
    ),
    (
        IndexError,
        r"Target -\d+ is out of bounds",
        "negative labels mark nodes without one: leave these out (node_split of a mask), or give the loss "
        "ignore_index=-1",
    ),
    (
        IndexError,
        r"Target \d+ is out of bounds",
        'the model has fewer outputs than classes: len(g.ndata["label"].categories), or the largest label + 1',
    ),
    (
        IndexError,
        "index out of range in self",
        "an index is negative or not less than num_embeddings; an empty field of a category is -1: use "
        "Embedding(len(categories) + 1, ...) and index + 1",
    ),
    (
        ValueError,
        r"Expected input batch_size \(\d+\) to match target",
        "these are not the scores of the seeds: a model has a layer for each block, a sampler a fanout for each layer",
    ),
    (
        RuntimeError,
        "Expected to have finished reduction in the prior iteration",
        "a minibatch may lack a relation, whose parameters then get no gradient: "
        "DistributedDataParallel(model, find_unused_parameters=True)",
    ),
    (
        Exception,
        "NCCL.*(no GPUs found|only supported with GPUs)|doesn't have NCCL built in|NCCL is not available",
        'nccl needs GPUs: init_process_group("gloo") trains on CPUs',
    ),
)


def remedy(error: BaseException | None) -> str:
    """Return what to do about an error, or about one that it was raised from; "" if that is not known."""
    while error is not None:
        for kind, pattern, text in _REMEDIES:
            if isinstance(error, kind) and re.search(pattern, str(error), re.IGNORECASE):
                return text
        error = error.__cause__ or error.__context__
    return ""


def format_error(error: BaseException) -> str:
    """Return an error's traceback, and its remedy in a last line if that is known.

    An error of this library, or one whose remedy is known, has the user's lines alone. An error of this library that it
    was raised from is left out: its text is in this one's.
    """
    _shorten(error)
    return "".join(traceback.format_exception(error)) + _last_line(error)


def _shorten(error: BaseException) -> None:
    if isinstance(error.__cause__, MPIGraphError):
        error.__cause__ = None
    trace = None
    for line in reversed(lines_of(error) if isinstance(error, MPIGraphError) or remedy(error) else []):
        trace = TracebackType(trace, line.tb_frame, line.tb_lasti, line.tb_lineno)
    error.__traceback__ = trace or error.__traceback__


def _last_line(error: BaseException) -> str:
    text = remedy(error)
    return f"[mpigraph] {text}\n" if text else ""


def show_remedies() -> None:
    """Have an uncaught error of this process followed by its remedy, and Ctrl-C print one line, not a traceback."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            line = line_of(error)
            sys.stderr.write("[mpigraph] interrupted" + (f" at {line}\n" if line else "\n"))
            return
        _shorten(error)
        before(kind, error, error.__traceback__)
        sys.stderr.write(_last_line(error))

    sys.excepthook = show
