"""One run: start the job, measure piece by piece, report once."""

import sys
import time
from typing import Any

from mpigraph.cli.bench import plot, report
from mpigraph.cli.bench.figures import collect, values
from mpigraph.cli.bench.graph import feature_of, place_of_graph
from mpigraph.cli.bench.machine import describe, measure_copy
from mpigraph.cli.bench.memory import measure_memory
from mpigraph.cli.bench.pipeline import Pipeline
from mpigraph.cli.bench.rounds import measure_rounds
from mpigraph.cli.bench.rows import measure_rows
from mpigraph.cli.bench.settings import Settings
from mpigraph.cli.bench.verdict import verdict
from mpigraph.distgraph.graph import DistGraph
from mpigraph.session.context import Session, current, exit_client, initialize

__all__ = ["run"]

# shares of Settings.seconds
_COPY, _ROWS, _ROUNDS, _PIECES, _AHEAD = 0.1, 0.3, 0.1, 0.25, 0.25


def run(settings: Settings, age: float | None, comm: Any = None) -> int:
    """Measure and report; on a server, serve.

    Args:
        settings: what to measure on.
        age: seconds since this process was started, or None.
        comm: the ranks that take part; all by default.

    Returns:
        The exit status, on trainers.

    Raises:
        MPIGraphError: the job could not be started or the report not written; on every trainer.
        SystemExit: on a server, when the job is over.

    Collective on ``comm``.
    """
    if settings.plot:
        plot.need_matplotlib()
    begin = time.perf_counter()
    initialize(num_servers=settings.num_servers, comm=comm)
    start = {"start_python": age, "start_initialize": time.perf_counter() - begin}
    session = current()
    try:
        _measure_and_report(session, settings, start)
    except Exception as error:
        if session.world.size > 1 and not getattr(error, "everywhere", False):
            sys.excepthook(type(error), error, error.__traceback__)  # the others wait for this rank: end the job
        raise
    exit_client()
    return 0


def _measure_and_report(session: Session, settings: Settings, start: dict[str, float | None]) -> None:
    mine = start | _measure(session, settings, start)
    figures = collect(session.world, mine)
    found = report.document(session.world, settings, describe(), figures, verdict(values(figures)))
    with session.world.together("writing the report"):
        if session.rank == 0:
            print(report.table(found), flush=True)
            if settings.out:
                report.write(found, settings.out)
            if settings.plot:
                plot.draw(found, settings.plot)


def _measure(session: Session, settings: Settings, start: dict[str, float | None]) -> dict[str, float | None]:
    """Every figure of this trainer but those of the start. Collective on the trainers."""
    world, seconds = session.world, settings.seconds
    with place_of_graph(world, settings) as place:
        begin = time.perf_counter()
        g = DistGraph(place.name, part_config=place.config)
        loaded = time.perf_counter() - begin
    feature = feature_of(g)
    pipeline = Pipeline(session, g, feature, settings)
    mine: dict[str, float | None] = {"start_load": loaded, "start_first": pipeline.measure_first()}
    steps = [*start.values(), *mine.values()]
    mine["start_total"] = None if None in steps else sum(step for step in steps if step is not None)
    _say(session, "measuring memory and rows")
    mine |= measure_copy(world, _COPY * seconds)
    mine |= measure_rows(world, feature, _ROWS * seconds)
    _say(session, "measuring rounds")
    mine |= measure_rounds(session, _ROUNDS * seconds)
    _say(session, "measuring the training step")
    mine |= pipeline.measure_pieces(_PIECES * seconds)
    mine |= pipeline.measure_ahead(_AHEAD * seconds, mine["step_total"] or 1.0)
    return mine | measure_memory(world)


def _say(session: Session, what: str) -> None:
    if session.rank == 0:
        print(what, file=sys.stderr, flush=True)
