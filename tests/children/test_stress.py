"""Many threads use a pool at once, and make every mistake: nobody gets another's child or reply."""

import os
import random
import threading
from collections import deque

import psutil
import pytest

from django_jobchains.children import child_process
from django_jobchains.pools import PENDING, ChildCrashed, ChildTimeout, PooledChild, PoolTimeout, ReusablePool
from django_jobchains.testing.contracts.pools import on_thread
from tests.children.conftest import FUNCTIONS, open_files
from tests.support.waiting import until

MAX_WORKERS = 3
THREADS = 6
STEP = f"{FUNCTIONS}:step"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Stress:
    """``users``: the child that each thread holds, by its pid, to notice a process with two users."""

    def __init__(self, pool):
        self.pool = pool
        self.over = threading.Event()
        self.calls = 0
        self.crashes = 0
        self._lock = threading.Lock()
        self._users: dict[int, PooledChild] = {}
        #: Children that were released, or that their users hold for a call.
        self._known: deque[PooledChild] = deque(maxlen=20)

    def has_done_enough(self):
        return self.calls > 5000 and self.crashes > 15

    def use(self, seed):
        chance = random.Random(seed)
        while not self.over.is_set():
            try:
                child = self.pool.acquire(chance.choice("ab"), timeout=chance.choice([0.01, None]))
            except PoolTimeout:
                continue
            with self._lock:
                assert self._users.setdefault(child.pid, child) is child, "The process has two users."
            try:
                self._call(child, chance)
            except (ChildCrashed, ChildTimeout):
                self.crashes += 1
            finally:
                with self._lock:
                    del self._users[child.pid]
                self._known.append(child)
                self.pool.release(child, broken=chance.random() < 0.05)

    def _call(self, child, chance):
        kind = chance.randrange(12)
        if kind == 0:
            child.run(STEP, "die")
        elif kind == 1:
            child.run(f"{FUNCTIONS}:hang", timeout=0.02)
        elif kind == 2:  # Another thread releases it during its call.
            call = child.start(f"{FUNCTIONS}:hang")
            released = on_thread(lambda: self.pool.release(child))
            with pytest.raises(ChildCrashed):
                call.wait()
            released.result(30)
        elif kind == 3:
            calls = child.start_all(STEP, ["wait", *range(2000)])
            assert calls[0].wait(0.001) is PENDING
            child.withdraw()
            if not calls[0].is_withdrawn:
                calls[0].abort("cancelled")
                assert calls[0].wait() == "cancelled"
        else:
            numbers = [chance.random() for _ in range(chance.choice([1, 10, 500]))]
            assert [call.wait() for call in child.start_all(STEP, numbers)] == numbers
            self.calls += len(numbers)

    def release_late(self):
        """Release children again that their users have released before."""
        while not self.over.wait(0.0005):
            if self._known:
                self.pool.release(self._known.popleft(), broken=random.random() < 0.5)

    def watch(self):
        """Check the number of processes."""
        process = psutil.Process(child_process.get_preload().pid)
        while not self.over.wait(0.005):
            running = [child for child in process.children() if uses_memory(child)]
            # Those that still run had all begun before the second look.
            assert sum(map(uses_memory, running)) <= MAX_WORKERS


def uses_memory(process):
    """Return whether a process still runs. One that ends first frees its memory."""
    try:
        return bool(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return False


def test_threads_that_make_mistakes_do_not_affect_others(tmp_path, monkeypatch):
    child_process.close_preload()
    # A child that is not ready is given up after this time, if the preload process is busy or stopped.
    monkeypatch.setattr(child_process, "MAX_REPORT_SECONDS", 30)
    monkeypatch.setenv("SLOW_IMPORT", str(tmp_path / "import"))
    options = {"max_jobs_per_worker": 2000, "idle_ttl": 0.05, "grace_seconds": 0.2, "strict": False}
    with ReusablePool(MAX_WORKERS, setup="tests.children.slow_import:set_up", **options) as pool:
        pool.release(pool.acquire(), broken=True)
        (tmp_path / "import").touch()  # The next child lets the preload process import the module for a second.
        threading.Timer(1, (tmp_path / "import").unlink).start()
        before = len(open_files(os.getpid()))
        stress = Stress(pool)
        uses = [*(lambda seed=seed: stress.use(seed) for seed in range(THREADS)), stress.release_late, stress.watch]
        ends = [on_thread(use) for use in uses]
        until(lambda: stress.has_done_enough() or any(end.done() for end in ends), 90)
        stress.over.set()
        for end in ends:
            end.result(60)
        until(lambda: pool.size == 0)  # after their idle time
        assert not pool.is_full()
        until(lambda: len(open_files(os.getpid())) <= before)
        until(lambda: not psutil.Process(child_process.get_preload().pid).children())
    child_process.close_preload()
