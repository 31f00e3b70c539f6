"""A pool of Ray actors that process pieces of work. A lost actor is replaced and its pieces are retried."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from vigneron.distributed.node_info import node_info
from vigneron.errors import UserError
from vigneron.remote.ray.cluster import Cluster, PoolSpec

# Pieces per actor at a time: one being processed and one queued.
IN_FLIGHT = 2
# Seconds to place an actor on a node while none is running: a process starts and imports torch, perhaps from a network
# disk.
PLACEMENT_TIMEOUT_S = 300.0
# Replacements allowed in one request, per actor of the pool.
REPLACEMENTS = 2
# Characters of Ray's error that are shown; the cause comes first.
LONGEST_REASON = 120
# Seconds between checks for actors that exceed their timeout.
POLL_S = 1.0


class UnusableActor(Exception):
    """An actor has the wrong state: it is replaced, like a lost one."""


class PoolActor:
    """Base class of the pool's actors."""

    def node_info(self) -> dict[str, str | None]:
        import ray

        return {**node_info(), "node": ray.get_runtime_context().get_node_id()}

    def setup(self) -> Any:
        """Load what does not change. The pool passes the result to `on_setup`."""
        return None


@dataclass(eq=False)
class Member:
    """An actor of the pool."""

    handle: Any
    last_active: float
    """Time of its last answer, or of the first call after it was idle."""
    stage: Literal["placing", "loading", "ready"] = "placing"
    name: str = "not placed yet"
    pending: Any = None
    """Reference of an answer that must come before it gets work: node info, setup, or a loaded state."""
    last_sent: tuple[Any, Any] = (None, None)
    """The state that it was last sent, and the state's key at that time."""
    loaded_key: Any = None
    """Key of the state that it has acknowledged."""
    sent_parts: tuple[Any, int] = (None, 0)
    """Key of a state, and the number of its parts already sent."""
    same_gpu: bool = False
    """Whether it runs on the trainer's GPU and can read the weights through CUDA IPC."""
    has_handles: bool = False
    """Whether it was sent the CUDA IPC handles."""
    in_flight: dict[Any, int] = field(default_factory=dict)
    """Piece number by reference."""


class ActorState(Protocol):
    """What an actor must load and acknowledge before it works, such as a version of the weights."""

    @property
    def key(self) -> Any: ...

    def send(self, member: Member) -> Any:
        """Send it to an actor; the reference of the actor's answer."""
        ...

    def check(self, answer: Any, member: Member) -> bool:
        """Whether the actor has loaded it; False sends it again. Raises `UnusableActor` if the actor loaded another."""
        ...


@dataclass
class Work:
    """Results in the order of the pieces, and the name of the actor that computed each."""

    results: list[Any]
    by: list[str]
    retried: set[int] = field(default_factory=set)
    """Pieces that were lost with an actor and computed again."""
    replaced: int = 0
    done: int = 0


class Pool:
    def __init__(
        self,
        cluster: Cluster,
        spec: PoolSpec,
        make: Callable[[], Any],
        *,
        timeout_s: float = 600.0,
        on_setup: Callable[[Any, Member], None] = lambda answer, member: None,
    ) -> None:
        """`make` creates an actor and returns its handle; `on_setup` gets the result of an actor's `setup`."""
        self._cluster, self._ray, self._spec, self._make = cluster, cluster.ray, spec, make
        self._timeout_s, self._on_setup = timeout_s, on_setup
        self._size = spec.pool.actors
        self._none_placed_since: float | None = None
        self._closed = False
        self.members = [self._new() for _ in range(self._size)]

    def ready(self) -> list[Member]:
        return [member for member in self.members if member.stage == "ready"]

    def start(self, state: ActorState | None = None) -> None:
        """Wait until every actor is placed and has loaded its state."""
        began, nothing = time.monotonic(), Work([], [])
        while not all(self._is_ready(member, state) for member in self.members):
            self.send_state(self.ready(), state)
            self._poll(nothing, deque(), state)
            waiting = [member for member in self.members if member.stage == "placing"]
            if waiting and time.monotonic() - began > PLACEMENT_TIMEOUT_S:
                raise self._not_placed(f"{len(waiting)} of {self._size} actors are not")

    def send_state(self, members: Iterable[Member], state: ActorState | None) -> None:
        """Send the state to those that do not have it. Does not wait."""
        for member in members:
            if state is not None and member.pending is None and member.loaded_key != state.key:
                member.last_active, member.loaded_key = time.monotonic(), None
                member.last_sent, member.pending = (state, state.key), state.send(member)

    def work(self, method: str, pieces: Sequence[tuple[Any, ...]], state: ActorState | None = None) -> Work:
        """Call `method` of the actors with each piece."""
        work = Work([None] * len(pieces), [""] * len(pieces))
        waiting = deque(range(len(pieces)))
        while work.done < len(pieces):
            self._assign(method, pieces, waiting, state)
            self._poll(work, waiting, state)
        return work

    def close(self) -> None:
        for member in self.members:
            self._kill(member)
        self.members, self._closed = [], True

    # ------------------------------------------------------------------------------------------ one turn of the loop

    def _assign(
        self, method: str, pieces: Sequence[tuple[Any, ...]], waiting: deque[int], state: ActorState | None
    ) -> None:
        """Give every actor one piece before any gets a second, counting those that still load their state."""
        for full in range(1, IN_FLIGHT + 1):
            for member in self.ready():
                idle = sum(1 for other in self.ready() if not other.in_flight) if member.in_flight else 0
                if not self._is_ready(member, state):
                    self.send_state([member], state)
                elif len(waiting) > idle and len(member.in_flight) < full:
                    piece = waiting.popleft()
                    if not member.in_flight:
                        member.last_active = time.monotonic()
                    ref = getattr(member.handle, method).remote(*pieces[piece])
                    member.in_flight[ref] = piece

    def _is_ready(self, member: Member, state: ActorState | None) -> bool:
        return member.stage == "ready" and (state is None or member.loaded_key == state.key)

    def _poll(self, work: Work, waiting: deque[int], state: ActorState | None) -> None:
        """Handle answers for up to POLL_S seconds; replace actors that are lost or exceed their timeout."""
        if self._closed:  # while a background thread samples: another call would start Ray again
            raise UnusableActor("the pool is closed")
        owners = {
            ref: member for member in self.members for ref in (member.pending, *member.in_flight) if ref is not None
        }
        came, _ = self._ray.wait(list(owners), num_returns=1, timeout=POLL_S)
        more, _ = self._ray.wait(list(owners), num_returns=len(owners), timeout=0)
        for ref in dict.fromkeys([*came, *more]):
            member = owners[ref]
            if member in self.members and (ref is member.pending or ref in member.in_flight):
                self._handle_answer(ref, member, work, waiting, state)
        now = time.monotonic()
        for member in list(self.members):
            busy = member.stage != "placing" and (member.pending is not None or member.in_flight)
            if busy and now - member.last_active > self._timeout_s:
                self._replace(member, f"no answer for {self._timeout_s:g} s", work, waiting)
        self._check_any_placed(now)

    def _handle_answer(
        self, ref: Any, member: Member, work: Work, waiting: deque[int], state: ActorState | None
    ) -> None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(ref)
            if ref is member.pending:
                self._advance(member, answer, state)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(f"{error.cause} (on the Ray node {member.name})") from error
            if not isinstance(error.cause, errors.RayError | UnusableActor):
                raise (error.cause or error) from error
            self._replace(member, _reason(error.cause), work, waiting)
            return
        except (errors.RayError, UnusableActor) as error:
            self._replace(member, _reason(error), work, waiting)
            return
        member.last_active = time.monotonic()
        if ref in member.in_flight:
            piece = member.in_flight.pop(ref)
            work.results[piece], work.by[piece] = answer, member.name
            work.done += 1

    def _advance(self, member: Member, answer: Any, state: ActorState | None) -> None:
        member.pending = None
        if member.stage == "placing":
            member.name = f"{answer['host']}/{answer['node'][:8]}/{answer['pid']}"
            self._cluster.check_versions(answer, f"'{answer['host']}' ({answer['node'][:8]})")
            member.stage, member.pending = "loading", member.handle.setup.remote()
        elif member.stage == "loading":
            self._on_setup(answer, member)
            member.stage = "ready"
        elif state is None or member.last_sent != (state, state.key):
            return  # the answer is about an older state: the next turn sends this one
        elif state.check(answer, member):
            member.loaded_key = state.key

    # --------------------------------------------------------------------------------------- creation and replacement

    def _new(self) -> Member:
        handle = self._make()
        return Member(handle, time.monotonic(), pending=handle.node_info.remote())

    def _replace(self, member: Member, why: str, work: Work, waiting: deque[int]) -> None:
        """Start a new actor and retry the pieces of the lost one. A late answer is ignored."""
        work.replaced += 1
        lost = f"{self._spec.key}: the actor {member.name} was lost ({why[:LONGEST_REASON].rstrip('.')})"
        self._cluster.warnings.append(f"{lost}: it is replaced, and its unfinished work is retried")
        if work.replaced > REPLACEMENTS * self._size:
            raise UserError(
                f"{self._spec.key}: {work.replaced} actors were lost in one request, the last one on "
                f"{member.name}: {why} (see Ray's logs on that node)"
            )
        work.retried |= set(member.in_flight.values())
        waiting.extendleft(sorted(member.in_flight.values(), reverse=True))
        self._kill(member)
        self.members[self.members.index(member)] = self._new()

    def _kill(self, member: Member) -> None:
        with suppress(Exception):  # the actor or the cluster is already gone
            self._ray.kill(member.handle, no_restart=True)

    def _check_any_placed(self, now: float) -> None:
        if any(member.stage != "placing" for member in self.members):
            self._none_placed_since = None
        elif self._none_placed_since is None:
            self._none_placed_since = now
        elif now - self._none_placed_since > PLACEMENT_TIMEOUT_S:
            raise self._not_placed("none of its actors is")

    def _not_placed(self, which: str) -> UserError:
        return UserError(
            f"{self._spec.key}: after {PLACEMENT_TIMEOUT_S:g} s {which} placed, with {self._spec.each}: other jobs may "
            f"use the resources. The Ray cluster has {self._cluster.resources()}"
        )


def _reason(error: BaseException) -> str:
    """The most informative line without terminal colours: the last one if the actor's creation failed."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]
