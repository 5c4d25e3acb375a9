"""States of rows of queries: what is known of the keys so far."""

from typing import Any, NamedTuple

from .. import _math
from .._vocabulary import EXPONENTIALS
from .attention_layout import BLOCK
from .memory import load, load_first, shifted, store, store_first
from .simd import LANES, inlined, splat


class State(NamedTuple):
    """Of rows of queries: weighted sums of values, the largest score, and the sum of the weights."""

    outputs: Any
    largest: Any
    total: Any


@inlined
def lift_at(lifts, i):
    """The lift of a row of a block."""
    return _math.Lift(lifts[i], lifts[i + BLOCK])


@inlined
def put_lift(lifts, i, lift):
    lifts[i], lifts[i + BLOCK] = lift.first, lift.second


def joining(computed):
    """The functions about states."""
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8

    @inlined
    def state_at(pointer, rows, width):
        """The state of so many rows in room that begins here."""
        largest = shifted(pointer, rows * width * size)
        return State(pointer, largest, shifted(largest, rows * size))

    @inlined
    def clear(state, rows, width):
        """No score yet."""
        for j in range(0, rows * width, LANES):
            store(state.outputs, j, splat(numbers.zero))
        for i in range(rows):
            state.largest[i], state.total[i] = numbers.nothing, numbers.zero

    @inlined
    def step(state, first, count, found, lifts, against, factors):
        """Prepare some rows, up to 64 at once, for scores of which the largest were `found`."""
        lift = _math.Lift(load_first(lifts, first, count), load_first(lifts, first + BLOCK, count))
        step = _math.next_step(load_first(state.largest, first, count), load(found, 0), lift, numbers)
        store_first(state.largest, first, count, step.largest)
        store(against, 0, step.against)
        store(factors, 0, step.factor)

    @inlined
    def join(state, other, lifts, rows, width):
        """Add what is known of a later segment. A row that saw nothing of it stays as it is."""
        for i in range(rows):
            if other.total[i] != numbers.zero:
                mixture = _math.mix(state.largest[i], other.largest[i], lift_at(lifts, i), numbers)
                for j in range(i * width, (i + 1) * width, LANES):
                    store(state.outputs, j, _math.mixed(load(state.outputs, j), load(other.outputs, j), mixture))
                state.largest[i] = mixture.largest
                state.total[i] = _math.mixed(state.total[i], other.total[i], mixture)

    return state_at, clear, step, join
