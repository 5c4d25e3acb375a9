"""What a thread and its block can do: the words of `_vocabulary`, memory 128 bits at a time, sums over all threads.

Nothing here or in a kernel may name a float literal: ``1.0`` would widen float32 to double, which most GPUs compute 64
times slower. Constants come from `_vocabulary.RANGES`, everything else takes the dtype of its arguments.
"""

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic, lower_builtin, register_jitable, type_callable

from .. import _math
from .. import _vocabulary as words
from .launch import WARP

ALL = 0xFFFFFFFF  # every lane of a warp takes part
LOAD = 16  # bytes of the widest load and store
CHAINS = 4  # sums that a thread keeps side by side

_FLOAT = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}


# ------------------------------------------------------------------------------------------------- the vocabulary
def _define(word, arity, emit):
    """Give a word its body for numbers of one dtype: ``emit(builder, *values)`` writes the instructions."""

    @type_callable(word)
    def typing(context):
        def typer(*kinds):
            return kinds[0] if kinds[0] in _FLOAT and len(set(kinds)) == 1 else None

        return _with_arity(typer, arity)

    @lower_builtin(word, *[types.Float] * arity)
    def lowering(context, builder, signature, args):
        return emit(builder, *args)


def _with_arity(typer, arity):
    """Numba reads a typer's arguments from its signature."""
    return {1: lambda a: typer(a), 2: lambda a, b: typer(a, b), 3: lambda a, b, c: typer(a, b, c)}[arity]


def _function(single, double):
    """A function that NVVM or its library knows, by its names for float32 and float64."""

    def emit(builder, *values):
        kind = values[0].type
        name = single if kind == ir.FloatType() else double
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * len(values)), name)
        return builder.call(function, values)

    return emit


def _smaller(sign):
    return lambda builder, a, b: builder.select(builder.fcmp_ordered(sign, a, b), a, b)


_define(words.fma, 3, _function("llvm.fma.f32", "llvm.fma.f64"))
_define(words.sqrt, 1, _function("llvm.sqrt.f32", "llvm.sqrt.f64"))
_define(words.magnitude, 1, _function("__nv_fabsf", "__nv_fabs"))  # NVVM has no llvm.fabs
_define(words.minimum, 2, _smaller("<"))
_define(words.maximum, 2, _smaller(">"))


@type_callable(words.select)
def _type_select(context):
    def typer(condition, if_true, if_false):
        return if_true if isinstance(condition, types.Boolean) and if_true == if_false else None

    return typer


@lower_builtin(words.select, types.Boolean, types.Any, types.Any)
def _lower_select(context, builder, signature, args):
    return builder.select(*args)


# ------------------------------------------------------------------------------------------------------- functions
inlined = register_jitable  # NVVM inlines every function of these kernels: `tests/test_cuda_kernels.py` finds no call

for _formula in _math.FORMULAS:
    inlined(_formula)


# ---------------------------------------------------------------------------------------------------------- memory
@intrinsic
def shifted(typing, pointer, distance):
    """A pointer moved by a number of bytes, counted in 64 bits."""

    def codegen(context, builder, signature, args):
        byte = ir.IntType(8).as_pointer()
        return builder.bitcast(builder.gep(builder.bitcast(args[0], byte), [args[1]]), args[0].type)

    return pointer(pointer, types.int64), codegen


@intrinsic
def load_wide(typing, pointer, index, registers, place):
    """``registers[place : place + 4] = pointer[index : index + 4]`` in one load (two elements of float64).

    The address must be a multiple of 16: the instruction takes it for one, and ends the context if it is none.
    """

    def codegen(context, builder, signature, args):
        source, target = _wide(builder, args[0], args[1]), _wide(builder, _data(context, builder, signature, args), args[3])
        builder.store(builder.load(source, align=LOAD), target, align=_alignment(pointer))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, registers, types.int64), codegen


@intrinsic
def store_wide(typing, pointer, index, registers, place):
    """``pointer[index : index + 4] = registers[place : place + 4]`` in one store; see `load_wide`."""

    def codegen(context, builder, signature, args):
        target, source = _wide(builder, args[0], args[1]), _wide(builder, _data(context, builder, signature, args), args[3])
        builder.store(builder.load(source, align=_alignment(pointer)), target, align=LOAD)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, registers, types.int64), codegen


def _wide(builder, pointer, index):
    """A pointer to all that one instruction moves, from element `index` on."""
    vector = ir.VectorType(pointer.type.pointee, LOAD // (4 if pointer.type.pointee == ir.FloatType() else 8))
    return builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())


def _data(context, builder, signature, args):
    return context.make_array(signature.args[2])(context, builder, value=args[2]).data


def _alignment(pointer):
    """Registers are those of a local array, which knows of no alignment but its elements'."""
    return pointer.dtype.bitwidth // 8


@intrinsic
def is_given(typing, pointer):
    """False for the null pointer, which stands for a weight or bias that there is not."""

    def codegen(context, builder, signature, args):
        return cgutils.is_not_null(builder, args[0])

    return types.boolean(pointer), codegen


@intrinsic
def place_of(typing, thread, threads, load, width):
    """``width * (thread + load * threads)`` in 32 bits, of which offsets within a tile need no more: a register for two."""

    def codegen(context, builder, signature, args):
        thread, threads, load, width = args
        return builder.mul(width, builder.add(thread, builder.mul(load, threads, flags=["nsw"]), flags=["nsw"]), flags=["nsw"])

    return types.int32(*[types.int32] * 4), codegen


@intrinsic
def quotient(typing, a, b):
    """``a // b`` of two integers of one type that are not negative."""

    def codegen(context, builder, signature, args):
        return builder.udiv(*args)

    return a(a, a), codegen


@intrinsic
def as_number(typing, integer, like):
    """An integer in the dtype of `like` (numba would make it a double)."""

    def codegen(context, builder, signature, args):
        return builder.sitofp(args[0], _FLOAT[like])

    return like(types.int64, like), codegen


# ------------------------------------------------------------------------------------------------------------ sums
@inlined
def sum_warp(value):
    """The sum over the lanes of a warp, the same bits in every lane: each step adds the same two numbers in both."""
    value += cuda.shfl_xor_sync(ALL, value, 1)
    value += cuda.shfl_xor_sync(ALL, value, 2)
    value += cuda.shfl_xor_sync(ALL, value, 4)
    value += cuda.shfl_xor_sync(ALL, value, 8)
    return value + cuda.shfl_xor_sync(ALL, value, 16)


@inlined
def leave_for_block(value, shared, at):
    """Each warp leaves the sum over its threads from ``shared[at]`` on. A barrier must follow."""
    value = sum_warp(value)
    if cuda.threadIdx.x % WARP == 0:
        shared[at + cuda.threadIdx.x // WARP] = value


@inlined
def sum_block(shared, at, zero):
    """The sum over the warps of what they left, the same bits in every thread. A barrier must precede the next use."""
    lane = cuda.threadIdx.x % WARP
    return sum_warp(shared[at + lane] if lane < cuda.blockDim.x // WARP else zero)


@inlined
def add_exactly(total, lost, value):
    """``total + value``, and what all such roundings lost together.

    A thread of a block of 1024 adds up 1024 pieces of a row of 2**24; in plain float32 a row of equal numbers would be
    off by hundreds of units in the last place.
    """
    new = total + value
    added = new - total
    return new, lost + ((total - (new - added)) + (value - added))
