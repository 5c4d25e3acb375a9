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
from .launch import LOAD, WARP

ALL = 0xFFFFFFFF  # every lane of a warp takes part
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

    def lowering(context, builder, signature, args):
        return emit(builder, *args)

    # For each dtype by itself: numba-cuda also sees what the CPU's words are for any float, and takes what is more precise.
    for kind in _FLOAT:
        lower_builtin(word, *[kind] * arity)(lowering)


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
_define(words.logarithm, 1, _function("__nv_logf", "__nv_log"))


def _two_to(builder, shifted):
    """Move the lowest bits up to where the exponent is."""
    single = shifted.type == ir.FloatType()
    integer, digits, bias = (ir.IntType(32), 23, 127) if single else (ir.IntType(64), 52, 1023)
    exponent = builder.add(builder.bitcast(shifted, integer), integer(bias))
    return builder.bitcast(builder.shl(exponent, integer(digits)), shifted.type)


_define(words.two_to, 1, _two_to)


@type_callable(words.polynomial)
def _type_polynomial(context):
    def typer(x, coefficients):
        return x if isinstance(coefficients, types.UniTuple) and coefficients.dtype == x else None

    return typer


@lower_builtin(words.polynomial, types.Float, types.UniTuple)
def _lower_polynomial(context, builder, signature, args):
    x, coefficients = args
    values = [builder.extract_value(coefficients, i) for i in range(signature.args[1].count)]
    fma = _function("llvm.fma.f32", "llvm.fma.f64")
    result = values.pop()
    while values:
        result = fma(builder, result, x, values.pop())
    return result


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
def pointer_as(typing, pointer, dtype):
    """The same address as that of numbers of another dtype."""
    kind = types.CPointer(dtype.dtype)

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(kind))

    return kind(pointer, dtype), codegen


COMPUTED = {types.int16: types.float32, types.uint16: types.float32, types.float32: types.float32, types.float64: types.float64}
_I16, _I32 = ir.IntType(16), ir.IntType(32)


def widen(builder, dtype, raw):
    """What was loaded from a pointer to `dtype`, in the dtype of the computation; 16-bit floats as in `_cpu/half.py`."""
    if dtype == types.int16:
        return builder.fpext(builder.bitcast(raw, ir.HalfType()), ir.FloatType())
    if dtype == types.uint16:
        return builder.bitcast(builder.shl(builder.zext(raw, _I32), _I32(16)), ir.FloatType())
    return raw


def _narrow(builder, dtype, value):
    """A number as a pointer to `dtype` takes it, rounded to nearest."""
    if dtype == types.int16:
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), _I16)
    if dtype == types.uint16:
        bits = builder.bitcast(value, _I32)
        odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        rounded = builder.add(builder.add(bits, _I32(0x7FFF)), odd)
        quiet = builder.or_(bits, _I32(0x400000))  # a NaN must not be rounded up to infinity
        chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
        return builder.trunc(builder.lshr(chosen, _I32(16)), _I16)
    return value


@intrinsic
def get(typing, pointer, index):
    """An element, in the dtype of the computation."""

    def codegen(context, builder, signature, args):
        return widen(builder, pointer.dtype, builder.load(builder.gep(args[0], [args[1]])))

    return COMPUTED[pointer.dtype](pointer, types.int64), codegen


@intrinsic
def put(typing, pointer, index, value):
    """Store an element."""

    def codegen(context, builder, signature, args):
        builder.store(_narrow(builder, pointer.dtype, args[2]), builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, COMPUTED[pointer.dtype]), codegen


@intrinsic
def load_wide(typing, pointer, index, registers, place):
    """``registers[place : place + 4] = pointer[index : index + 4]`` in one load: two elements of float64, eight of 16 bits.

    The address must be a multiple of 16: the instruction takes it for one, and ends the context if it is none.
    """

    def codegen(context, builder, signature, args):
        vector = _wide(pointer)
        raw = builder.load(builder.bitcast(builder.gep(args[0], [args[1]]), vector.as_pointer()), align=LOAD)
        target = builder.gep(_data(context, builder, signature, args), [args[3]])
        if COMPUTED[pointer.dtype] == pointer.dtype:
            builder.store(raw, builder.bitcast(target, vector.as_pointer()), align=_alignment(pointer))
        else:
            for i in range(2 * vector.count):
                half = builder.lshr(builder.extract_element(raw, _I32(i // 2)), _I32(16 * (i % 2)))
                value = widen(builder, pointer.dtype, builder.trunc(half, _I16))
                builder.store(value, builder.gep(target, [_I32(i)]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, registers, types.int64), codegen


@intrinsic
def store_wide(typing, pointer, index, registers, place):
    """``pointer[index : index + 4] = registers[place : place + 4]`` in one store; see `load_wide`."""

    def codegen(context, builder, signature, args):
        vector = _wide(pointer)
        source = builder.gep(_data(context, builder, signature, args), [args[3]])
        if COMPUTED[pointer.dtype] == pointer.dtype:
            raw = builder.load(builder.bitcast(source, vector.as_pointer()), align=_alignment(pointer))
        else:
            raw = ir.Constant(vector, ir.Undefined)
            for i in range(vector.count):
                low, high = (
                    builder.zext(_narrow(builder, pointer.dtype, builder.load(builder.gep(source, [_I32(2 * i + j)]))), _I32)
                    for j in (0, 1)
                )
                raw = builder.insert_element(raw, builder.or_(low, builder.shl(high, _I32(16))), _I32(i))
        builder.store(raw, builder.bitcast(builder.gep(args[0], [args[1]]), vector.as_pointer()), align=LOAD)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, registers, types.int64), codegen


@intrinsic
def rounded(typing, pointer, value):
    """A number as it would come back from where `pointer` points."""

    def codegen(context, builder, signature, args):
        return widen(builder, pointer.dtype, _narrow(builder, pointer.dtype, args[1]))

    return value(pointer, value), codegen


def _wide(pointer):
    """All that one instruction moves. Two 16-bit numbers count as one of 32: a vector of eight would be moved in halves."""
    return ir.VectorType(_FLOAT.get(pointer.dtype, _I32), LOAD * 8 // max(pointer.dtype.bitwidth, 32))


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
# A row is the work of a team: of a block, or of a warp, where several rows share a block of (32, rows) threads. Either way
# `threadIdx.x` counts the threads of a team, and `blockDim.x` is how many they are.
@inlined
def _wait_for_block():
    cuda.syncthreads()


@inlined
def _wait_for_warp():
    cuda.syncwarp()


def barrier(warp):
    """The function that waits for all threads of a team: a warp, or a block."""
    return _wait_for_warp if warp else _wait_for_block


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
