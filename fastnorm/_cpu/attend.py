"""The kernel of attention: for rows of queries that share a head of keys, one tile of 64 keys after the other.

Rows are queries of all heads that read one head of keys, head after head. A task is a block of them. For each tile of keys
that one of them may see, the keys are turned over once, and six rows at a time take their scores, the weights of
these, and the weighted values (online softmax: Milakov and Gimelshein, arXiv:1805.02867; Rabe and Staats, arXiv:2112.05682;
Dao et al., arXiv:2205.14135). What a row gets depends on its own numbers alone.
"""

from numba.core import types

from .. import _math
from .._compile import Source
from .._vocabulary import COMPUTED, EXPONENTIALS, magnitude, maximum
from . import attention_layout as layout
from .attention_layout import JOIN, KEYS, NO_MASK, PART, SEGMENT, Block, Call, Seen, padded
from .finish import finishing
from .keys import gather_rows, reading
from .masks import masking
from .memory import address, load, pointer_as, pointer_to, shifted, store
from .scores import scoring
from .simd import LANES, any_lane, inlined, largest_lane, splat
from .states import joining, lift_at, put_lift
from .tile import ROWS, TURNED, tile_width
from .values import summing

inlined(layout.state_size)


@inlined
def lowest_and_highest(pointer, start, stop):
    """The least and the largest of some integers."""
    low = high = pointer[start]
    for i in range(start + 1, stop):
        low = min(low, pointer[i])
        high = max(high, pointer[i])
    return low, high


def attend(dtype, cached):
    """Kernel: attention of queries of a dtype to keys and values of another, for some tasks."""
    computed = COMPUTED[dtype]
    numbers = EXPONENTIALS[computed]
    size = 4 if computed == "float32" else 8
    in_place = cached == computed  # keys and values may be used where they are
    element = getattr(types, cached)
    copy_row, normalise_row, read_rows, are_finite, turn = reading(computed)
    row_of_mask = masking(computed)
    dots, products, scores_of, weights_of = scoring(computed)
    state_at, clear, take_step, join = joining(computed)
    add_values, add_allowed_values = summing(computed)
    some_left_the_range, finish = finishing(computed)

    def _where_they_are(source, room):
        return source

    def _in_room(source, room):
        return room

    usable = inlined(_where_they_are if in_place else _in_room)

    @inlined
    def look_around(block, length_of_queries, starts, lengths, plan, seen, rows):
        """What each row may see by its position. Rows that fill up the last six see what the last one does."""
        position, length = starts[block.b], lengths[block.b]
        for i in range(rows):
            row = block.start + (i if i < block.count else block.count - 1)
            here = position + row % length_of_queries
            first, end = max(0, here - plan[layout.LEFT]), min(length, here + plan[layout.RIGHT] + 1)
            seen.first[i], seen.end[i], seen.position[i] = min(first, max(end, 0)), max(end, 0), here

    @inlined
    def largest_of(row, n):
        """The largest magnitude of a row that is filled up with zeros."""
        found = splat(numbers.zero)
        for j in range(0, n, LANES):
            found = maximum(magnitude(load(row, j)), found)
        return largest_lane(found)

    @inlined
    def read_queries(call, block, group, queries, lifts, rows):
        """Queries as neighbours, normalised, times a power of two; and the lifts of their scores."""
        q, plan, given = call.q, call.plan, call.given
        n, head_size = q.shape[2], q.shape[3]
        source = pointer_to(q)
        for i in range(rows):
            row = block.start + (i if i < block.count else block.count - 1)
            head = block.head * group + row // n
            place = block.b * q.strides[0] + head * q.strides[1] + (row % n) * q.strides[2]
            target = shifted(queries, i * padded(head_size) * size)
            copy_row(shifted(source, place), q.strides[3], head_size, target)
            if plan[layout.NORM] != layout.NO_NORM:
                normalise_row(target, head_size, plan[layout.NORM], given[layout.EPS], given[layout.LIFTED_EPS])
            power = given[layout.POWER]
            lift = none = _math.Lift(numbers.one, numbers.one)
            if plan[layout.ATTEMPT] >= layout.LIFTED:
                lift = _math.lift_for(largest_of(target, head_size), power, numbers)
            for j in range(0, head_size, LANES):
                store(target, j, load(target, j) * (power / lift.first) / lift.second)
            lift = _math.lift_further(lift, given[layout.EXCESS], numbers)
            put_lift(lifts, i, none if plan[layout.HAS_CAP] else lift)
            put_lift(lifts, i + 2 * layout.BLOCK, lift)

    @inlined
    def read_biases(call, block, group, first_row, rows, key, count, biases):
        """Rows of a mask for 64 keys; returns whether one of these is allowed."""
        mask, plan, n, some = call.mask, call.plan, call.q.shape[2], False
        for i in range(rows):
            row = block.start + first_row + i
            head = block.head * group + row // n
            place = block.b * mask.strides[0] + head * mask.strides[1] + (row % n) * mask.strides[2] + key * mask.strides[3]
            bias = row_of_mask(shifted(pointer_to(mask), place), mask.strides[3], plan[layout.MASK], count)
            store(biases, i * KEYS, bias)
            some = some or any_lane(bias != numbers.nothing)
        return some

    @inlined
    def weigh(call, block, group, seen, room, state, first_row, present, key):
        """Scores of some rows' products, and their weights in place of these. Returns the factors of what was summed before.

        The scores stay in `room.biases`, which say what is not allowed.
        """
        plan, given, n = call.plan, call.given, call.q.shape[2]
        found, against, factors = room.steps, shifted(room.steps, KEYS * size), shifted(room.steps, 2 * KEYS * size)
        for i in range(present):
            row = first_row + i
            head = block.head * group + (block.start + row) // n
            found[i] = scores_of(
                shifted(room.scores, i * KEYS * size),
                shifted(room.biases, i * KEYS * size),
                plan,
                given,
                call.slopes[head],
                lift_at(room.lifts, row),
                lift_at(room.lifts, row + 2 * layout.BLOCK),
                seen.first[row] - key,
                seen.end[row] - key,
                seen.position[row] - key,
            )
        take_step(state, first_row, present, found, room.lifts, against, factors)
        for i in range(present):
            row = first_row + i
            scores, weights = shifted(room.biases, i * KEYS * size), shifted(room.scores, i * KEYS * size)
            lift, attempt, shrink = lift_at(room.lifts, row), plan[layout.ATTEMPT], given[layout.SHRINK]
            more = weights_of(scores, against[i], lift, attempt, shrink, weights)
            state.total[row] = _math.grown(state.total[row], more, factors[i])
        return factors

    @inlined
    def attend_segment(call, block, group, seen, rows, room, state, segment):
        """All that the rows of a block may see of a segment of keys."""
        q, k, v, plan, given = call.q, call.k, call.v, call.plan, call.given
        head_size, value_size = k.shape[3], v.shape[3]
        width = padded(value_size)
        few = q.shape[2] * group <= layout.FEW and plan[layout.NORM] == layout.NO_NORM
        low, high = lowest_and_highest(seen.first, 0, rows)[0], lowest_and_highest(seen.end, 0, rows)[1]
        start, stop = segment * SEGMENT, min(segment * SEGMENT + SEGMENT, high)
        k_source = shifted(pointer_to(k), block.b * k.strides[0] + block.head * k.strides[1])
        v_source = shifted(pointer_to(v), block.b * v.strides[0] + block.head * v.strides[1])
        row_is_dense = v.strides[3] == v.itemsize or value_size == 1
        v_in_place = in_place and few and row_is_dense and value_size % tile_width(room.values) == 0
        keys_are_dense = k.strides[3] == k.itemsize
        k_in_place = in_place and keys_are_dense and head_size % TURNED == 0 and plan[layout.NORM] == layout.NO_NORM
        for key in range(max(start, low // KEYS * KEYS), stop, KEYS):
            count = min(KEYS, stop - key)
            keys_are_read, values_are_read, finite = False, False, True
            key_rows = shifted(k_source, key * k.strides[2])
            keys_here, key_stride = usable(key_rows, room.keys), k.strides[2] // k.itemsize
            key_source, source_stride = key_rows, k.strides[2]
            value_rows = shifted(v_source, key * v.strides[2])
            for first_row in range(0, rows, ROWS):
                first_low, first_high = lowest_and_highest(seen.first, first_row, first_row + ROWS)
                end_low, end_high = lowest_and_highest(seen.end, first_row, first_row + ROWS)
                present = min(ROWS, block.count - first_row)
                if end_high <= key or first_low >= key + count:
                    continue
                if plan[layout.MASK] != NO_MASK:
                    if not read_biases(call, block, group, first_row, present, key, count, room.biases):
                        continue
                # Hidden keys are not even read where all rows see the same ones, neighbours.
                first, end = max(first_low - key, 0), min(end_high - key, count)
                alike = plan[layout.MASK] == NO_MASK and max(first_high - key, 0) == first and min(end_low - key, count) == end
                queries = shifted(room.queries, first_row * padded(head_size) * size)
                if not keys_are_read:
                    keys_are_read = True
                    if few:
                        if not keys_are_dense:
                            key_source = pointer_as(room.keys, element)
                            gather_rows(key_rows, k.strides[2], k.strides[3], count, head_size, key_source)
                            source_stride = head_size * k.itemsize
                    else:
                        if not k_in_place or count < KEYS:
                            eps, lifted_eps, norm = given[layout.EPS], given[layout.LIFTED_EPS], plan[layout.NORM]
                            read_rows(key_rows, k.strides[2], k.strides[3], count, head_size, room.keys, norm, eps, lifted_eps)
                            keys_here, key_stride = room.keys, padded(head_size)
                        turn(keys_here, key_stride, head_size, room.turned)
                if few:
                    stride = v.strides[2]
                    dots(queries, present, key_source, source_stride, count, head_size, room.scores, value_rows, stride)
                else:
                    products(queries, head_size, room.turned, room.scores)
                factors = weigh(call, block, group, seen, room, state, first_row, present, key)
                outputs = shifted(state.outputs, first_row * width * size)
                if v_in_place and alike:
                    values, value_stride = usable(value_rows, room.values), v.strides[2] // v.itemsize
                else:
                    if not values_are_read:
                        values_are_read = True
                        read_rows(
                            value_rows,
                            v.strides[2],
                            v.strides[3],
                            count,
                            value_size,
                            room.values,
                            layout.NO_NORM,
                            numbers.zero,
                            numbers.zero,
                        )
                        finite = are_finite(room.values, count, value_size)
                    values, value_stride = room.values, width
                if finite or alike:
                    ahead, ahead_stride = shifted(key_rows, KEYS * k.strides[2]), k.strides[2] if few else 0
                    add_values(
                        present,
                        room.scores,
                        values,
                        value_stride,
                        first,
                        end,
                        value_size,
                        outputs,
                        width,
                        factors,
                        ahead,
                        ahead_stride,
                    )
                else:
                    add_allowed_values(room.scores, room.biases, room.values, first, end, outputs, width, factors, present)

    @inlined
    def begin(call, block, group, lifts, state, rows, width, segment):
        """The state before a segment: before the first, a sink counts as a score that brings no value."""
        clear(state, rows, width)
        if call.plan[layout.HAS_SINKS] and segment == 0:
            for i in range(block.count):
                sink = call.sinks[block.head * group + (block.start + i) // call.q.shape[2]]
                if sink != numbers.nothing:
                    state.largest[i], state.total[i] = _math.lowered(sink, lift_at(lifts, i), numbers), numbers.one

    def kernel(q, k, v, mask, starts, lengths, slopes, sinks, plan, given, places, tasks, scratch, integers, parts, out, lse):
        n, heads_of_keys = q.shape[2], k.shape[1]
        group = q.shape[1] // heads_of_keys
        rows_in_all, width = n * group, padded(v.shape[3])
        base = pointer_to(scratch)
        base = shifted(base, -address(base) % 64)
        room = layout.Room(
            shifted(base, places[0] * size),
            shifted(base, places[1] * size),
            shifted(base, places[2] * size),
            shifted(base, places[3] * size),
            shifted(base, places[4] * size),
            shifted(base, places[5] * size),
            shifted(base, places[6] * size),
            shifted(base, places[7] * size),
            shifted(base, places[8] * size),
            shifted(base, places[9] * size),
            places[10],
        )
        call = Call(q, k, v, mask, slopes, sinks, plan, given)
        rows, blocks, segments, step = plan[layout.ROWS], plan[layout.BLOCKS], plan[layout.SEGMENTS], plan[layout.STEP]
        part_size = layout.state_size(rows, v.shape[3])
        ints = pointer_to(integers)
        seen = Seen(ints, shifted(ints, rows * 8), shifted(ints, rows * 16))
        for t in range(len(tasks)):
            task = tasks[t]
            segment = 0
            if step == PART:
                segment = task % segments
                task = task // segments
            number = task % blocks
            start = number * rows
            head = task // blocks % heads_of_keys
            block = Block(task // (blocks * heads_of_keys), head, start, min(rows, rows_in_all - start))
            own = padded(block.count, ROWS)
            state, more = state_at(room.outputs, rows, width), state_at(room.more, rows, width)
            part = shifted(pointer_to(parts), task * segments * part_size * size)
            if plan[layout.ATTEMPT] > layout.FIRST and not some_left_the_range(block, group, n, lse):
                continue
            if step != JOIN:
                look_around(block, n, starts, lengths, plan, seen, own)
                read_queries(call, block, group, room.queries, room.lifts, own)
                target = state
                if step == PART:
                    target = state_at(shifted(part, segment * part_size * size), rows, width)
                begin(call, block, group, room.lifts, target, rows, width, segment)
                last = segments if step != PART else segment + 1
                while segment < last:
                    attend_segment(call, block, group, seen, own, room, target, segment)
                    if segment > 0 and step != PART:
                        join(state, target, room.lifts, block.count, width)
                    segment += 1
                    if segment < last:
                        target = more
                        clear(target, rows, width)
            else:
                state = state_at(part, rows, width)
                for i in range(2 * layout.BLOCK):
                    room.lifts[i] = numbers.one
                for later in range(1, segments):
                    other = state_at(shifted(part, later * part_size * size), rows, width)
                    join(state, other, room.lifts, block.count, width)
            if step != PART:
                finish(call, block, group, state, room.lifts, out, lse)

    array = f"{computed}[:]"
    return Source(
        kernel,
        "(b,h,l,d),(b,g,k,d),(b,g,k,e),(b,h,l,k),(b),(b),(h),(h),(p),(f),(o),(t),(s),(i),(w),(b,h,l,e),(b,h,l)",
        f"void({dtype}[:,:,:,:], {cached}[:,:,:,:], {cached}[:,:,:,:], uint8[:,:,:,:], int64[:], int64[:], {array}, {array}, "
        f"int64[:], {array}, int64[:], int64[:], {array}, int64[:], {array}, {dtype}[:,:,:,:], {computed}[:,:,:])",
        ("scratch", "integers", "parts", "out", "lse"),
    )
