"""Spans and counters: sums of threads and of loaders, and the rings that other processes read."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from layouts import Layout, SharedJob, on_layouts
from mpi4py import MPI

import mpigraph.distributed as dist
from mpigraph.mpi.board import Board
from mpigraph.recording import Recording, Step, delayed
from mpigraph.trace import Snapshot, Totals, _Sheet, address, clock, count, memory, process, span, sums
from mpigraph.trace_memory import Trace


def spans_here(name: str) -> list[str]:
    return [event.detail for event in Trace(address()).events() if event.name == name]


def test_sums_of_spans_and_counters() -> None:
    totals = Totals()
    before = totals.snapshot()
    with totals:
        with span("outer") as outer:
            for _ in range(3):
                with span("inner"):
                    time.sleep(0.002)
        count("rows", 4)
        count("rows", np.int64(3))
        count("bytes_sent", 10, host=2)
    middle = totals.snapshot()
    with span("outer"), totals, Totals():
        count("rows", 100)
    done = middle.since(before)
    assert done.counts == {"rows": 7, ("bytes_sent", 2): 10}
    assert 0.006 <= done.seconds("inner") <= done.seconds("outer") == outer.seconds
    assert [sum(done.stages[name].histogram) for name in ("inner", "outer")] == [3, 1]
    assert sum(done.stages["inner"].histogram[:11]) == 0  # 2 ms lie in no bin below 1.024 us * 2**10
    assert totals.snapshot() == middle and totals.snapshot().since(middle).counts["rows"] == 0


def test_totals_of_threads_that_come_and_go() -> None:
    """Several users of one process each get their own sums, from all their threads, at once and one after another."""
    users = [Totals() for _ in range(3)]

    def work(totals: Totals, number: int) -> None:
        for _ in range(500):
            with totals, span("work"):
                count("rows", number)

    for _ in range(20):
        threads = [threading.Thread(target=work, args=(users[k % 3], k % 3)) for k in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number, totals in enumerate(users):
        done = totals.snapshot()
        assert done.counts == {"rows": 20 * 3 * 500 * number}
        assert sum(done.stages["work"].histogram) == 20 * 3 * 500
        assert len(totals.all()) <= 9


def test_a_signal_handler_may_read_totals_that_its_thread_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = Totals()
    with totals, span("work"):
        pass
    seen: list[int] = []

    def handle(*_: object) -> None:
        if not memory.lock.acquire(timeout=5):
            raise TimeoutError
        memory.lock.release()
        monkeypatch.undo()
        seen.append(len(totals.snapshot().stages))

    add = _Sheet.add

    def add_slowly(total: _Sheet, sheet: _Sheet) -> None:
        signal.raise_signal(signal.SIGUSR2)
        add(total, sheet)

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        monkeypatch.setattr(_Sheet, "add", add_slowly)
        assert len(totals.snapshot().stages) == 1
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == [1]


def test_a_ring_keeps_the_last_events() -> None:
    with span("old", detail="begun before all others"):
        with span("a\udc80b"):
            pass
        assert Trace(address()).events()[-1].name == "a?b"
        for number in range(200):
            with span("new", number, str(number)):
                pass
        events = [event for event in Trace(address()).events() if event.name == "new"]
        assert [event.batch for event in events][-60:] == list(range(140, 200))
        assert all(event.end >= event.begin and event.detail == str(event.batch) for event in events)
    assert "begun before all others" not in Trace(address()).last()


def test_more_threads_than_rings() -> None:
    ready = threading.Barrier(41)

    def work() -> None:
        with span("crowded"):
            ready.wait()
            ready.wait()

    threads = [threading.Thread(target=work) for _ in range(40)]
    for thread in threads:
        thread.start()
    ready.wait()
    assert 20 <= len(spans_here("crowded")) <= 32
    ready.wait()
    for thread in threads:
        thread.join()
    with span("main", detail="goes on"):
        assert spans_here("main")[-1:] == ["goes on"]


def test_a_fork_leaves_its_parents_ring_and_sums_alone() -> None:
    with span("outer"), Totals() as totals:
        count("rows", 1)
        child = os.fork()
        if not child:
            try:
                with span("forked", detail="child"):
                    spans = spans_here("forked")
                count("rows", 1)
                os._exit(not (spans == ["child"] and totals.snapshot().counts == {"rows": 2}))
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert spans_here("forked") == [] and totals.snapshot().counts == {"rows": 1}
        assert Trace(address()).last().startswith("in outer")


DIES = """
import os
from mpigraph.trace import address, count, span
print(*address(), flush=True)
with span("fetch", 7):
    pass
with span("meet", detail="what rank 3 answers"):
    input()
    os.kill(os.getpid(), 9)
"""


def test_the_last_spans_of_a_dead_process() -> None:
    with subprocess.Popen([sys.executable, "-c", DIES], stdin=-1, stdout=-1, text=True) as process:
        pid, file, mark = map(int, process.stdout.readline().split())
        trace = Trace((pid, file, mark))
        assert Trace((pid, file, mark + 1)).last() == "" == Trace((pid, -1, mark)).last()
        process.communicate("\n")
    assert process.returncode == -9
    last = trace.last()
    assert last.startswith("in meet (what rank 3 answers) for ") and "; before: fetch (minibatch 7) " in last


@on_layouts([Layout(1, 0, 0)])
def test_a_new_timing_is_one_line(job: SharedJob) -> None:
    """It is in the statistics of its loader and no other, and in what an abort prints, without another edit."""

    def decode(ids: list[int]) -> list[int]:
        with span("decode"):
            return ids

    decoding = dist.DistDataLoader(np.arange(10), 2, collate_fn=decode)
    plain = dist.DistDataLoader(np.arange(10), 5)
    assert [len(list(loader)) for loader in (decoding, plain)] == [5, 2]
    stats = decoding.stats()
    assert sum(stats.totals.stages["decode"].histogram) == 5 and "decode 0.0" in str(stats)
    assert (stats.minibatches, plain.stats().minibatches) == (5, 2) and "decode" not in str(plain.stats())
    assert stats.seconds["wait"] > 0 and stats.seconds["step"] > 0 and stats.since(stats).seconds["wait"] == 0
    with span("decode"):
        board = Board(MPI.COMM_SELF, "rank 0")
        lines = board.lines(0.0)
        board.close()
    assert "decode" in lines[-1]


def own_and_rest(recording: Recording, thread: str) -> tuple[dict[str, float], float]:
    done = recording.after[thread].since(recording.before.get(thread, Snapshot()))
    own = {name: stage.own for name, stage in done.stages.items() if stage.own}
    return own, (recording.end - recording.begin) / 1e9 - sum(own.values())


def test_own_times_and_the_rest_are_the_wall_time() -> None:
    """Of spans that begin before, inside and after a recording, that are interleaved, and that fail."""

    def step() -> Iterator[None]:
        with span("step"):
            yield

    def sleep() -> float:
        begin = clock()
        time.sleep(0.01)
        return clock() - begin

    with span("outer"):
        sleep()
        recording = Recording()
        alone = sleep()
        first, second = step(), step()
        next(first)
        once = sleep()
        next(second)
        twice = sleep()
        assert list(first) == []
        once += sleep()
        assert list(second) == []
        with span("fetch"), pytest.raises(KeyError), span("sample"), span("meet"):
            inside = sleep()
            raise KeyError
        with span("plan"):
            planned = sleep()
            recording.stop()
            sleep()
    own, rest = own_and_rest(recording, "MainThread")
    slept = {"outer": alone, "step": once + twice, "fetch": inside, "plan": planned}
    spare = (recording.end - recording.begin) / 1e9 - sum(slept.values())
    assert own.keys() == slept.keys() and -1e-6 < rest <= spare
    for name, seconds in slept.items():
        assert seconds <= own[name] <= seconds + spare


def test_a_recording_keeps_the_spans_of_all_threads() -> None:
    def work(number: int) -> None:
        with span("batch", number, f"number {number}"):
            with span("inner"):
                pass

    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        with span("wait"):
            ready.set()
            done.wait()

    waiting = threading.Thread(target=wait, name="waits")
    waiting.start()
    ready.wait()
    recording = Recording(most_spans=8)
    with pytest.raises(RuntimeError, match="already"):
        Recording()
    for number in range(6):
        thread = threading.Thread(target=work, args=(number,), name=f"mpigraph-worker_{number}")
        thread.start()
        thread.join()
    recording.stop()
    recording.stop()
    with span("after"):
        done.set()
    waiting.join()
    logs = {log.name: list(log.spans) for log in recording.logs}
    spans = logs["mpigraph-worker"]  # one for all: they came one after another
    assert [(name, batch, detail) for name, _, _, batch, detail in spans] == [
        span for number in range(2, 6) for span in [("inner", 0, ""), ("batch", number, f"number {number}")]
    ]
    for (_, begin, end, _, _), (_, around, after, _, _) in zip(spans[::2], spans[1::2], strict=True):
        assert around <= begin <= end <= after
    ((name, begin, end, _, _),) = logs["waits"]
    assert name == "wait" and begin < recording.begin and end == recording.end
    # of other tests: a backward pass that failed leaves its wait open
    assert all(begin < recording.begin for _, begin, _, _, _ in logs["MainThread"])


def test_sums_of_threads_and_loaders_that_are_gone() -> None:
    def work() -> None:
        with Totals(), span("vanishes"):
            count("sent_bytes", 5, host=3)
        count("kept", 1)

    for _ in range(10):
        thread = threading.Thread(target=work, name="passing_1")
        thread.start()
        thread.join()
    gc.collect()
    for _ in range(2):
        gone = sums()[1]["passing"]
        assert sum(gone.stages["vanishes"].histogram) == 10
        assert gone.counts == {("sent_bytes", 3): 50, "kept": 10}


@on_layouts([Layout(1, 0, 0)])
def test_steps_of_a_loader(job: SharedJob) -> None:
    loader = dist.DistDataLoader(np.arange(10), 4, num_prefetch=0)
    recording = Recording()
    for _ in loader:
        with span("meet"):
            time.sleep(0.002)
    recording.stop()
    seconds, wait, meet, delay, seeds, inputs = np.array(recording.steps).T
    assert seconds.sum() <= recording.end - recording.begin
    assert (wait > 0).all() and (meet >= 2e6).all() and (wait + meet <= seconds).all()
    assert seeds.tolist() == [4, 4, 2] and inputs.tolist() == [-1] * 3
    assert (delay >= 0).all() == os.path.exists("/proc/thread-self/schedstat")


@on_layouts([Layout(1, 0, 0)])
def test_the_delay_of_a_step_is_unknown_if_its_recording_began_within(job: SharedJob) -> None:
    for _ in dist.DistDataLoader(np.arange(4), 4, num_prefetch=0):
        recording = Recording()
    recording.stop()
    (step,) = recording.steps
    assert isinstance(step, Step) and step.delay == -1 == delayed()


def test_the_steady_state_keeps_nothing() -> None:
    """Once each stage and counter has been met, with and without a recording."""

    def minibatches(number: int) -> None:
        for batch in range(number):
            with span("sample", batch), span("meet", detail="an answer"):
                count("received_bytes", 100, 3)
            count("remote_rows", 1)

    def loaders(number: int) -> None:
        for batch in range(number):
            with Totals(), span("sample", batch):
                count("rows_of_dropped", 1)

    def allocated(of: Callable[[int], None]) -> int:
        of(2_000)
        gc.collect()
        before = sys.getallocatedblocks()
        of(10_000)
        gc.collect()
        return sys.getallocatedblocks() - before

    assert allocated(minibatches) < 50 and allocated(loaders) < 50  # each loader has totals, which nothing reads
    assert sums()[1]["MainThread"].counts["rows_of_dropped"] == 12_000
    thread = process.threads()[-1]
    cells = [len(sheet.stages) + len(sheet.counts) for sheet in process.all()]
    with Totals() as totals:
        assert allocated(minibatches) < 50
        recording = Recording(most_spans=1000)
        try:
            assert allocated(minibatches) < 50
        finally:
            recording.stop()
    assert thread in process.threads()
    assert cells == [len(sheet.stages) + len(sheet.counts) for sheet in process.all()]
    assert totals.snapshot().counts["remote_rows"] == 24_000
    assert max(len(log.spans) for log in recording.logs) == 1000
