"""Results of attention, from the states of rows of queries."""

from .. import _math
from .._vocabulary import EXPONENTIALS, fma, select
from . import attention_layout as layout
from .attention_layout import padded
from .memory import load, pointer_to, put, shifted, store, store_first
from .simd import LANES, any_lane, inlined, splat
from .states import lift_at


def finishing(computed):
    """The functions about results, for a dtype of the computation."""
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8

    @inlined
    def log_at(block, group, n, i, lse):
        """Where the logarithm of a row goes."""
        row = block.start + i
        head = block.head * group + row // n
        place = block.b * lse.strides[0] + head * lse.strides[1] + (row % n) * lse.strides[2]
        return shifted(pointer_to(lse), place)

    @inlined
    def left_the_range(outputs, inverse, total, width):
        """True if a mean of values is no number, or the sum of weights is none."""
        zeros = splat(numbers.zero)
        for j in range(0, width, LANES):
            zeros = fma(load(outputs, j) * inverse, numbers.zero, zeros)
        return any_lane(zeros != zeros) or total != total

    @inlined
    def some_left_the_range(block, group, n, lse):
        """True if `finish` has marked a row of a block: its logarithm is not a number."""
        for i in range(block.count):
            log = log_at(block, group, n, i, lse)[0]
            if log != log:
                return True
        return False

    @inlined
    def finish(call, block, group, state, lifts, out, lse):
        """Means of values, and the logarithms of the sums. Rows that left the range are marked; or they alone are written."""
        n, value_size = call.q.shape[2], out.shape[3]
        attempt, shrink = call.plan[layout.ATTEMPT], call.given[layout.SHRINK]
        width = padded(value_size)
        for i in range(block.count):
            log_place = log_at(block, group, n, i, lse)
            if attempt > layout.FIRST and log_place[0] == log_place[0]:
                continue
            row = block.start + i
            head = block.head * group + row // n
            total, largest = state.total[i], state.largest[i]
            inverse = select(total == numbers.zero, numbers.zero, numbers.one / total)
            outputs = shifted(state.outputs, i * width * size)
            lost = attempt < layout.BOTH and left_the_range(outputs, inverse, total, width)
            if attempt > layout.FIRST:
                for j in range(0, width, LANES):
                    store(outputs, j, _math.mean_of(load(outputs, j), inverse, shrink, numbers))
                inverse = numbers.one
            place = block.b * out.strides[0] + head * out.strides[1] + (row % n) * out.strides[2]
            target = shifted(pointer_to(out), place)
            if out.strides[3] == out.itemsize:
                j = 0
                while j + LANES <= value_size:
                    store(target, j, load(outputs, j) * inverse)
                    j += LANES
                if j < value_size:
                    store_first(target, j, value_size - j, load(outputs, j) * inverse)
            else:
                for j in range(value_size):
                    put(shifted(target, j * out.strides[3]), outputs[j] * inverse)
            log = numbers.nothing
            if total != numbers.zero:
                log = _math.lifted(largest, lift_at(lifts, i)) + _math.logarithm(total)
            put(log_place, numbers.nothing - numbers.nothing if lost else log)

    return some_left_the_range, finish
