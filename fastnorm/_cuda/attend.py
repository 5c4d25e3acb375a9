"""The kernels of attention, on fused multiply-adds: a warp takes four queries, its lanes 32 keys, then columns of values.

Rows are queries of all heads that read one head of keys, head after head, as on the CPU, and the formulas are the same. Blocks
of 16 rows share the tile of keys in shared memory. Scores of a tile are taken by lanes, a key each; the values of a key then
go to lanes by columns. Where queries are few, keys are cut into segments, whose states `join` puts together.
"""

from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import EXPONENTIALS, fma, magnitude, maximum, select
from .attention_layout import (
    BOOLEAN,
    BOTH,
    CHUNK,
    FIRST,
    KEYS,
    LIFTED,
    NO_MASK,
    ROWS,
    SHRUNK,
    THREADS,
    WARP_ROWS,
)
from .block import ALL, WARP, as_number, get, inlined, is_given, put, shifted, sum_warp
from .launch import Source
from .scores import kinds_of, mask_reader, query_at, seen
from .softmax_kernels import largest_of_warp
from .tiles import kind_of

STRIDE = CHUNK + 1  # of keys in shared memory: lanes then read from different banks


def attend(dtype, cached, normalised, columns, wide_mask):
    """Kernel: attention of 16 rows a block, to all keys or to a segment, for `columns` times 32 columns of values.

    `dtype`: of queries and results; `cached`: of keys and values. Queries and keys that are `normalised` have the dtype of the
    computation.
    """
    stored, kind, name, _, _, _, _ = kind_of(dtype)
    numbers = EXPONENTIALS[name]
    zero, one, nothing = numbers.zero, numbers.one, numbers.nothing
    integer = types.int64
    bias_at = mask_reader(name, wide_mask)
    n_sums, n_keys, n_queries, n_lifts = WARP_ROWS * columns, KEYS * STRIDE, ROWS * CHUNK, 4 * ROWS

    @inlined
    def load_keys(k, row_stride, stride, key, end, first, head_size, keys):
        """A chunk of the features of 32 keys, zeros where there is none."""
        i = cuda.threadIdx.x
        while i < KEYS * CHUNK:
            j, feature = i // CHUNK, first + i % CHUNK
            value = zero
            if key + j < end and feature < head_size:
                value = kind(get(shifted(k, (key + j) * row_stride + feature * stride), 0))
            keys[j * STRIDE + i % CHUNK] = value
            i += THREADS

    @inlined
    def load_queries(q, head_stride, row_stride, stride, head, n, first_row, rows, first, head_size, lifts, queries):
        """The same chunk of 16 queries, each times its two factors."""
        i = cuda.threadIdx.x
        while i < ROWS * CHUNK:
            r, feature = i // CHUNK, first + i % CHUNK
            value = zero
            if first_row + r < rows and feature < head_size:
                value = get(shifted(query_at(q, head_stride, row_stride, head, n, first_row + r), feature * stride), 0)
            queries[i] = value * lifts[4 * r + 2] * lifts[4 * r + 3]
            i += THREADS

    @inlined
    def put_lift(lifts, r, lift, scale):
        """The lift of a row's scores, and what its query is multiplied by."""
        lifts[4 * r], lifts[4 * r + 1] = lift.first, lift.second
        lifts[4 * r + 2], lifts[4 * r + 3] = scale / lift.first, one / lift.second

    @inlined
    def lift_of(lifts, r):
        return _math.Lift(lifts[4 * r], lifts[4 * r + 1])

    @inlined
    def find_lift(q, stride, head_size, scale):
        """The lift of a row, which a warp finds, where its scores might leave the range."""
        size, feature = zero, integer(cuda.threadIdx.x % WARP)
        while feature < head_size:
            size = maximum(magnitude(get(shifted(q, feature * stride), 0)), size)
            feature += WARP
        return _math.lift_for(largest_of_warp(size), magnitude(scale), numbers)

    @inlined
    def score_of(score, before, lift, cap, slope, position, key, bias, masked):
        """What the options make of a product with the scale; `before` is the lift before the soft cap."""
        if cap != zero:
            score = _math.capped(_math.lifted(score, before), cap, numbers)
        if slope != zero:
            slope = _math.lowered(slope, lift, numbers)
            score = _math.with_distance(score, slope, as_number(position, one), as_number(key, one), numbers)
        if masked:
            score = _math.with_bias(score, _math.lowered(bias, lift, numbers), numbers)
        return nothing if bias == nothing else score

    def kernel(
        q, q_batch, q_head, q_row, q_stride, k, k_batch, k_head, k_row, k_stride, v, v_batch, v_head, v_row, v_stride,
        out, out_batch, out_head, out_row, out_stride, lse, mask, mask_batch, mask_head, mask_row, mask_stride, mask_kind,
        starts, lengths, slopes, sinks, start, length, left, right, scale, cap, attempt, marks,
        n, group, key_heads, head_size, value_size, blocks, segment, parts, part_largest, part_totals,
    ):  # fmt: skip
        keys, queries = cuda.shared.array(n_keys, kind), cuda.shared.array(n_queries, kind)
        sums = cuda.local.array(n_sums, kind)
        largest, total, scores, biases = (
            cuda.local.array(WARP_ROWS, kind),
            cuda.local.array(WARP_ROWS, kind),
            cuda.local.array(WARP_ROWS, kind),
            cuda.local.array(WARP_ROWS, kind),
        )
        allowed, done = cuda.local.array(WARP_ROWS, types.uint32), cuda.local.array(WARP_ROWS, types.boolean)
        lifts = cuda.shared.array(n_lifts, kind)
        lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
        block, rest = integer(cuda.blockIdx.x) % blocks, integer(cuda.blockIdx.x) // blocks
        key_head, b = rest % key_heads, rest // key_heads
        head, rows = key_head * group, n * group
        first_row, first_column = block * ROWS, integer(cuda.blockIdx.z) * columns * WARP
        own = first_row + warp * WARP_ROWS
        if is_given(starts):
            start = starts[b]
        if is_given(lengths):
            length = lengths[b]
        q, k, v, mask = shifted(q, b * q_batch), shifted(k, b * k_batch), shifted(v, b * v_batch), shifted(mask, b * mask_batch)
        k, v = shifted(k, key_head * k_head), shifted(v, key_head * v_head)

        low, high = length, integer(0)
        for r in range(ROWS):
            if first_row + r < rows:
                first, end = seen(first_row + r, n, start, length, left, right)
                if first < end:
                    low, high = min(low, first), max(high, end)
        high = min(high, (integer(cuda.blockIdx.y) + 1) * segment)
        flat = (b * key_heads + key_head) * rows
        all_rows = integer(cuda.gridDim.x) // blocks * rows
        pending = types.int32(0)
        for r in range(WARP_ROWS):
            done[r] = own + r >= rows or (is_given(marks) and marks[flat + own + r] == zero)
            if not done[r]:
                pending = types.int32(1)
        if cuda.syncthreads_or(pending) == 0:
            return

        while True:  # as on the CPU, rows that end without a number are computed again, in another way
            in_query, in_score = (scale, one) if attempt >= LIFTED else (one, scale)
            shrink = numbers.shrink if attempt in (SHRUNK, BOTH) else one
            cuda.syncthreads()
            for r in range(WARP_ROWS):
                place = warp * WARP_ROWS + r
                lift = _math.Lift(one, one)
                if attempt >= LIFTED and own + r < rows:
                    lift = find_lift(query_at(q, q_head, q_row, head, n, own + r), q_stride, head_size, scale)
                if lane == 0:
                    put_lift(lifts, place, lift, in_query)
            cuda.syncthreads()
            for r in range(WARP_ROWS):
                largest[r], total[r] = nothing, zero
                for c in range(columns):
                    sums[r * columns + c] = zero
                if is_given(sinks) and cuda.blockIdx.y == 0 and own + r < rows:
                    sink = sinks[head + (own + r) // n]
                    if sink != nothing:
                        place = warp * WARP_ROWS + r
                        lift = lift_of(lifts, place)
                        if cap != zero:
                            lift = _math.Lift(one, one)
                        largest[r], total[r] = _math.lowered(sink, lift, numbers), one
            key = max(low // KEYS * KEYS, integer(cuda.blockIdx.y) * segment)

            while key < high:
                here, some = key + lane, types.int32(0)
                for r in range(WARP_ROWS):
                    biases[r] = nothing
                    row = own + r
                    if row < rows:
                        first, end = seen(row, n, start, length, left, right)
                        if first <= here and here < min(end, high):
                            biases[r] = zero
                            if mask_kind != NO_MASK:
                                place = (head + row // n) * mask_head + (row % n) * mask_row + here * mask_stride
                                biases[r] = bias_at(shifted(mask, place), mask_kind)
                    allowed[r] = cuda.ballot_sync(ALL, biases[r] != nothing)
                    if allowed[r] != 0:
                        some = types.int32(1)
                    scores[r] = zero
                if cuda.syncthreads_or(some) == 0:
                    key += KEYS
                    continue
                feature = integer(0)
                while feature < head_size:
                    cuda.syncthreads()
                    load_keys(k, k_row, k_stride, key, high, feature, head_size, keys)
                    load_queries(q, q_head, q_row, q_stride, head, n, first_row, rows, feature, head_size, lifts, queries)
                    cuda.syncthreads()
                    for j in range(CHUNK):
                        value = keys[lane * STRIDE + j]
                        for r in range(WARP_ROWS):
                            scores[r] = fma(queries[(warp * WARP_ROWS + r) * CHUNK + j], value, scores[r])
                    feature += CHUNK
                for r in range(WARP_ROWS):
                    row = own + r
                    slope = zero
                    if is_given(slopes) and row < rows:
                        slope = slopes[head + row // n]
                    position = start + row % n
                    place = warp * WARP_ROWS + r
                    before = lift = lift_of(lifts, place)
                    if cap != zero:
                        lift = _math.Lift(one, one)
                    score = scores[r] * in_score
                    if attempt < LIFTED:
                        score = _math.infinite_as_nan(score, numbers)
                    score = score_of(score, before, lift, cap, slope, position, here, biases[r], mask_kind > BOOLEAN)
                    step = _math.next_step(largest[r], largest_of_warp(score), lift, numbers)
                    weight = _math.weight_of(score, step.against, lift, numbers)
                    total[r] = _math.grown(total[r], sum_warp(weight), step.factor)
                    largest[r], scores[r] = step.largest, weight * shrink
                    for c in range(columns):
                        sums[r * columns + c] *= step.factor
                count = min(integer(KEYS), high - key)
                j = 0
                while j < count:
                    for c in range(columns):
                        column = first_column + c * WARP + lane
                        value = zero
                        if column < value_size:
                            value = kind(get(shifted(v, (key + j) * v_row + column * v_stride), 0))
                        for r in range(WARP_ROWS):
                            # A key that is not allowed is left out: 0 times what is no number would be none.
                            weight = cuda.shfl_sync(ALL, scores[r], j)
                            weighed = fma(weight, value, sums[r * columns + c])
                            inside = (allowed[r] >> types.uint32(j)) & types.uint32(1) != types.uint32(0)
                            sums[r * columns + c] = select(inside, weighed, sums[r * columns + c])
                    j += 1
                key += KEYS

            if is_given(parts):
                for r in range(WARP_ROWS):
                    row = own + r
                    if row < rows:
                        place = integer(cuda.blockIdx.y) * all_rows + flat + row
                        for c in range(columns):
                            column = first_column + c * WARP + lane
                            if column < value_size:
                                parts[place * value_size + column] = sums[r * columns + c]
                        if lane == 0 and cuda.blockIdx.z == 0:
                            part_largest[place], part_totals[place] = largest[r], total[r]
                return
            again = types.int32(0)
            for r in range(WARP_ROWS):
                row = own + r
                inverse = select(total[r] == zero, zero, one / total[r])
                zeros = total[r] * zero
                for c in range(columns):
                    zeros = fma(sums[r * columns + c] * inverse, zero, zeros)
                if cuda.any_sync(ALL, zeros != zeros) and attempt < BOTH:
                    again = types.int32(1) if not done[r] else again
                elif not done[r]:
                    done[r] = True
                    place = b * out_batch + (head + row // n) * out_head + (row % n) * out_row
                    for c in range(columns):
                        column = first_column + c * WARP + lane
                        if column < value_size:
                            mean = sums[r * columns + c] * inverse
                            if attempt > FIRST:
                                mean = _math.mean_of(sums[r * columns + c], inverse, shrink, numbers)
                            put(shifted(out, place + column * out_stride), 0, mean)
                    if lane == 0 and cuda.blockIdx.z == 0:
                        place = warp * WARP_ROWS + r
                        lift = lift_of(lifts, place)
                        if cap != zero:
                            lift = _math.Lift(one, one)
                        log = _math.lifted(largest[r], lift) + _math.logarithm(total[r])
                        lse[flat + row] = nothing if total[r] == zero else log
            if cuda.syncthreads_or(again) == 0:
                return
            attempt += 1

    number, result, value = types.CPointer(kind), types.CPointer(stored), types.CPointer(getattr(types, cached))
    query, key = (number, number) if normalised else (result, value)
    kinds = kinds_of(query, key, value, result, number)
    return Source(kernel, kinds, (THREADS, 2))  # blocks side by side: told more, ptxas spills


def join(dtype):
    """Kernel: states of parts put together, a block a row, its threads over columns. Without totals, parts are means.

    Rows that end without a number are marked.
    """
    stored, kind, name, _, _, _, _ = kind_of(dtype)
    numbers = EXPONENTIALS[name]
    zero, one, nothing = numbers.zero, numbers.one, numbers.nothing
    integer = types.int64

    @inlined
    def counts(largest, totals, place):
        """False for a part that saw no key. A total that is not a number counts."""
        if is_given(totals):
            return totals[place] != zero
        return largest[place] != nothing

    @inlined
    def weight_in(largest, totals, place, against):
        """The weight of a part's sums, and of its total."""
        weight = _math.weight_of(largest[place], against, _math.Lift(one, one), numbers)
        if is_given(totals):
            return weight, weight * totals[place]
        return weight, weight

    def kernel(
        parts, largest, totals, n_parts, all_rows, out, out_batch, out_head, out_row, out_stride, lse, n, heads, size, marks
    ):  # fmt: skip
        row = integer(cuda.blockIdx.x)
        highest, total = nothing, zero
        i = integer(0)
        while i < n_parts:
            highest = maximum(largest[i * all_rows + row], highest)
            i += 1
        against = _math.reference(highest, numbers)
        i = integer(0)
        while i < n_parts:
            place = i * all_rows + row
            if counts(largest, totals, place):
                total += weight_in(largest, totals, place, against)[1]
            i += 1
        batch, rest = row // (heads * n), row % (heads * n)
        out = shifted(out, batch * out_batch + rest // n * out_head + rest % n * out_row)
        if is_given(marks):
            if cuda.threadIdx.x == 0:
                marks[row] = zero if total == total else one
            cuda.syncthreads()
        column = integer(cuda.threadIdx.x)
        while column < size:
            value = zero
            i = integer(0)
            while i < n_parts:
                place = i * all_rows + row
                if counts(largest, totals, place):
                    share = weight_in(largest, totals, place, against)[0] / total
                    if share != zero:
                        value += share * parts[place * size + column]
                i += 1
            put(shifted(out, column * out_stride), 0, value)
            if is_given(marks) and value * zero != zero:
                marks[row] = one
            column += cuda.blockDim.x
        if cuda.threadIdx.x == 0:
            lse[row] = nothing if total == zero else _math.log_sum(_math.Weights(highest, total), numbers)

    number, i = types.CPointer(kind), integer
    return Source(kernel, (number, number, number, i, i, types.CPointer(stored), i, i, i, i, number, i, i, i, number), THREADS)
