"""16-bit floats in memory, float32 in registers: conversions of 64 lanes or of one number, rounded to nearest, NaN kept.

float16 travels as int16 and bfloat16 as uint16. bfloat16 is the upper half of a float32. For float16 the processor has
instructions (F16C on x86, every 64-bit ARM); without them LLVM's own conversion ends the process, so integers do it.
"""

from llvmlite import ir
from numba.core import cgutils, types

from .._compile import IS_X86, processor_features

HALVES = (types.int16, types.uint16)
_HALF, _I1, _I16, _I32, _F32 = ir.HalfType(), ir.IntType(1), ir.IntType(16), ir.IntType(32), ir.FloatType()


class _Bfloat(ir.Type):
    """LLVM's own type, as an instruction gives it: llvmlite has no name for it."""

    def _to_string(self):
        return "bfloat"


def has_instructions():
    """True if LLVM may convert float16 on this processor."""
    return not IS_X86 or "+f16c" in processor_features()


def widen(builder, dtype, raw):
    """The float32 value of what was loaded from a pointer to `dtype`."""
    if dtype == types.uint16:
        return _as_float(builder, builder.shl(_to_i32(builder, raw), _constant(raw, 16)))
    if has_instructions():
        return builder.fpext(builder.bitcast(raw, _like(raw, _HALF)), _like(raw, _F32))
    return _widen_by_integers(builder, raw)


def narrow(builder, dtype, value):
    """A float32 value as a pointer to `dtype` takes it."""
    if dtype == types.uint16:
        if "+avx512bf16" in processor_features() and isinstance(value.type, ir.VectorType):
            return _narrow_bfloat_by_instruction(builder, value)
        return _narrow_bfloat(builder, value)
    if has_instructions():
        if IS_X86 and isinstance(value.type, ir.VectorType):
            return _narrow_by_instruction(builder, value)
        return builder.bitcast(builder.fptrunc(value, _like(value, _HALF)), _like(value, _I16))
    return _narrow_by_integers(builder, value)


def _narrow_by_instruction(builder, value):
    """What LLVM would choose for `fptrunc`, named: a store of its half type it splits into ordinary ones, streamed or not."""
    width, name = 8, "llvm.x86.vcvtps2ph.256"
    if "+avx512f" in processor_features():
        width, name = 16, "llvm.x86.avx512.mask.vcvtps2ph.512"
    parts = []
    for first in range(0, value.type.count, width):
        part = _lanes(builder, value, range(first, first + width))
        arguments = [part, _I32(0)]  # to nearest, halfway to even
        if width == 16:
            arguments += [ir.Constant(ir.VectorType(_I16, width), None), _I16(0xFFFF)]
        result = ir.VectorType(_I16, 8 if width == 8 else 16)
        kind = ir.FunctionType(result, [a.type for a in arguments])
        parts.append(builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments))
    return _all_joined(builder, parts)


def _lanes(builder, value, numbers):
    """Some lanes of a vector."""
    indices = ir.Constant(ir.VectorType(_I32, len(numbers)), list(numbers))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), indices)


def _all_joined(builder, parts):
    """Neighbouring parts as one vector."""
    while len(parts) > 1:
        parts = [_joined(builder, *pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _joined(builder, a, b):
    """Two vectors as one."""
    count = 2 * a.type.count
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, count), list(range(count))))


def _narrow_bfloat_by_instruction(builder, value):
    """One instruction for 32 lanes, where `_narrow_bfloat` takes nine for 16. It makes subnormals zeros: they go that way."""
    parts = [_lanes(builder, value, range(first, first + 16)) for first in range(0, value.type.count, 16)]
    flags = ir.VectorType(_I1, 16)
    classify = ir.FunctionType(flags, [parts[0].type, _I32])
    classify = cgutils.get_or_insert_function(builder.module, classify, "llvm.x86.avx512.fpclass.ps.512")
    subnormal = [builder.call(classify, [part, _I32(0x20)]) for part in parts]
    subnormal = builder.bitcast(_all_joined(builder, subnormal), ir.IntType(value.type.count))
    with builder.if_else(builder.icmp_unsigned("!=", subnormal, subnormal.type(0)), likely=False) as (rare, usual):
        with rare:
            by_integers = _narrow_bfloat(builder, value)
            rare_block = builder.block
        with usual:
            convert = ir.FunctionType(ir.VectorType(_Bfloat(), 32), [parts[0].type, parts[0].type])
            convert = cgutils.get_or_insert_function(builder.module, convert, "llvm.x86.avx512bf16.cvtne2ps2bf16.512")
            pairs = [builder.call(convert, [high, low]) for low, high in zip(parts[::2], parts[1::2], strict=True)]
            by_instruction = _all_joined(builder, [builder.bitcast(pair, ir.VectorType(_I16, 32)) for pair in pairs])
            usual_block = builder.block
    result = builder.phi(by_integers.type)
    result.add_incoming(by_integers, rare_block)
    result.add_incoming(by_instruction, usual_block)
    return result


def _narrow_bfloat(builder, value):
    bits = builder.bitcast(value, _like(value, _I32))
    odd = builder.and_(builder.lshr(bits, _constant(value, 16)), _constant(value, 1))
    rounded = builder.add(builder.add(bits, _constant(value, 0x7FFF)), odd)  # halfway goes to even
    quiet = builder.or_(bits, _constant(value, 0x400000))  # a NaN must not be rounded up to infinity
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _constant(value, 16)), _like(value, _I16))


def _widen_by_integers(builder, raw):
    bits = _to_i32(builder, raw)
    sign = builder.shl(builder.and_(bits, _constant(raw, 0x8000)), _constant(raw, 16))
    magnitude = builder.shl(builder.and_(bits, _constant(raw, 0x7FFF)), _constant(raw, 13))
    scaled = builder.fmul(_as_float(builder, magnitude), _number(raw, 2.0**112))  # exact, for subnormals too
    special = builder.fcmp_ordered(">=", scaled, _number(raw, 65536.0))
    scaled_bits = builder.bitcast(scaled, _like(raw, _I32))
    scaled_bits = builder.select(special, builder.or_(scaled_bits, _constant(raw, 0x7F800000)), scaled_bits)
    return _as_float(builder, builder.or_(scaled_bits, sign))


def _narrow_by_integers(builder, value):
    bits = builder.bitcast(value, _like(value, _I32))
    sign = builder.and_(builder.lshr(bits, _constant(value, 16)), _constant(value, 0x8000))
    bits = builder.and_(bits, _constant(value, 0x7FFFFFFF))
    # Normal: move the exponent, round half to even on the 13 bits that go.
    odd = builder.and_(builder.lshr(bits, _constant(value, 13)), _constant(value, 1))
    moved = builder.add(builder.add(bits, _constant(value, 0xFFF - (112 << 23))), odd)
    normal = builder.lshr(moved, _constant(value, 13))
    # Subnormal: adding 0.5 makes the processor round at the right place.
    added = builder.fadd(_as_float(builder, bits), _number(value, 0.5))
    subnormal = builder.sub(builder.bitcast(added, _like(value, _I32)), _constant(value, 0x3F000000))
    nan = builder.icmp_unsigned(">", bits, _constant(value, 0x7F800000))
    special = builder.select(nan, _constant(value, 0x7E00), _constant(value, 0x7C00))
    small = builder.icmp_unsigned("<", bits, _constant(value, 113 << 23))
    large = builder.icmp_unsigned(">=", bits, _constant(value, 143 << 23))
    result = builder.select(large, special, builder.select(small, subnormal, normal))
    return builder.trunc(builder.or_(result, sign), _like(value, _I16))


def _like(value, element):
    """`element`, as many as `value` has."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _constant(value, number):
    kind = _like(value, _I32)
    return (
        ir.Constant(kind, [number & 0xFFFFFFFF] * kind.count) if isinstance(kind, ir.VectorType) else ir.Constant(kind, number)
    )


def _number(value, number):
    kind = _like(value, _F32)
    return ir.Constant(kind, [number] * kind.count) if isinstance(kind, ir.VectorType) else ir.Constant(kind, number)


def _to_i32(builder, raw):
    return builder.zext(raw, _like(raw, _I32))


def _as_float(builder, bits):
    return builder.bitcast(bits, _like(bits, _F32))
