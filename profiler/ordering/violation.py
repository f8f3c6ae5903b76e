"""What a check found, in words: both operations, the edge that is missing or the tag that is wrong, and the fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from executor.passes import THREAD
from executor.units import format_ns
from profiler.ordering.clocks import NOT_RECORDED, HappensBefore
from profiler.ordering.operations import Operations
from profiler.ordering.pairs import NOTHING, Pairs

ViolationKind = Literal[
    "read before its write",
    "write before its reader",
    "write before a write",
    "overwritten under its reader",
    "wrong bytes",
]


@dataclass(frozen=True, slots=True)
class OperationPlace:
    """One operation, where and when it was issued."""

    sequence: int
    op: str
    name: str | None
    device: int | None
    stream: str
    ubatch: int | None
    layer: int | None
    t_issued: int | None

    def __str__(self) -> str:
        where = "the issuing thread" if self.stream == THREAD else f"stream {self.stream} of device {self.device}"
        place = [f"layer {self.layer}"] if self.layer is not None else []
        place += [f"ubatch {self.ubatch}"] if self.ubatch is not None else []
        when = [] if self.t_issued is None else [f"issued at {format_ns(self.t_issued)}"]
        return f"{self.op} {self.sequence} '{self.name or 'unnamed'}' on {where} ({', '.join([*place, *when])})"


@dataclass(frozen=True, slots=True)
class OrderingViolation:
    """Two operations on the same bytes. `first` was issued first; None: nothing ever wrote what `second` reads."""

    kind: ViolationKind
    pass_id: int | None
    """None where there are no passes."""
    first: OperationPlace | None
    second: OperationPlace
    space: str
    start: int
    end: int
    """The range in bytes, as `second` touches it."""
    expected: str | None
    found: str | None
    """Tags, where the bytes are wrong."""
    because: str
    fix: str
    arm: str | None = None
    """Whose pass it is; None where that is not known."""

    def __str__(self) -> str:
        where = f"{self.space} bytes {self.start} to {self.end}"
        head = self.kind if self.pass_id is None else f"{self.kind} in pass {self.pass_id}"
        head += "" if self.arm is None else f" of arm {self.arm}"
        if self.kind != "wrong bytes":
            return f"{head}: {self.first} and {self.second} touch {where}, and {self.because}"
        return f"{head}: {self.second} relies on '{self.expected}' in {where} and finds {self._found()}"

    def _found(self) -> str:
        if self.first is None:
            return "what nothing has written"
        content = f"'{self.found}'" if self.found else "bytes without a name"
        return f"{content}, which {self.first} put there"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


class _Meeting(NamedTuple):
    """The rows of two operations, and of the touch in which the second meets the bytes of the first."""

    first: int
    second: int
    touch: int

    @classmethod
    def of(cls, pairs: Pairs, number: int) -> _Meeting:
        return cls(int(pairs.first[number]), int(pairs.second[number]), int(pairs.second_touch[number]))


def race_at(order: HappensBefore, races: Pairs, number: int) -> OrderingViolation:
    """Race `number` in words."""
    ops, touches = order.ops, order.ops.touches
    meeting, first_touch = _Meeting.of(races, number), int(races.first_touch[number])
    writes = bool(touches.is_write[first_touch]), bool(touches.is_write[meeting.touch])
    kinds: dict[tuple[bool, bool], ViolationKind] = {
        (True, False): "read before its write",
        (False, True): "write before its reader",
        (True, True): "write before a write",
    }
    expected, found = (ops.tags[touches.tag[at]] or None for at in (meeting.touch, first_touch))
    if writes == (True, False) and expected is not None and found != expected:
        because = f"the first writes '{found}' where the second relies on '{expected}'"
        fix = "copy this elsewhere, or only behind an event that is recorded after its reader"
        return _violation(ops, "overwritten under its reader", meeting, because, fix, expected, found)
    because, fix = _missing_edge(order, meeting.first, meeting.second)
    return _violation(ops, kinds[writes], meeting, because, fix)


def wrong_at(order: HappensBefore, wrong: Pairs, number: int) -> OrderingViolation:
    """A read of wrong bytes in words."""
    ops, touches = order.ops, order.ops.touches
    meeting, wrote = _Meeting.of(wrong, number), int(wrong.first_touch[number])
    expected = ops.tags[touches.tag[meeting.touch]]
    found = None if wrote == NOTHING else ops.tags[touches.tag[wrote]] or None
    fix = f"copy '{expected.rpartition('@')[0]}' there before this step, and let nothing else be copied there between"
    because = "the last write in order carries another tag"
    return _violation(ops, "wrong bytes", meeting, because, fix, expected, found)


def _violation(
    ops: Operations,
    kind: ViolationKind,
    meeting: _Meeting,
    because: str,
    fix: str,
    expected: str | None = None,
    found: str | None = None,
) -> OrderingViolation:
    touches, (first, second, touch) = ops.touches, meeting
    return OrderingViolation(
        kind=kind,
        pass_id=int(ops.pass_id[second]),
        first=None if first == NOTHING else _place(ops, first),
        second=_place(ops, second),
        space=ops.spaces[touches.space[touch]],
        start=int(touches.start[touch]),
        end=int(touches.end[touch]),
        expected=expected,
        found=found,
        because=because,
        fix=fix,
    )


def _place(ops: Operations, row: int) -> OperationPlace:
    names = ("sequence", "op", "name", "device", "stream", "ubatch", "layer", "t_issued")
    return OperationPlace(**{name: ops.rows[name][row].as_py() for name in names})


def _missing_edge(order: HappensBefore, first: int, second: int) -> tuple[str, str]:
    """What the later operation's stream waited for instead, and what to do."""
    ops = order.ops
    one, other = _place(ops, first), _place(ops, second)
    is_thread = bool(ops.on_thread[second])
    who = "the issuing thread" if is_thread else f"stream {other.stream}"
    waiting = ops.is_kind("sync") if is_thread else ops.is_kind("wait") & (ops.chain == ops.chain[second])
    waits = np.flatnonzero(waiting & (ops.pass_id == ops.pass_id[second]))
    waits = waits[waits < second]
    recorded_by = order.recorded_by[waits]
    in_vain = waits[recorded_by == NOT_RECORDED]
    waits = waits[(recorded_by != NOT_RECORDED) & (ops.chain[recorded_by] == ops.chain[first])]
    before = f"{other.op} {other.sequence}"
    after = f"{one.op} {one.sequence}"
    fix = f"record an event on stream {one.stream} after {after}, and let {who} wait for it before {before}"
    if len(in_vain) and in_vain[-1] > max(waits, default=NOTHING):
        event = ops.rows["event"][int(in_vain[-1])].as_py()
        return f"{who} waits for event {event}, which nobody has recorded by then", fix
    if not len(waits):
        return f"{who} waits for nothing of stream {one.stream} before {before}", fix
    wait = int(waits[-1])
    event, generation = (ops.rows[name][wait].as_py() for name in ("event", "generation"))
    recorded = _place(ops, int(order.recorded_by[wait])).sequence
    last = f"the last event that {who} waits for there is {event}, generation {generation}, recorded as {recorded}"
    return f"{last}: before {after}", fix
