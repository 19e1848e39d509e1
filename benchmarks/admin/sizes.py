"""The number of rows of each kind, as shares of the jobs."""

from dataclasses import dataclass

#: The numbers of steps of the chains, in turn: ten on average.
STEPS = (1, 1, 1, 6, 8, 11, 14, 18, 20, 20)
TYPES = 100
QUEUES = 30
APPS = ("shop", "mail", "billing", "stock", "search", "import", "export", "report", "sync", "media")
DAYS = 180

#: Types with a few special chains, each with a large number of related rows. Each type has its own queue.
LOOP = "scale.loop"
HUB = "scale.hub"
JOIN = "scale.join"
STUBBORN = "scale.stubborn"
TALKATIVE = "scale.talkative"

#: The most common type. Only ``RARE_FAILURES`` of its chains failed.
COMMON = "shop.type_00"
#: Its queue, which has jobs of three more types.
COMMON_QUEUE = "queue_00"


@dataclass(frozen=True)
class Sizes:
    """The sizes for a number of jobs. There is one chain for ten jobs, and the special chains grow with the jobs."""

    jobs: int = 10_000_000

    @property
    def chains(self) -> int:
        return self.jobs // 10

    @property
    def pending(self) -> int:
        return self.jobs // 100

    @property
    def scheduled(self) -> int:
        return self.jobs // 2_000

    @property
    def running(self) -> int:
        return self.jobs // 5_000

    @property
    def blocked(self) -> int:
        return self.jobs // 500

    @property
    def failed(self) -> int:
        return self.jobs // 200

    @property
    def dependents(self) -> int:
        """The number of dependents of the one chain that half of the blocked jobs wait for."""
        return self.blocked // 2

    @property
    def steps_of_loop(self) -> int:
        return max(self.jobs // 1_000, 100)

    @property
    def blockers_of_join(self) -> int:
        return max(self.jobs // 20_000, 20)

    @property
    def attempts_of_stubborn(self) -> int:
        return max(self.jobs // 1_000, 100)

    @property
    def talking(self) -> int:
        """The number of jobs with log lines and progress, which are the newest ones."""
        return self.jobs // 100
