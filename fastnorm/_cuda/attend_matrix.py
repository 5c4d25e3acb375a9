"""The kernel of attention on tensor cores, for 16-bit floats: a block takes 64 queries, a warp 16 of them, 64 keys at a time.

Scores and sums are float32; weights are rounded to 16 bits for their values, whose sums are divided by that of rounded weights,
so that equal values have that value for their mean. Keys and values take turns in coming to shared memory: the ones while the
others are in use. A row that ends without a number is marked, and computed again by `attend`: it may have left the range, or
seen a value that is no number behind a mask.

What a lane holds of tiles, with ``row = lane // 4`` and ``pair = 2 * (lane % 4)``: of 16 x 8 sums those at (row, pair), (row,
pair + 1), (row + 8, pair), (row + 8, pair + 1); of 16 x 16 weights, which are the next product's left side, the same of the
first eight columns, then of the others. So the weights of two tiles of scores are one left side as they are.
"""

import numpy as np
from numba import cuda
from numba.cuda import types

from .. import _math
from .._vocabulary import EXPONENTIALS, fma, maximum, select
from .attention_layout import BOOLEAN, MATRIX_BLOCKS, MATRIX_KEYS, MATRIX_ROWS, NO_MASK, THREADS
from .block import ALL, WARP, as_number, inlined, is_given, shifted
from .launch import Source
from .matrix import (
    end_copies,
    in_shared,
    load_matrices,
    load_transposed,
    multiplier,
    packer,
    put_pair,
    start_copy,
    store_load,
    unpacker,
    wait_for_copies,
)
from .scores import kinds_of, mask_reader, query_at, seen
from .tiles import kind_of

# What weights are multiplied by when they are rounded: float16 has nothing below 6e-8, where many small ones may still count.
GAINS = {"int16": 2.0**15, "uint16": 1.0}
SIDE, EIGHT, LOADED = 16, 8, 8  # rows of a warp's tile; columns of its sums; 16-bit floats of a load


@inlined
def sum_four(value):
    """The sum over the four lanes that hold a row."""
    value += cuda.shfl_xor_sync(ALL, value, 1)
    return value + cuda.shfl_xor_sync(ALL, value, 2)


@inlined
def largest_of_four(value):
    value = maximum(value, cuda.shfl_xor_sync(ALL, value, 1))
    return maximum(value, cuda.shfl_xor_sync(ALL, value, 2))


def unrolled(count, maker):
    """The function that calls ``maker(0)``, ``maker(1)``, ... in turn, all with its arguments: a loop over registers.

    Of an array that is indexed by anything but constants, nothing stays in registers, and what NVVM unrolls depends on its
    version.
    """
    steps = [maker(j) for j in range(count)]
    run = steps.pop()
    while steps:
        run = _then(steps.pop(), run)
    return run


def _then(first, second):
    @inlined
    def both(*args):
        first(*args)
        second(*args)

    return both


def attend_tiles(dtype, size, aligned, wide_mask):
    """Kernel: attention of 64 rows a block, for heads and values of up to `size` features.

    `aligned`: addresses, strides and sizes are multiples of 16 bytes, and features lie side by side. Takes what
    `attend.attend` takes, whose parts it ignores; `marks` is an output.
    """
    stored, kind, name, _, _, _, _ = kind_of(dtype)
    numbers = EXPONENTIALS[name]
    zero, one, nothing, no_lift = numbers.zero, numbers.one, numbers.nothing, _math.Lift(numbers.one, numbers.one)
    integer = types.int64
    gain = np.float32(GAINS[dtype])
    bias_at = mask_reader(name, wide_mask)
    multiply, pack, unpack = multiplier(dtype), packer(dtype), unpacker(dtype)
    stride = size + LOADED  # of shared memory: the rows of a matrix then lie in different banks
    n_shared, n_bounds = MATRIX_KEYS * stride, 2 * MATRIX_ROWS
    steps, tiles, columns = size // SIDE, MATRIX_KEYS // EIGHT, size // EIGHT
    n_queries, n_scores, n_weights, n_sums = 4 * steps, 4 * tiles, 2 * tiles, 4 * columns

    @inlined
    def load_row(source, feature_stride, given, features, row, first, shared):
        """Eight features of a row to shared memory, zeros where there is none."""
        place = row * stride + first
        if aligned:
            inside = given and first < features
            start_copy(
                in_shared(shared, place), source, first * 2 if inside else 0, types.int32(16) if inside else types.int32(0)
            )
        else:
            for i in range(LOADED):
                value = stored(0)
                if given and first + i < features:
                    value = shifted(source, (first + i) * feature_stride)[0]
                shared[place + i] = value

    @inlined
    def load_keys(k, row_stride, feature_stride, key, end, features, shared):
        """64 keys or values, from number `key` on."""
        i = cuda.threadIdx.x
        while i < MATRIX_KEYS * (size // LOADED):
            row, first = i // (size // LOADED), i % (size // LOADED) * LOADED
            given = key + row < end
            source = shifted(k, (key + row) * row_stride if given else 0)
            load_row(source, feature_stride, given, features, row, first, shared)
            i += THREADS
        end_copies()

    @inlined
    def load_queries(q, head_stride, row_stride, feature_stride, head, n, first_row, rows, features, shared):
        i = cuda.threadIdx.x
        while i < MATRIX_ROWS * (size // LOADED):
            row, first = i // (size // LOADED), i % (size // LOADED) * LOADED
            given = first_row + row < rows
            source = query_at(q, head_stride, row_stride, head, n, first_row + row if given else 0)
            load_row(source, feature_stride, given, features, row, first, shared)
            i += THREADS
        end_copies()

    @inlined
    def store_row(shared, place, out, feature_stride, first, features):
        """Eight features of a result from shared memory."""
        if aligned:
            if first < features:
                store_load(shared, place, out, first * 2)
        else:
            for i in range(LOADED):
                if first + i < features:
                    shifted(out, (first + i) * feature_stride)[0] = shared[place + i]

    @inlined
    def bits_of(masks, key_stride, mask_kind, key, first, end):
        """Which of its scores of a tile a lane must take: a bit each. `masks`, `first` and `end`: of its two rows."""
        bits = types.uint32(0)
        for i in range(n_scores):
            upper = i // 2 % 2 == 0
            here = types.int32(i // 4 * EIGHT + cuda.threadIdx.x % 4 * 2 + i % 2)
            may = select(upper, first[0], first[1]) <= here and here < select(upper, end[0], end[1])
            if mask_kind != NO_MASK and may:
                place = (key + here) * key_stride
                may = bias_at(shifted(masks[0] if upper else masks[1], place), mask_kind) != nothing
            if may:
                bits |= types.uint32(1) << types.uint32(i)
        return bits

    def capping(j):
        @inlined
        def cap_tile(scores, cap):
            for i in range(4 * j, 4 * j + 4):
                scores[i] = _math.capped(scores[i], cap, numbers)

        return cap_tile

    def lowering(j):
        @inlined
        def lower_tile(scores, slopes, positions, key):
            for i in range(4 * j, 4 * j + 4):
                here = as_number(key + j * EIGHT + cuda.threadIdx.x % 4 * 2 + i % 2, one)
                if slopes[i // 2 % 2] != zero:
                    scores[i] = _math.with_distance(scores[i], slopes[i // 2 % 2], positions[i // 2 % 2], here, numbers)

        return lower_tile

    def biasing(j):
        @inlined
        def bias_tile(scores, bits, masks, key_stride, mask_kind, key):
            for i in range(4 * j, 4 * j + 4):
                if (bits >> types.uint32(i)) & types.uint32(1) != types.uint32(0):
                    here = shifted(masks[i // 2 % 2], (key + j * EIGHT + cuda.threadIdx.x % 4 * 2 + i % 2) * key_stride)
                    scores[i] = _math.with_bias(scores[i], bias_at(here, mask_kind), numbers)

        return bias_tile

    def weighing(j):
        @inlined
        def weigh_tile(scores, against):
            for i in range(4 * j, 4 * j + 4):
                scores[i] = _math.weight_of(scores[i], against[i // 2 % 2], no_lift, numbers)

        return weigh_tile

    cap_scores, lower_scores, add_biases, weigh = (unrolled(tiles, maker) for maker in (capping, lowering, biasing, weighing))

    def kernel(
        q, q_batch, q_head, q_row, q_stride, k, k_batch, k_head, k_row, k_stride, v, v_batch, v_head, v_row, v_stride,
        out, out_batch, out_head, out_row, out_stride, lse, mask, mask_batch, mask_head, mask_row, mask_stride, mask_kind,
        starts, lengths, slopes, sinks, start, length, left, right, scale, cap, attempt, marks,
        n, group, key_heads, head_size, value_size, blocks, segment, parts, part_largest, part_totals,
    ):  # fmt: skip
        keys = cuda.shared.array(n_shared, stored, 16)
        values = cuda.shared.array(n_shared, stored, 16)
        queries, sums = cuda.local.array(n_queries, types.uint32), cuda.local.array(n_sums, kind)
        scores, weights = cuda.local.array(n_scores, kind), cuda.local.array(n_weights, types.uint32)
        side = cuda.local.array(4, types.uint32)
        bounds = cuda.shared.array(n_bounds, integer)
        first, end = cuda.local.array(2, types.int32), cuda.local.array(2, types.int32)
        largest, total, rounded = cuda.local.array(2, kind), cuda.local.array(2, kind), cuda.local.array(2, kind)
        against, factors = cuda.local.array(2, kind), cuda.local.array(2, kind)
        goods = cuda.local.array(2, types.uint32)
        lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
        rest = integer(cuda.blockIdx.x) // blocks
        block = blocks - 1 - integer(cuda.blockIdx.x) % blocks  # causal rows that see most first
        key_head, b = rest % key_heads, rest // key_heads
        head, rows = key_head * group, n * group
        first_row = block * MATRIX_ROWS
        own = first_row + warp * SIDE + lane // 4  # and the row eight below
        if is_given(starts):
            start = starts[b]
        if is_given(lengths):
            length = lengths[b]
        q, k, v, mask = shifted(q, b * q_batch), shifted(k, b * k_batch), shifted(v, b * v_batch), shifted(mask, b * mask_batch)
        out = shifted(out, b * out_batch)
        k, v = shifted(k, key_head * k_head), shifted(v, key_head * v_head)

        # What each of the block's rows may see
        row = first_row + cuda.threadIdx.x
        if cuda.threadIdx.x < MATRIX_ROWS:
            low, high = integer(0), integer(0)
            if row < rows:
                low, high = seen(row, n, start, length, left, right)
            bounds[2 * cuda.threadIdx.x], bounds[2 * cuda.threadIdx.x + 1] = low, high
        load_queries(q, q_head, q_row, q_stride, head, n, first_row, rows, head_size, keys)
        wait_for_copies()
        cuda.syncthreads()
        low, high = length, integer(0)
        for r in range(MATRIX_ROWS):
            if bounds[2 * r] < bounds[2 * r + 1]:
                low, high = min(low, bounds[2 * r]), max(high, bounds[2 * r + 1])
        own_queries = in_shared(keys, (warp * SIDE + lane % SIDE) * stride + lane // SIDE * EIGHT)
        own_keys = in_shared(keys, (lane % EIGHT + lane // SIDE * EIGHT) * stride + lane // EIGHT % 2 * EIGHT)
        own_values = in_shared(values, lane % SIDE * stride + lane // SIDE * EIGHT)
        for i in range(steps):
            load_matrices(own_queries, 2 * SIDE * i, queries, 4 * i)
        for h in range(2):
            row = own + h * EIGHT
            largest[h], total[h], rounded[h] = nothing, zero, zero
            if is_given(sinks) and row < rows:
                sink = sinks[head + row // n]
                if sink != nothing:
                    largest[h], total[h] = sink, one if lane % 4 == 0 else zero
                    rounded[h] = total[h] * gain
        masks = (query_at(mask, mask_head, mask_row, head, n, own), query_at(mask, mask_head, mask_row, head, n, own + EIGHT))
        for i in range(n_sums):
            sums[i] = zero
        cuda.syncthreads()

        key = low // MATRIX_KEYS * MATRIX_KEYS
        if key < high:
            load_keys(k, k_row, k_stride, key, high, head_size, keys)
        while key < high:
            for h in range(2):
                place = 2 * (warp * SIDE + lane // 4 + h * EIGHT)
                first[h] = types.int32(min(max(bounds[place] - key, integer(0)), integer(MATRIX_KEYS)))
                end[h] = types.int32(min(max(bounds[place + 1] - key, integer(0)), integer(MATRIX_KEYS)))
            bits = types.uint32(0xFFFFFFFF)
            if mask_kind != NO_MASK or max(first[0], first[1]) > 0 or min(end[0], end[1]) < MATRIX_KEYS:
                bits = bits_of(masks, mask_stride, mask_kind, key, first, end)
            wait_for_copies()
            if cuda.syncthreads_or(types.int32(bits != 0)) == 0:  # nobody sees any
                key += MATRIX_KEYS
                if key < high:
                    load_keys(k, k_row, k_stride, key, high, head_size, keys)
                continue
            load_keys(v, v_row, v_stride, key, high, value_size, values)
            for i in range(n_scores):
                scores[i] = zero
            for j in range(0, tiles, 2):  # scores, of 16 keys at a time
                for i in range(steps):
                    load_matrices(own_keys, 2 * (j * EIGHT * stride + i * SIDE), side, 0)
                    multiply(queries, 4 * i, side, 0, scores, 4 * j)
                    multiply(queries, 4 * i, side, 2, scores, 4 * j + 4)
            for i in range(n_scores):
                scores[i] = _math.infinite_as_nan(scores[i] * scale, numbers)
            if cap != zero:
                cap_scores(scores, cap)
            if is_given(slopes):
                upper, lower = min(own, rows - 1), min(own + EIGHT, rows - 1)
                both = slopes[head + upper // n], slopes[head + lower // n]
                lower_scores(scores, both, (as_number(start + upper % n, one), as_number(start + lower % n, one)), key)
            if mask_kind > BOOLEAN:
                add_biases(scores, bits, masks, mask_stride, mask_kind, key)
            if bits != types.uint32(0xFFFFFFFF):
                for i in range(n_scores):
                    if (bits >> types.uint32(i)) & types.uint32(1) == types.uint32(0):
                        scores[i] = nothing
            for h in range(2):
                highest = nothing
                for j in range(tiles):
                    highest = maximum(scores[4 * j + 2 * h], highest)
                    highest = maximum(scores[4 * j + 2 * h + 1], highest)
                step = _math.next_step(largest[h], largest_of_four(highest), no_lift, numbers)
                largest[h], against[h], factors[h] = step
            weigh(scores, against)
            for h in range(2):
                more = less = zero
                for j in range(tiles):
                    more += scores[4 * j + 2 * h] + scores[4 * j + 2 * h + 1]
                    weights[2 * j + h] = pack(scores[4 * j + 2 * h] * gain, scores[4 * j + 2 * h + 1] * gain)
                    less += unpack(weights[2 * j + h], 0) + unpack(weights[2 * j + h], 1)
                total[h] = _math.grown(total[h], more, factors[h])
                rounded[h] = _math.grown(rounded[h], less, factors[h])
                for c in range(columns):
                    sums[4 * c + 2 * h] *= factors[h]
                    sums[4 * c + 2 * h + 1] *= factors[h]
            wait_for_copies()
            cuda.syncthreads()
            key += MATRIX_KEYS
            if key < high:
                load_keys(k, k_row, k_stride, key, high, head_size, keys)
            for j in range(0, tiles, 2):
                for c in range(0, columns, 2):
                    load_transposed(own_values, 2 * (j * EIGHT * stride + c * EIGHT), side, 0)
                    multiply(weights, 2 * j, side, 0, sums, 4 * c)
                    multiply(weights, 2 * j, side, 2, sums, 4 * c + 4)

        # The results, by way of shared memory, from where they go in whole loads
        cuda.syncthreads()
        flat = (b * key_heads + key_head) * rows
        for h in range(2):
            row = own + h * EIGHT
            whole, divisor = sum_four(total[h]), sum_four(rounded[h])
            inverse = zero if divisor == zero else one / divisor
            zeros = whole * zero
            for c in range(columns):
                for i in range(2):
                    at = 4 * c + 2 * h + i
                    sums[at] *= inverse
                    zeros = fma(sums[at], zero, zeros)
            good = sum_four(zeros) == zero
            goods[h] = cuda.ballot_sync(ALL, good)
            for c in range(columns):
                place = (warp * SIDE + lane // 4 + h * EIGHT) * stride + c * EIGHT + lane % 4 * 2
                put_pair(values, place, pack(sums[4 * c + 2 * h], sums[4 * c + 2 * h + 1]))
            if lane % 4 == 0 and row < rows:
                marks[flat + row] = zero if good else one
                if good:
                    lse[flat + row] = nothing if whole == zero else largest[h] + _math.logarithm(whole)
        cuda.syncwarp()
        i = lane
        while i < SIDE * (size // LOADED):
            near, column = i // (size // LOADED), i % (size // LOADED) * LOADED
            row, place = first_row + warp * SIDE + near, (warp * SIDE + near) * stride + column
            good = (select(near < EIGHT, goods[0], goods[1]) >> types.uint32(near % EIGHT * 4)) & types.uint32(
                1
            ) != types.uint32(0)
            if row < rows and good:
                store_row(values, place, query_at(out, out_head, out_row, head, n, row), out_stride, column, value_size)
            i += WARP

    kinds = kinds_of(*[types.CPointer(stored)] * 4, types.CPointer(kind))
    return Source(kernel, kinds, (THREADS, MATRIX_BLOCKS))
