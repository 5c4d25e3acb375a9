"""A tile of a matrix product, held in registers, as a numba type; and matrices turned over, for it to read along.

A tile is six rows of as many registers as leave room for what they are multiplied by: four of AVX-512 a row (24 of 32), two
of AVX2 (12 of 16), four of NEON (24 of 32). Each element is a chain of fused multiply-adds, whatever the width, so
that the bits do not depend on it.
"""

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from .._compile import processor_features
from .simd import LANES, SUFFIX, call

ROWS = 6
TURNED = 16  # rows and columns of what is turned over at once


def tile_bytes():
    """Bytes of a row of a tile."""
    return 256 if "+avx512f" in processor_features() else 64


class Tile(types.Type):
    """Some rows of numbers of one dtype, in registers."""

    def __init__(self, dtype, rows):
        self.dtype, self.rows = dtype, rows
        self.width = tile_bytes() // (dtype.bitwidth // 8)
        super().__init__(f"Tile({dtype}, {rows})")


def _row(kind):
    element = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
    return ir.VectorType(element, kind.width)


@register_model(Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.LiteralStructType([_row(fe_type)] * fe_type.rows))


def _at(builder, pointer, index, pointee):
    return builder.bitcast(builder.gep(pointer, [index]), pointee.as_pointer())


def _load_row(builder, kind, pointer, index):
    value = builder.load(_at(builder, pointer, index, _row(kind)))
    value.align = kind.dtype.bitwidth // 8
    return value


def _spread(builder, value, kind):
    vector = _row(kind)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


@intrinsic
def tile_width(typing, pointer):
    """The numbers in a row of a tile of what `pointer` points to."""
    width = tile_bytes() // (pointer.dtype.bitwidth // 8)

    def codegen(context, builder, signature, args):
        return context.get_constant(types.intp, width)

    return types.intp(pointer), codegen


@intrinsic
def zero_tile(typing, pointer, rows):
    """A tile of zeros, of so many rows (a literal)."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    kind = Tile(pointer.dtype, rows.literal_value)

    def codegen(context, builder, signature, args):
        return ir.Constant(context.get_value_type(kind), None)

    return kind(pointer, rows), codegen


@intrinsic
def load_tile(typing, pointer, stride, factors, rows):
    """A tile from memory, with `stride` elements from row to row, each row multiplied by its factor."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    kind = Tile(pointer.dtype, rows.literal_value)

    def codegen(context, builder, signature, args):
        source, step, factor, _ = args
        tile = ir.Constant(context.get_value_type(kind), ir.Undefined)
        for i in range(kind.rows):
            row = _load_row(builder, kind, source, builder.mul(step, step.type(i)))
            by = _spread(builder, builder.load(builder.gep(factor, [step.type(i)])), kind)
            tile = builder.insert_value(tile, builder.fmul(row, by), i)
        return tile

    return kind(pointer, types.intp, pointer, rows), codegen


@intrinsic
def store_tile(typing, tile, pointer, stride):
    """A tile to memory."""

    def codegen(context, builder, signature, args):
        value, target, step = args
        for i in range(tile.rows):
            place = _at(builder, target, builder.mul(step, step.type(i)), _row(tile))
            builder.store(builder.extract_value(value, i), place).align = tile.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.void(tile, pointer, types.intp), codegen


@intrinsic
def add_tile(typing, tile, pointer, stride):
    """What is in memory, and a tile."""

    def codegen(context, builder, signature, args):
        value, source, step = args
        for i in range(tile.rows):
            row = _load_row(builder, tile, source, builder.mul(step, step.type(i)))
            value = builder.insert_value(value, builder.fadd(row, builder.extract_value(value, i)), i)
        return value

    return tile(tile, pointer, types.intp), codegen


@intrinsic
def add_products(typing, tile, column, stride, row):
    """``tile[i] += column[i * stride] * row``, fused."""

    def codegen(context, builder, signature, args):
        value, source, step, across = args
        vector = _row(tile)
        fma = f"llvm.fma.v{vector.count}{SUFFIX[tile.dtype]}"
        along = _load_row(builder, tile, across, step.type(0))
        for i in range(tile.rows):
            number = builder.load(builder.gep(source, [builder.mul(step, step.type(i))]))
            product = call(builder, fma, vector, [_spread(builder, number, tile), along, builder.extract_value(value, i)])
            value = builder.insert_value(value, product, i)
        return value

    return tile(tile, column, types.intp, row), codegen


@intrinsic
def store_quarters(typing, pointer, lanes):
    """64 lanes joined to 16, i with i + 32, then with i + 16: the first two steps of their tree."""

    def codegen(context, builder, signature, args):
        value, width = args[1], LANES
        while width > TURNED:
            width //= 2
            none = ir.Constant(value.type, ir.Undefined)
            low, high = (ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(i, i + width))) for i in (0, width))
            value = builder.fadd(builder.shuffle_vector(value, none, low), builder.shuffle_vector(value, none, high))
        place = builder.bitcast(args[0], value.type.as_pointer())
        builder.store(value, place).align = pointer.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.void(pointer, lanes), codegen


@intrinsic
def turn_over(typing, source, source_stride, target, target_stride):
    """Store 16 x 16 numbers with rows and columns exchanged; strides are in elements.

    Four times, each number whose row and column differ in one binary digit of their place changes places with the other.
    """

    def codegen(context, builder, signature, args):
        origin, step, goal, goal_step = args
        element = ir.FloatType() if source.dtype == types.float32 else ir.DoubleType()
        vector = ir.VectorType(element, TURNED)
        size = source.dtype.bitwidth // 8
        rows = []
        for i in range(TURNED):
            row = builder.load(_at(builder, origin, builder.mul(step, step.type(i)), vector))
            row.align = size
            rows.append(row)
        digit = TURNED // 2
        while digit:
            low = [j if not j & digit else TURNED + j - digit for j in range(TURNED)]
            high = [j + digit if not j & digit else TURNED + j for j in range(TURNED)]
            indices = [ir.Constant(ir.VectorType(ir.IntType(32), TURNED), order) for order in (low, high)]
            for i in range(TURNED):
                if not i & digit:
                    pair = rows[i], rows[i + digit]
                    rows[i], rows[i + digit] = (builder.shuffle_vector(*pair, index) for index in indices)
            digit //= 2
        for i, row in enumerate(rows):
            builder.store(row, _at(builder, goal, builder.mul(goal_step, goal_step.type(i)), vector)).align = size
        return context.get_dummy_value()

    return types.void(source, types.intp, source, types.intp), codegen
