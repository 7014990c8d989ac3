"""How many drafts an engine's target accepts, by the factor set of their request and by how long it has been in it."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Count:
    """Drafts that were scheduled, and those of them that were accepted."""

    drafted: int = 0
    accepted: int = 0

    @property
    def share(self) -> float:
        return self.accepted / max(self.drafted, 1)


@dataclass
class Acceptance:
    """Counts of a running engine."""

    by_set: dict[int, Count] = field(default_factory=lambda: defaultdict(Count))  # By the index of the set.
    # Of the first 8 steps of requests that have just moved to their set.
    after_switch: Count = field(default_factory=Count)
    # The most tokens computed of a request, drafts with them, by the index of its set.
    longest: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def accepting_sets(self) -> set[int]:
        """The indices of the sets in which drafts were accepted."""
        return {index for index, count in self.by_set.items() if count.accepted}


def watch(scheduler: Any) -> Acceptance:
    """Count what a scheduler in this process plans and accepts from now on."""
    found = Acceptance()
    count_stats, schedule = scheduler.make_spec_decoding_stats, scheduler.schedule
    # The set of each request at its last step, and its steps since it changed.
    sets: dict[str, int] = {}
    steps: dict[str, int] = {}

    def counting(*args: Any, **kwargs: Any) -> Any:
        name = kwargs["request_id"]
        index = scheduler.placements[name].index
        if sets.setdefault(name, index) != index:
            sets[name], steps[name] = index, 0
        counts = [found.by_set[index]]
        if name in steps:
            steps[name] += 1
            counts += [found.after_switch] if steps[name] <= 8 else []
        for each in counts:
            each.drafted += kwargs["num_draft_tokens"]
            each.accepted += kwargs["num_accepted_tokens"]
        return count_stats(*args, **kwargs)

    def scheduling(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        for name in output.num_scheduled_tokens:
            request = scheduler.requests[name]
            index = scheduler.placements[name].index
            sets.setdefault(name, index)
            # Counted as computed already, drafts with them.
            found.longest[index] = max(found.longest[index], request.num_computed_tokens)
        return output

    scheduler.make_spec_decoding_stats, scheduler.schedule = counting, scheduling
    return found
