"""Ray actors that work on pieces. One that dies is replaced, and its pieces are done again by whoever is free."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from vigneron.distributed.node_info import node_info
from vigneron.errors import UserError
from vigneron.remote.ray.cluster import Cluster, Wanted

# Pieces that an actor has at a time: one to work on, and the next.
IN_FLIGHT = 2
# How long a place on some node is waited for, where nobody else works: a process begins there and imports torch, from a
# network disk perhaps.
PLACE_S = 300.0
# So often, for each actor of the pool, one may be replaced in one piece of work.
REPLACEMENTS = 2
# Ray explains at length, the cause first.
LONGEST_WHY = 120
# How often we look whether somebody is overdue.
LOOK_S = 1.0


class Unfit(Exception):
    """An actor is not in the state it should be in: it is replaced, like one that has died."""


class PoolActor:
    """What every actor answers."""

    def where(self) -> dict[str, str | None]:
        import ray

        return {**node_info(), "node": ray.get_runtime_context().get_node_id()}

    def begin(self) -> Any:
        """Load what does not change. What is returned, the pool's owner looks at."""
        return None


@dataclass(eq=False)
class Member:
    handle: Any
    since: float
    """When it last answered, or was asked while it was idle."""
    stage: Literal["placing", "loading", "ready"] = "placing"
    name: str = "not placed yet"
    asked: Any = None
    """The answer that is waited for before it gets a piece: where it is, that it has loaded, that it has its charge."""
    given: tuple[Any, Any] = (None, None)
    """The charge that it was last given, and its key then."""
    has: Any = None
    """The key of the charge that it has acknowledged."""
    sent: tuple[Any, int] = (None, 0)
    """A charge's key, and how many of its parts are on their way."""
    near: bool = False
    """Whether it works on our own GPU, and can read our memory there."""
    lent: bool = False
    """Whether it has the handles of what it reads."""
    flying: dict[Any, int] = field(default_factory=dict)


class Charge(Protocol):
    """What an actor must have, and have acknowledged, before it works: a version of the weights."""

    @property
    def key(self) -> Any: ...

    def give(self, member: Member) -> Any:
        """The reference of its answer."""
        ...

    def check(self, answer: Any, member: Member) -> bool:
        """Whether it has it now, or is to be given it again. Raises `Unfit` where it is not what was given."""
        ...


@dataclass
class Work:
    """Results in the order of the pieces, and who made each."""

    results: list[Any]
    by: list[str]
    again: set[int] = field(default_factory=set)
    """Pieces that were lost with an actor, and done again."""
    replaced: int = 0
    done: int = 0


class Pool:
    def __init__(
        self,
        cluster: Cluster,
        wanted: Wanted,
        make: Callable[[], Any],
        *,
        timeout_s: float = 600.0,
        begun: Callable[[Any, Member], None] = lambda answer, member: None,
    ) -> None:
        """`make` gives a handle, not yet placed; `begun` is told what an actor's `begin` returned, and which it is."""
        self._cluster, self._ray, self._wanted, self._make = cluster, cluster.ray, wanted, make
        self._timeout_s, self._begun = timeout_s, begun
        self._size = wanted.pool.actors
        self._nobody_since: float | None = None
        self._closed = False
        self.members = [self._new() for _ in range(self._size)]

    def ready(self) -> list[Member]:
        return [member for member in self.members if member.stage == "ready"]

    def start(self, charge: Charge | None = None) -> None:
        """Every actor is placed, loaded, and has its charge; or it is said why not."""
        began, nothing = time.monotonic(), Work([], [])
        while not all(self._is_set(member, charge) for member in self.members):
            self.charge(self.ready(), charge)
            self._look(nothing, deque(), charge)
            waiting = [member for member in self.members if member.stage == "placing"]
            if waiting and time.monotonic() - began > PLACE_S:
                raise self._no_place(f"{len(waiting)} of {self._size} actors")

    def charge(self, members: Iterable[Member], charge: Charge | None) -> None:
        """They begin to take it, unless they have it."""
        for member in members:
            if charge is not None and member.asked is None and member.has != charge.key:
                member.since, member.has = time.monotonic(), None
                member.given, member.asked = (charge, charge.key), charge.give(member)

    def work(self, method: str, pieces: Sequence[tuple[Any, ...]], charge: Charge | None = None) -> Work:
        """`method` of the actors, called with each piece."""
        work = Work([None] * len(pieces), [""] * len(pieces))
        waiting = deque(range(len(pieces)))
        while work.done < len(pieces):
            self._hand_out(method, pieces, waiting, charge)
            self._look(work, waiting, charge)
        return work

    def close(self) -> None:
        for member in self.members:
            self._kill(member)
        self.members, self._closed = [], True

    # ------------------------------------------------------------------------------------------ one turn of the loop

    def _hand_out(
        self, method: str, pieces: Sequence[tuple[Any, ...]], waiting: deque[int], charge: Charge | None
    ) -> None:
        """Everybody gets one before somebody gets two, also those who have still to acknowledge their charge."""
        for full in range(1, IN_FLIGHT + 1):
            for member in self.ready():
                idle = sum(1 for other in self.ready() if not other.flying) if member.flying else 0
                if not self._is_set(member, charge):
                    self.charge([member], charge)
                elif len(waiting) > idle and len(member.flying) < full:
                    piece = waiting.popleft()
                    if not member.flying:
                        member.since = time.monotonic()
                    ref = getattr(member.handle, method).remote(*pieces[piece])
                    member.flying[ref] = piece

    def _is_set(self, member: Member, charge: Charge | None) -> bool:
        return member.stage == "ready" and (charge is None or member.has == charge.key)

    def _look(self, work: Work, waiting: deque[int], charge: Charge | None) -> None:
        """Take what has come, for a second at most; replace whoever has died or is overdue."""
        if self._closed:  # under a thread that samples ahead: asking Ray anything more would start it again
            raise Unfit("the pool is closed")
        owners = {ref: member for member in self.members for ref in (member.asked, *member.flying) if ref is not None}
        came, _ = self._ray.wait(list(owners), num_returns=1, timeout=LOOK_S)
        more, _ = self._ray.wait(list(owners), num_returns=len(owners), timeout=0)
        for ref in dict.fromkeys([*came, *more]):
            member = owners[ref]
            if member in self.members and (ref is member.asked or ref in member.flying):
                self._take(ref, member, work, waiting, charge)
        now = time.monotonic()
        for member in list(self.members):
            busy = member.stage != "placing" and (member.asked is not None or member.flying)
            if busy and now - member.since > self._timeout_s:
                self._replace(member, f"it has not answered for {self._timeout_s:g} s", work, waiting)
        self._check_somebody_is_placed(now)

    def _take(self, ref: Any, member: Member, work: Work, waiting: deque[int], charge: Charge | None) -> None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(ref)
            if ref is member.asked:
                self._advance(member, answer, charge)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(f"{error.cause} (on the Ray node {member.name})") from error
            if not isinstance(error.cause, errors.RayError | Unfit):
                raise (error.cause or error) from error
            self._replace(member, _why(error.cause), work, waiting)
            return
        except (errors.RayError, Unfit) as error:
            self._replace(member, _why(error), work, waiting)
            return
        member.since = time.monotonic()
        if ref in member.flying:
            piece = member.flying.pop(ref)
            work.results[piece], work.by[piece] = answer, member.name
            work.done += 1

    def _advance(self, member: Member, answer: Any, charge: Charge | None) -> None:
        member.asked = None
        if member.stage == "placing":
            member.name = f"{answer['host']}/{answer['node'][:8]}/{answer['pid']}"
            self._cluster.check_facts(answer, f"'{answer['host']}' ({answer['node'][:8]})")
            member.stage, member.asked = "loading", member.handle.begin.remote()
        elif member.stage == "loading":
            self._begun(answer, member)
            member.stage = "ready"
        elif charge is None or member.given != (charge, charge.key):
            return  # it came too late, and is about something else: it is given this one on the next turn
        elif charge.check(answer, member):
            member.has = charge.key

    # ---------------------------------------------------------------------------------------------- births and deaths

    def _new(self) -> Member:
        handle = self._make()
        return Member(handle, time.monotonic(), asked=handle.where.remote())

    def _replace(self, member: Member, why: str, work: Work, waiting: deque[int]) -> None:
        """What it had begun is done again; should it answer after all, nobody listens."""
        work.replaced += 1
        lost = f"{self._wanted.key}: the actor {member.name} was lost ({why[:LONGEST_WHY].rstrip('.')})"
        self._cluster.losses.append(f"{lost}: another takes its place, and what it had begun is done again")
        if work.replaced > REPLACEMENTS * self._size:
            raise UserError(
                f"{self._wanted.key}: {work.replaced} actors were lost in one request, the last one on "
                f"{member.name}: {why} (Ray's logs on that node say more)"
            )
        work.again |= set(member.flying.values())
        waiting.extendleft(sorted(member.flying.values(), reverse=True))
        self._kill(member)
        self.members[self.members.index(member)] = self._new()

    def _kill(self, member: Member) -> None:
        with suppress(Exception):  # it is dead already, or the cluster is
            self._ray.kill(member.handle, no_restart=True)

    def _check_somebody_is_placed(self, now: float) -> None:
        if any(member.stage != "placing" for member in self.members):
            self._nobody_since = None
        elif self._nobody_since is None:
            self._nobody_since = now
        elif now - self._nobody_since > PLACE_S:
            raise self._no_place("none of its actors")

    def _no_place(self, who: str) -> UserError:
        verb = "is" if who.startswith("none") else "are not"
        return UserError(
            f"{self._wanted.key}: after {PLACE_S:g} s {who} {verb} placed, with {self._wanted.each}: others may have "
            f"taken the room. The Ray cluster has {self._cluster.room()}"
        )


def _why(error: BaseException) -> str:
    """The line that says most, without colours: where an actor could not be made, the last one."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in said.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]
