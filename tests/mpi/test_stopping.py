"""At which call trainers stop: thousands of jobs in which the next thing to happen is drawn, down to single words.

Trainers and leaders are the real ones; memory, reductions and time are the test's. Between what a
trainer or a leader writes and what it then reads, anything else may happen.
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi import stopping
from mpigraph.mpi.stopping import NEVER, STOP, Decider, Stopping, word

MANY = 60_000  # events: a job that takes more hangs


class Trainer:
    """Makes epochs of steps. A step may be a collective, which all trainers of the job take part in.

    A trainer whose epoch is shorter takes part in the other's steps and makes no calls, as in DDP's ``join``.
    """

    def __init__(self, job: "Job", slots: list[np.ndarray], rank: int, steps: list[int]) -> None:
        self.job = job
        self.steps = steps
        self.stopping = Stopping(slots, rank, 0, job.meanwhile, True, False)
        self.begun = self.collectives = 0
        self.stopped_at: tuple[int, int] | None = None
        self.done = False
        self.life = self.live()

    def live(self) -> Iterator[None]:
        for epoch, own in enumerate(self.steps):
            for step in range(self.job.longest[epoch]):
                yield from self.collective(self.job.coupled)
                if step < own and (yield from self.call(epoch, step)):
                    return
            yield from self.collective(self.job.meets)
            if self.job.meets:
                self.stopping.meet()
        self.stopping.leave()

    def collective(self, needed: bool) -> Iterator[None]:
        yield
        if needed:
            self.begun += 1
            while min(trainer.begun for trainer in self.job.trainers) < self.begun:
                yield

    def call(self, epoch: int, step: int) -> "Iterator[None] | bool":
        at = 1000 * epoch + step if self.job.numbered else None
        answer = True if self.stopping.agreed else self.stopping.arrive(at)
        while answer is None:
            yield
            answer = self.stopping.answer()
        if answer:
            self.stopped_at = epoch, step
        return answer


class Job:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.coupled, self.numbered, self.meets = (rng.random() < p for p in (0.7, 0.3, 0.6))
        self.uneven = rng.random() < 0.4
        self.patience = rng.choice([0.1, 1.0, 5.0, 5.0])  # impatient deciders let trainers go on at the worst moments
        self.meets |= self.uneven and not self.numbered  # what trainers count would differ for ever
        epochs = rng.randint(1, 4)
        least = [rng.randint(1, 12) for _ in range(epochs)]
        sizes = [rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
        plans = [[n + self.uneven * rng.randint(0, 2) for n in least] for _ in range(sum(sizes))]
        self.longest = [max(steps) for steps in zip(*plans, strict=True)]
        self.now, self.depth = 0.0, 0
        self.trainers: list[Trainer] = []
        self.leaders: list[Decider] = []
        self.slots = [[np.zeros(3, np.int64) for _ in range(size)] for size in sizes]
        for slots in self.slots:
            for rank in range(len(slots)):
                self.trainers.append(Trainer(self, slots, rank, plans[len(self.trainers)]))
            self.leaders.append(Decider(slots, 0, self.meanwhile))
        self.given: dict[int, np.ndarray] = {}  # by leader, in the round under way
        self.looking: set[int] = set()
        self.results: list[list[np.ndarray]] = [[] for _ in sizes]  # of rounds, not yet noticed by each leader
        self.speeds = [rng.choice([1, 1, 5]) for _ in self.trainers]

    def meanwhile(self) -> None:
        """Make other events happen between two instructions of a rank."""
        if self.depth < 3 and self.rng.random() < 0.3:
            self.depth += 1
            for _ in range(self.rng.randint(1, 4)):
                self.event()
            self.depth -= 1

    def event(self) -> None:
        kind = self.rng.random()
        if kind < 0.6:
            self.move(self.rng.choices(self.trainers, self.speeds)[0])
        else:
            self.lead(self.rng.randrange(len(self.leaders)))
        self.now += 0.02

    def move(self, trainer: Trainer) -> None:
        if not trainer.done and not trainer.life.gi_running:
            trainer.done = next(trainer.life, self) is self

    def lead(self, number: int) -> None:
        """A tick of a leader: it notices the result of a round, decides by it, and gives its part of the next."""
        if self.results[number] and self.rng.random() < 0.7:
            self.leaders[number].choose(self.results[number].pop())
        elif not self.results[number] and number not in self.given and number not in self.looking:
            self.looking.add(number)  # what happens meanwhile is not done by this leader
            self.given[number] = self.leaders[number].look(self.now)
            self.looking.remove(number)
            if len(self.given) == len(self.leaders):
                result = np.max(list(self.given.values()), axis=0)
                self.given = {}
                for results in self.results:
                    results.append(result)

    def run(self) -> None:
        first = self.rng.choice([0, self.rng.randint(0, 400)])
        for number in range(MANY):
            if number >= first and (number == first or self.rng.random() < 0.01):
                self.rng.choice(self.rng.choice(self.slots))[0] = 1
            self.event()
            if all(trainer.done for trainer in self.trainers):
                return
        raise AssertionError("the job hangs")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR", "mpigraph")


@pytest.mark.parametrize("part", [*range(4), *(pytest.param(k, marks=pytest.mark.study) for k in range(4, 200))])
def test_all_stop_at_the_same_step_or_none(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    stopped = 0
    for seed in range(100 * part, 100 * part + 100):
        job = Job(seed)
        monkeypatch.setattr(stopping, "_PATIENCE", job.patience)
        job.run()
        ends = {trainer.stopped_at for trainer in job.trainers}
        assert len(ends) == 1, (seed, ends)
        stopped += ends != {None}
    assert stopped >= 30


class Chosen:
    """The targets that a leader chooses, given what it has read."""

    def __init__(self) -> None:
        self.slots = [np.array([0, 0, NEVER])]
        self.decider = Decider(self.slots, 0, lambda: None)

    def next(self, first: int, last: int, held: float) -> int:
        self.decider.choose(np.array([1, -first, last, int(1000 * held)]))
        return int(self.slots[0][2])


def test_a_trainer_that_makes_no_calls_holds_up_the_others_for_some_seconds() -> None:
    """Each time twice as long, and twice as many calls later."""
    chosen = Chosen()
    assert chosen.next(0, 0, 0.0) == 0
    assert chosen.next(word(6, False), word(7, True), 0.1) == 7
    targets = []
    at = 7
    for k in range(5):
        assert chosen.next(word(3, False), word(at, True), 2**k * 4.0) == at
        at = chosen.next(word(3, False), word(at, True), 2**k * 6.0)
        targets.append(at)
    assert targets == [8, 10, 14, 22, 38]
    assert chosen.next(word(3, False), word(stopping.LEFT, False), 1.0) == NEVER
    assert chosen.next(word(50, True), word(50, True), 1.0) == NEVER


def test_a_trainer_that_is_let_go_on_does_not_count_as_held() -> None:
    chosen = Chosen()
    chosen.next(0, 0, 0.0)
    assert chosen.next(word(4, False), word(5, True), 0.1) == 5
    assert chosen.next(word(4, False), word(5, True), 6.0) == 6
    late = word(5, True)  # it has not seen yet that it may go on
    chosen.slots[0][1] = late
    assert chosen.decider.look(100.0)[3] == 0
    assert chosen.next(late, late, 0.0) == 6
    assert chosen.next(word(6, True), word(6, True), 0.0) == STOP


def test_positions_grow() -> None:
    slots = [np.zeros(3, np.int64)]
    trainer = Stopping(slots, 0, 0, lambda: None, True, False)
    assert trainer.arrive(0) is False and trainer.arrive(7) is False
    for wrong in (7, -1, 2**62, 1.5):
        with pytest.raises(InvalidArgumentError, match="at must be"):
            trainer.arrive(wrong)
    with pytest.raises(InvalidArgumentError, match="in every call"):
        trainer.arrive(None)
    counting = Stopping(slots, 0, 0, lambda: None, True, False)
    words = []
    for meets in (0, 0, 1, 0, 2):
        for _ in range(meets):
            counting.meet()
        counting.arrive(None)
        words.append(int(slots[0][1]))
    assert words == sorted(set(words))
