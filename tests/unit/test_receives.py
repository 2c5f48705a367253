"""Where ranks begin to receive: by hand, and on ranks that wait for each other in every transfer."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.schedules import SCHEDULES, Action, Order, actions, rank_holds, simulate
from autoshard.schedules.receives import Receive, Turn, awaits, reader, received_by, with_receives
from tests.unit.test_schedules import sizes

Size = tuple[str, int, int, int]


def order(text: str) -> Order:
    return tuple(map(Action.parse, text.split()))


def spelled(turns: Sequence[Turn]) -> str:
    return " ".join(f"<{turn.action}" if isinstance(turn, Receive) else str(turn) for turn in turns)


def turns_of(size: Size) -> tuple[tuple[Turn, ...], ...]:
    _, pp, num_microbatches, vpp = size
    return with_receives(actions(*size), pp * vpp, num_microbatches)


def test_two_ranks_by_hand() -> None:
    # rounds, in which the first rank has its turn before the last one:
    # first  F0 F1 B0 F2 B1 .  B2
    # last   F0 B0 F1 B1 F2 B2
    first, last = turns_of(("1f1b", 2, 3, 1))
    assert spelled(first) == "F0.0 F1.0 <B0.0 B0.0 F2.0 <B1.0 B1.0 <B2.0 B2.0"
    assert spelled(last) == "<F0.0 F0.0 <F1.0 B0.0 F1.0 <F2.0 B1.0 F2.0 B2.0"
    assert last[0] == Receive(Action("F", 0, 0), 0) and first[2] == Receive(Action("B", 0, 0), 1)


def test_what_comes_back_proves_what_was_received() -> None:
    acts = {name: Action.parse(name) for name in ("F0.0", "F1.0", "F2.0", "B0.0", "B1.0", "B2.0")}
    turns = turns_of(("1f1b", 2, 3, 1))
    # the last rank reads each output right before it sends the gradient back, and its first gradient is read before
    # the first rank makes its third output; behind that nothing comes
    assert received_by(turns, 0) == {acts[f"B{one}.0"]: (acts[f"F{one}.0"],) for one in range(3)}
    assert received_by(turns, 1) == {acts["F2.0"]: (acts["B0.0"],)}


@given(sizes())
def test_all_that_is_proven_was_read_before(size: Size) -> None:
    """By the times of a step in which each action takes a second, and a transfer none."""
    turns, (_, pp, _, vpp) = turns_of(size), size
    orders = actions(*size)
    spans = simulate(orders, [1.0] * pp * vpp, [1.0] * pp * vpp).spans
    began = [
        {awaits(one): begin for one, (begin, _) in zip(order, span, strict=True)}
        for order, span in zip(orders, spans, strict=True)
    ]
    for rank in range(pp):
        for action, proven in received_by(turns, rank).items():
            for one in proven:
                receiver, name = reader(one, rank, pp)
                assert began[receiver][name] < began[rank][awaits(action)]


def test_a_chunk_reads_what_the_last_rank_sends() -> None:
    assert reader(Action("F", 4, 0), 1, 2) == (0, Action("F", 4, 1))
    assert reader(Action("B", 4, 1), 0, 2) == (1, Action("B", 4, 0))
    assert reader(Action("I", 4, 1), 1, 2) == (0, Action("B", 4, 1))  # which may be B or I there


def test_chunks_of_one_rank_receive_nothing() -> None:
    (only,) = turns_of(("interleaved", 1, 1, 2))
    assert spelled(only) == "F0.0 F0.1 B0.1 B0.0"


def run_in_step(turns: Sequence[Sequence[Turn]], num_stages: int) -> None:
    """Run the lists where a send ends only when its receive begins, and the two meet; assert that all end."""
    pp = len(turns)
    at, sending = [0] * pp, [False] * pp
    received: list[set[Action]] = [set() for _ in turns]

    def sends_to(rank: int) -> tuple[int, Action] | None:
        turn = turns[rank][at[rank]]
        assert isinstance(turn, Action)
        stage = turn.chunk * pp + rank
        ends = stage == num_stages - 1 if turn.kind == "F" else stage == 0
        return None if turn.kind == "W" or ends or pp == 1 else reader(turn, rank, pp)

    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(turns):
            while at[rank] < len(own) and not sending[rank] and isinstance(turn := own[at[rank]], Action):
                stage = turn.chunk * pp + rank
                starts = stage == 0 if turn.kind == "F" else stage == num_stages - 1
                if pp > 1 and turn.kind != "W" and not starts:
                    assert awaits(turn) in received[rank], f"rank {rank} runs {turn} without its input"
                    received[rank].remove(awaits(turn))
                moved = True
                if sends_to(rank) is None:
                    at[rank] += 1
                else:
                    sending[rank] = True
        for rank in range(pp):
            target = sends_to(rank) if sending[rank] else None
            if target is None:
                continue
            receiver, action = target
            if at[receiver] < len(turns[receiver]) and turns[receiver][at[receiver]] == Receive(action, rank):
                received[receiver].add(action)
                at[receiver] += 1
                at[rank] += 1
                sending[rank], moved = False, True
    assert at == [len(own) for own in turns] and not any(received)


@given(sizes())
def test_ranks_that_wait_in_every_transfer_come_to_an_end(size: Size) -> None:
    turns = turns_of(size)
    assert [[turn for turn in own if isinstance(turn, Action)] for own in turns] == [
        list(own) for own in actions(*size)
    ]
    run_in_step(turns, size[1] * size[3])


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.data())
def test_any_lists_that_can_run_come_to_an_end(pp: int, num_microbatches: int, vpp: int, data: st.DataObject) -> None:
    """Lists are drawn action by action: of all ranks' actions that could be next, any one is."""
    stages = pp * vpp
    apart = {place: data.draw(st.booleans()) for place in product(range(stages), range(num_microbatches))}
    there = {("F", 0, microbatch) for microbatch in range(num_microbatches)}
    orders: list[list[Action]] = [[] for _ in range(pp)]
    while there:
        kind, stage, microbatch = data.draw(st.sampled_from(sorted(there)))
        there.remove((kind, stage, microbatch))
        orders[stage % pp].append(Action(kind, microbatch, stage // pp))
        if kind == "F" and stage + 1 < stages:
            there.add(("F", stage + 1, microbatch))
        elif kind != "W":
            before = stage if kind == "F" else stage - 1
            if before >= 0:
                there.add(("I" if apart[before, microbatch] else "B", before, microbatch))
            if kind == "I":
                there.add(("W", stage, microbatch))
    run_in_step(with_receives([tuple(own) for own in orders], stages, num_microbatches), stages)


@given(sizes().filter(lambda size: size[3] == 1))
def test_room_for_two_receives_is_enough(size: Size) -> None:
    for own in turns_of(size):
        begun = set[Action]()
        for turn in own:
            if isinstance(turn, Receive):
                begun.add(turn.action)
            else:
                begun.discard(awaits(turn))
            assert len(begun) <= (1 if size[0] == "gpipe" else 2)


@given(sizes().filter(lambda size: size[0] != "zero_bubble" and 1 < size[1] < 6))
def test_what_passes_a_rank_that_holds_most_is_what_has_room_by_then(size: Size) -> None:
    """Of zero bubble more is counted, and of the last rank with several chunks in a long pipeline less."""
    holds = rank_holds(SCHEDULES[size[0]], *size[1:])
    for own, expected in zip(turns_of(size), holds, strict=True):
        rooms, held, most = set[Action](), 0, dict[int, int]()
        for turn in own:
            if isinstance(turn, Receive):
                rooms.add(turn.action)
                continue
            rooms.discard(turn)
            if turn.kind == "B":
                most[held] = max(most.get(held, 0), len(rooms))
            held += 1 if turn.kind == "F" else -1
        assert most[expected.in_flight] == expected.passing


def error_of(*orders: str, num_microbatches: int = 1, vpp: int = 1) -> str:
    with pytest.raises(AutoshardError) as error:
        with_receives([order(one) for one in orders], len(orders) * vpp, num_microbatches)
    return str(error.value)


def test_lists_that_cannot_run() -> None:
    assert error_of("F0.0 B0.0 F1.0 B1.0", "F0.0 F1.0 B0.0 B1.0", num_microbatches=2) == (
        "the schedule deadlocks: rank 0 before B0.0, rank 1 before F1.0 wait for what no rank will send"
    )
    step = "a step needs F and then B, or F, I and W"
    assert error_of("F0.0", "F0.0 B0.0") == (f"the schedule has F0.0 of microbatch 0 in chunk 0 of rank 0; {step}")
    assert error_of("F0.0 B0.0", "F0.0 W0.0 I0.0") == (
        f"the schedule has F0.0 W0.0 I0.0 of microbatch 0 in chunk 0 of rank 1; {step}"
    )
    assert error_of("F0.0 B0.0 B0.0").startswith("the schedule has F0.0 B0.0 B0.0 of microbatch 0")
    assert error_of("F0.0 B0.0", num_microbatches=2) == (
        f"the schedule has nothing of microbatch 1 in chunk 0 of rank 0; {step}"
    )
    assert error_of("F0.0 B0.0 F0.1 B0.1") == (
        "the schedule has F0.1 on rank 0; there are 1 microbatches and 1 chunks, numbered from 0"
    )
