"""A register of 64 lanes as a numba type, and the vocabulary's bodies for it and for single CPU numbers.

The 64 lanes are the 64 chains of the order of summation: LLVM splits ``<64 x float>`` into four registers of AVX-512, eight
of AVX2 or sixteen of NEON, so one text fills every processor and gives the same bits on all of them.

No fast-math flag is set anywhere: with them the compiler contracts and reorders differently from loop to loop.
"""

import itertools
import operator

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, lower_builtin, overload, register_jitable, register_model, type_callable

from .. import _math
from .. import _vocabulary as words
from .layout import LANES

_I32 = ir.IntType(32)


class Lanes(types.Type):
    """64 numbers of one accumulation dtype, computed with as one."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(f"Lanes({dtype})")


class Mask(types.Type):
    """64 truth values: what comparing `Lanes` gives."""

    def __init__(self):
        super().__init__("Mask")


mask_type = Mask()
_MASK = ir.VectorType(ir.IntType(1), LANES)
_FLOAT = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
SUFFIX = {types.int16: "i16", types.uint16: "i16", types.float32: "f32", types.float64: "f64"}


COMPUTED = {types.int16: types.float32, types.uint16: types.float32, types.float32: types.float32, types.float64: types.float64}
_STORED = {types.int16: ir.IntType(16), types.uint16: ir.IntType(16), **_FLOAT}


def vector_of(dtype):
    """64 numbers as they lie in memory."""
    return ir.VectorType(_STORED[dtype], LANES)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, vector_of(fe_type.dtype))


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, _MASK)


# ---------------------------------------------------------------------------------------------- building blocks
def _splat(builder, value, vector):
    one_lane = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _I32(0))
    everywhere = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one_lane, ir.Constant(vector, ir.Undefined), everywhere)


def _shuffle(builder, value, indices):
    return builder.shuffle_vector(
        value, ir.Constant(value.type, ir.Undefined), ir.Constant(ir.VectorType(_I32, len(indices)), indices)
    )


def call(builder, name, result, arguments):
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def first_mask(builder, count):
    """The mask of the first `count` lanes: one comparison of bytes."""
    byte = ir.IntType(8)
    numbers = ir.Constant(ir.VectorType(byte, LANES), list(range(LANES)))
    lanes = ir.Constant(count.type, LANES)
    count = builder.select(builder.icmp_signed("<", count, lanes), count, lanes)
    return builder.icmp_signed("<", numbers, _splat(builder, builder.trunc(count, byte), numbers.type))


# ---------------------------------------------------------------------------------- between lanes and numbers
@intrinsic
def splat(typing, value):
    """One number in all lanes."""

    def codegen(context, builder, signature, args):
        return _splat(builder, args[0], vector_of(value))

    return Lanes(value)(value), codegen


@intrinsic
def as_number(typing, integer, like):
    """An integer in the dtype of `like` (numba would make it a double)."""

    def codegen(context, builder, signature, args):
        return builder.sitofp(args[0], _FLOAT[like])

    return like(types.intp, like), codegen


@intrinsic
def converted(typing, value, like):
    """Lanes or a number in the dtype of `like`."""
    source = value.dtype if isinstance(value, Lanes) else value
    goal = getattr(like, "dtype", like)
    result = Lanes(goal) if isinstance(value, Lanes) else goal

    def codegen(context, builder, signature, args):
        kind = context.get_value_type(result)
        if source == goal:
            return args[0]
        return (builder.fptrunc if goal == types.float32 else builder.fpext)(args[0], kind)

    return result(value, like), codegen


@intrinsic
def lane_numbers(typing, like):
    """0 to 63, in the dtype of `like`."""

    def codegen(context, builder, signature, args):
        return ir.Constant(vector_of(like), [float(i) for i in range(LANES)])

    return Lanes(like)(like), codegen


def _tree(join):
    """Instructions that join 64 lanes to one number: lane i with i + 32, then with i + 16, ... i + 1."""

    def codegen(context, builder, signature, args):
        value, width = args[0], LANES
        while width > 1:
            width //= 2
            low = _shuffle(builder, value, list(range(width)))
            high = _shuffle(builder, value, list(range(width, 2 * width)))
            value = join(builder, low, high)
        return builder.extract_element(value, _I32(0))

    return codegen


@intrinsic
def sum_lanes(typing, value):
    """The chains joined in one fixed tree: lane i with i + 32, then with i + 16, ... i + 1."""
    return value.dtype(value), _tree(lambda builder, low, high: builder.fadd(low, high))


@intrinsic
def largest_lane(typing, value):
    """The largest of 64 numbers; NaN does not count."""
    return value.dtype(value), _tree(lambda builder, low, high: _smaller(">")(builder, "", low, high))


@intrinsic
def first_lanes(typing, count):
    """True in the first `count` lanes."""

    def codegen(context, builder, signature, args):
        return first_mask(builder, args[0])

    return mask_type(types.intp), codegen


@intrinsic
def any_lane(typing, mask):
    """True if one of the lanes is."""

    def codegen(context, builder, signature, args):
        packed = builder.bitcast(args[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", packed, ir.IntType(LANES)(0))

    return types.boolean(mask), codegen


# ----------------------------------------------------------------- operators and words on lanes and on numbers
# Typed and lowered directly: a numba `overload` of each would compile a function for each (0.5 s a kernel).
def _define(function, arity, emit, result=None, numbers=False):
    """Give `function` a body for lanes, mixed with numbers or not, and for numbers alone if `numbers`.

    `emit(builder, suffix, *values)` writes the instructions, on vectors or on numbers.
    """

    @type_callable(function)
    def typing(context):
        def typer(*kinds):
            dtypes = {k.dtype if isinstance(k, Lanes) else k for k in kinds}
            dtype = dtypes.pop()
            if dtypes or dtype not in _FLOAT:
                return None
            if any(isinstance(k, Lanes) for k in kinds):
                return result or Lanes(dtype)
            return dtype if numbers else None

        return _with_arity(typer, arity)

    def lowering(context, builder, signature, args):
        kinds = signature.args
        lanes = [k for k in kinds if isinstance(k, Lanes)]
        dtype = lanes[0].dtype if lanes else kinds[0]
        if lanes:
            args = [
                a if isinstance(k, Lanes) else _splat(builder, a, vector_of(dtype)) for a, k in zip(args, kinds, strict=True)
            ]
        return emit(builder, SUFFIX[dtype], *args)

    for kinds in itertools.product((Lanes, types.Float), repeat=arity):
        if numbers or Lanes in kinds:
            lower_builtin(function, *kinds)(lowering)


def _with_arity(typer, arity):
    """Numba reads a typer's arguments from its signature."""
    return {1: lambda a: typer(a), 2: lambda a, b: typer(a, b), 3: lambda a, b, c: typer(a, b, c)}[arity]


def _llvm(name):
    """The LLVM intrinsic `name`, on vectors or numbers."""

    def emit(builder, suffix, *values):
        kind = values[0].type
        vector = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        return call(builder, f"llvm.{name}.{vector}{suffix}", kind, values)

    return emit


def _smaller(sign):
    return lambda builder, suffix, a, b: builder.select(builder.fcmp_ordered(sign, a, b), a, b)


def _instruction(name):
    return lambda builder, suffix, a, b: getattr(builder, name)(a, b)


def _two_to(builder, suffix, shifted):
    """Move the lowest bits up to where the exponent is."""
    digits, bias = (23, 127) if suffix == "f32" else (52, 1023)
    integer = ir.IntType(32 if suffix == "f32" else 64)
    kind = ir.VectorType(integer, shifted.type.count) if isinstance(shifted.type, ir.VectorType) else integer
    constant = lambda n: ir.Constant(kind, [n] * kind.count if kind is not integer else n)  # noqa: E731
    exponent = builder.add(builder.bitcast(shifted, kind), constant(bias))
    return builder.bitcast(builder.shl(exponent, constant(digits)), shifted.type)


def _comparison(sign):
    """As in Python, NaN is different from everything, and neither less nor more."""
    name = "fcmp_unordered" if sign == "!=" else "fcmp_ordered"
    return lambda builder, suffix, a, b: getattr(builder, name)(sign, a, b)


_define(words.fma, 3, _llvm("fma"), numbers=True)
_define(words.sqrt, 1, _llvm("sqrt"), numbers=True)
_define(words.magnitude, 1, _llvm("fabs"), numbers=True)
_define(words.two_to, 1, _two_to, numbers=True)
_define(words.logarithm, 1, _llvm("log"), numbers=True)
_define(words.minimum, 2, _smaller("<"), numbers=True)
_define(words.maximum, 2, _smaller(">"), numbers=True)
_define(operator.add, 2, _instruction("fadd"))
_define(operator.sub, 2, _instruction("fsub"))
_define(operator.mul, 2, _instruction("fmul"))
_define(operator.truediv, 2, _instruction("fdiv"))
for _operator, _sign in [
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
    (operator.ne, "!="),
]:
    _define(_operator, 2, _comparison(_sign), result=mask_type)


@type_callable(words.polynomial)
def _type_polynomial(context):
    def typer(x, coefficients):
        kind = x.dtype if isinstance(x, Lanes) else x
        return x if isinstance(coefficients, types.UniTuple) and coefficients.dtype == kind else None

    return typer


@lower_builtin(words.polynomial, types.Any, types.UniTuple)
def _lower_polynomial(context, builder, signature, args):
    kind, fma = signature.return_type, _llvm("fma")
    x, coefficients = args
    values = [builder.extract_value(coefficients, i) for i in range(signature.args[1].count)]
    if isinstance(kind, Lanes):
        values = [_splat(builder, v, x.type) for v in values]
    result = values.pop()
    while values:
        result = fma(builder, SUFFIX[getattr(kind, "dtype", kind)], result, x, values.pop())
    return result


def _define_logic(function, instruction):
    """Give `&` or `|` a body for masks, mixed with truth values or not."""

    @type_callable(function)
    def typing(context):
        def typer(a, b):
            if isinstance(a, Mask | types.Boolean) and isinstance(b, Mask | types.Boolean) and mask_type in (a, b):
                return mask_type
            return None

        return typer

    def lowering(context, builder, signature, args):
        return getattr(builder, instruction)(*[_as_mask(builder, a, k) for a, k in zip(args, signature.args, strict=True)])

    for kinds in [(Mask, Mask), (Mask, types.Boolean), (types.Boolean, Mask)]:
        lower_builtin(function, *kinds)(lowering)


_define_logic(operator.and_, "and_")
_define_logic(operator.or_, "or_")


def _as_mask(builder, value, kind):
    return value if isinstance(kind, Mask) else _splat(builder, value, _MASK)


@type_callable(words.select)
def _type_select(context):
    def typer(condition, if_true, if_false):
        dtypes = {k.dtype if isinstance(k, Lanes) else k for k in (if_true, if_false)}
        dtype = dtypes.pop()
        if dtypes or not isinstance(condition, Mask | types.Boolean):
            return None
        lanes = any(isinstance(k, Mask | Lanes) for k in (condition, if_true, if_false))
        return Lanes(dtype) if lanes else dtype

    return typer


@lower_builtin(words.select, Mask, types.Any, types.Any)
@lower_builtin(words.select, types.Boolean, types.Any, types.Any)
def _lower_select(context, builder, signature, args):
    kinds, result = signature.args, signature.return_type
    values = args[1:]
    if isinstance(result, Lanes):
        values = [
            v if isinstance(k, Lanes) else _splat(builder, v, vector_of(result.dtype))
            for v, k in zip(values, kinds[1:], strict=True)
        ]
    return builder.select(args[0], *values)


# --------------------------------------------------------------------------------------- functions for kernels
def inlined(function):
    """Let kernels call `function`. As in the formulas, ``x / 0`` is inf in it, not an exception."""
    return register_jitable(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def either(is_this, this, other):
    """A function for kernels: `this` where ``is_this(type)`` is true of one of its arguments, else `other`."""

    def function(*arguments):
        raise NotImplementedError("for kernels only")

    @overload(function, jit_options={"error_model": "numpy"}, strict=False)
    def choose(*arguments):
        return this if any(map(is_this, arguments)) else other

    described = this if this.__doc__ else other
    function.__name__, function.__doc__ = described.__name__.strip("_"), described.__doc__
    return function


for _formula in _math.FORMULAS:
    inlined(_formula)
