"""Memory as kernels see it: plain pointers, since indexing an array would test for negative indices and count references.

Everything here is one instruction or a few: loads and stores of 64 lanes, whole or masked, streamed or not.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .._compile import IS_X86
from .half import HALVES, narrow, widen
from .simd import COMPUTED, LANES, SUFFIX, Lanes, call, first_mask, mask_type, vector_of

_I32 = ir.IntType(32)


def _at(builder, pointer, index, pointee):
    return builder.bitcast(builder.gep(pointer, [index]), pointee.as_pointer())


def _itemsize(pointer):
    return pointer.dtype.bitwidth // 8


@intrinsic
def pointer_to(typing, array):
    """The address of the first element of an array."""

    def codegen(context, builder, signature, args):
        return context.make_array(array)(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def shifted(typing, pointer, distance):
    """A pointer moved by a number of bytes: to another row, or to an element of any stride."""

    def codegen(context, builder, signature, args):
        byte = ir.IntType(8).as_pointer()
        moved = builder.gep(builder.bitcast(args[0], byte), [args[1]])
        return builder.bitcast(moved, args[0].type)

    return pointer(pointer, types.intp), codegen


@intrinsic
def address(typing, pointer):
    """A pointer as an integer."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(args[0], context.get_value_type(types.intp))

    return types.intp(pointer), codegen


@intrinsic
def itemsize(typing, pointer):
    """The bytes of what a pointer points to."""

    def codegen(context, builder, signature, args):
        return context.get_constant(types.intp, _itemsize(pointer))

    return types.intp(pointer), codegen


def _widen(builder, pointer, raw):
    return widen(builder, pointer.dtype, raw) if pointer.dtype in HALVES else raw


def _narrow(builder, pointer, value):
    return narrow(builder, pointer.dtype, value) if pointer.dtype in HALVES else value


def _lanes(pointer):
    return Lanes(COMPUTED[pointer.dtype])


@intrinsic
def get(typing, pointer):
    """One number, in the dtype of the computation."""

    def codegen(context, builder, signature, args):
        return _widen(builder, pointer, builder.load(args[0]))

    return COMPUTED[pointer.dtype](pointer), codegen


@intrinsic
def put(typing, pointer, value):
    """Store one number."""

    def codegen(context, builder, signature, args):
        builder.store(_narrow(builder, pointer, args[1]), args[0])
        return context.get_dummy_value()

    return types.void(pointer, COMPUTED[pointer.dtype]), codegen


@intrinsic
def rounded(typing, pointer, value):
    """A value as it would come back from where `pointer` points."""

    def codegen(context, builder, signature, args):
        return _widen(builder, pointer, _narrow(builder, pointer, args[1]))

    return value(pointer, value), codegen


@intrinsic
def load(typing, pointer, index):
    """64 neighbours, of any alignment."""

    def codegen(context, builder, signature, args):
        raw = builder.load(_at(builder, *args, vector_of(pointer.dtype)))
        raw.align = _itemsize(pointer)
        return _widen(builder, pointer, raw)

    return _lanes(pointer)(pointer, types.intp), codegen


@intrinsic
def load_first(typing, pointer, index, count):
    """The first `count` lanes; the others are 0, and their memory is not touched."""

    def codegen(context, builder, signature, args):
        vector = vector_of(pointer.dtype)
        place = _at(builder, args[0], args[1], vector)
        name = f"llvm.masked.load.v{LANES}{SUFFIX[pointer.dtype]}.p0"
        arguments = [place, _I32(_itemsize(pointer)), first_mask(builder, args[2]), ir.Constant(vector, None)]
        return _widen(builder, pointer, call(builder, name, vector, arguments))

    return _lanes(pointer)(pointer, types.intp, types.intp), codegen


@intrinsic
def store(typing, pointer, index, value):
    """64 neighbours, of any alignment."""

    def codegen(context, builder, signature, args):
        raw = _narrow(builder, pointer, args[2])
        builder.store(raw, _at(builder, args[0], args[1], raw.type)).align = _itemsize(pointer)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, _lanes(pointer)), codegen


@intrinsic
def store_first(typing, pointer, index, count, value):
    """The first `count` lanes; no other memory is touched."""

    def codegen(context, builder, signature, args):
        raw = _narrow(builder, pointer, args[3])
        place = _at(builder, args[0], args[1], raw.type)
        name = f"llvm.masked.store.v{LANES}{SUFFIX[pointer.dtype]}.p0"
        call(builder, name, ir.VoidType(), [raw, place, _I32(_itemsize(pointer)), first_mask(builder, args[2])])
        return context.get_dummy_value()

    return types.void(pointer, types.intp, types.intp, _lanes(pointer)), codegen


@intrinsic
def stream(typing, pointer, index, value):
    """`store` past the caches; the address must be a multiple of 64 bytes, and a `fence` must follow some time."""

    def codegen(context, builder, signature, args):
        raw = _narrow(builder, pointer, args[2])
        instruction = builder.store(raw, _at(builder, args[0], args[1], raw.type))
        instruction.align = 64
        instruction.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, _lanes(pointer)), codegen


def _copy_line(builder, target, source, align):
    line = ir.VectorType(ir.IntType(64), 8).as_pointer()
    value = builder.load(builder.bitcast(source, line))
    value.align = 2
    instruction = builder.store(value, builder.bitcast(target, line))
    instruction.align = align
    return instruction


@intrinsic
def copy_line(typing, pointer, source):
    """Copy 64 bytes as they are."""

    def codegen(context, builder, signature, args):
        _copy_line(builder, *args, 2)
        return context.get_dummy_value()

    return types.void(pointer, pointer), codegen


@intrinsic
def stream_line(typing, pointer, source):
    """Copy one line of 64 bytes past the caches; `pointer` must be a multiple of 64."""

    def codegen(context, builder, signature, args):
        instruction = _copy_line(builder, *args, 64)
        instruction.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
        return context.get_dummy_value()

    return types.void(pointer, pointer), codegen


@intrinsic
def prefetch(typing, pointer, index):
    """Ask for 64 neighbours, into the second cache; a hint that touches nothing, so it may point past the array."""

    def codegen(context, builder, signature, args):
        start = _at(builder, *args, ir.IntType(8))
        for line in range(0, LANES * _itemsize(pointer), 64):
            place = builder.gep(start, [_I32(line)])
            call(builder, "llvm.prefetch.p0", ir.VoidType(), [place, _I32(0), _I32(2), _I32(1)])  # to read, level 2, data
        return context.get_dummy_value()

    return types.void(pointer, types.intp), codegen


@intrinsic
def fence(typing):
    """Make streamed stores visible before whatever this thread stores next (other processors than x86 stream in order)."""

    def codegen(context, builder, signature, args):
        if IS_X86:
            call(builder, "llvm.x86.sse.sfence", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def pointer_as(typing, pointer, dtype):
    """The same address as that of numbers of another dtype."""
    kind = types.CPointer(dtype.dtype)

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(kind))

    return kind(pointer, dtype), codegen


@intrinsic
def load_truths(typing, pointer, index):
    """64 neighbouring bytes as truth values."""

    def codegen(context, builder, signature, args):
        bytes_ = ir.VectorType(ir.IntType(8), LANES)
        raw = builder.load(_at(builder, *args, bytes_))
        raw.align = 1
        return builder.icmp_unsigned("!=", raw, ir.Constant(bytes_, None))

    return mask_type(pointer, types.intp), codegen


@intrinsic
def stack_of(typing, example, size):
    """Room on the stack for `size` (a literal) values of the type of `example`, as a pointer."""
    if not isinstance(size, types.IntegerLiteral):
        return None

    def codegen(context, builder, signature, args):
        return cgutils.alloca_once(builder, context.get_data_type(example), size=size.literal_value)

    return types.CPointer(example)(example, size), codegen


@intrinsic
def stack_like(typing, pointer, size):
    """Room on the stack for `size` (a literal) elements as they lie where `pointer` points."""
    if not isinstance(size, types.IntegerLiteral):
        return None

    def codegen(context, builder, signature, args):
        return cgutils.alloca_once(builder, context.get_data_type(pointer.dtype), size=size.literal_value)

    return pointer(pointer, size), codegen
