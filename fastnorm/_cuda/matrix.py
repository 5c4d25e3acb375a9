"""What tensor cores do, as functions: a warp multiplies tiles of 16-bit floats and adds them up in float32.

Instructions of compute capability 8.0, which newer devices run too. A warp holds a tile of 16 x 16 in four registers a lane
(of 16 x 8 in two), sums of 16 x 8 in four floats a lane; how, the comments of `attend_matrix` say.
"""

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from .block import LOAD, widen

_FLOAT, _I8, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_NAMES = {"int16": "f16", "uint16": "bf16"}


def _element(context, builder, kind, array, index):
    """The address of an element of an array."""
    return builder.gep(context.make_array(kind)(context, builder, value=array).data, [index])


@intrinsic
def in_shared(typing, array, index):
    """The address of an element of shared memory, as the instructions want it: in 32 bits.

    Constant distances are then part of the instructions: in 64 bits, each would take a register throughout.
    """

    def codegen(context, builder, signature, args):
        address = builder.bitcast(_element(context, builder, signature.args[0], args[0], args[1]), _I8.as_pointer())
        return builder.ptrtoint(builder.addrspacecast(address, _I8.as_pointer(3)), _I32)

    return types.uint32(array, types.int64), codegen


def _assembly(builder, text, constraints, results, values, side_effect=False):
    """Write an instruction; what it gives, as a list."""
    count = len(results)
    kind = ir.LiteralStructType(results) if count > 1 else results[0] if count else ir.VoidType()
    code = ir.InlineAsm(ir.FunctionType(kind, [v.type for v in values]), text, constraints, side_effect=side_effect)
    given = builder.call(code, values)
    return [builder.extract_value(given, i) for i in range(count)] if count > 1 else [given]


@intrinsic
def start_copy(typing, address, pointer, distance, size):
    """Let 16 bytes come to shared memory, from so many bytes behind a pointer; the last ``16 - size`` of them zeros."""

    def codegen(context, builder, signature, args):
        source = builder.add(builder.ptrtoint(args[1], _I64), args[2])
        text = "{ .reg .u64 g; cvta.to.global.u64 g, $1; cp.async.cg.shared.global [$0], [g], 16, $2; }"
        _assembly(builder, text, "r,l,r,~{memory}", [], [args[0], source, args[3]], side_effect=True)
        return context.get_dummy_value()

    return types.void(types.uint32, pointer, types.int64, types.int32), codegen


def _order(text):
    @intrinsic
    def order(typing):
        def codegen(context, builder, signature, args):
            _assembly(builder, text, "~{memory}", [], [], side_effect=True)
            return context.get_dummy_value()

        return types.void(), codegen

    return order


end_copies = _order("cp.async.commit_group;")  # of those that are waited for together
wait_for_copies = _order("cp.async.wait_group 0;")  # of this thread; a barrier must follow


def _loader(across):
    text = f"ldmatrix.sync.aligned.m8n8.x4{across}.shared.b16 {{$0,$1,$2,$3}}, [$4];"

    @intrinsic
    def load_matrices(typing, address, distance, registers, place):
        """Four registers of four 8 x 8 matrices, whose rows are so many bytes from a lane's address, eight lanes a matrix."""

        def codegen(context, builder, signature, args):
            source = builder.add(args[0], builder.trunc(args[1], _I32))
            loaded = _assembly(builder, text, "=r,=r,=r,=r,r,~{memory}", [_I32] * 4, [source], side_effect=True)
            for i, register in enumerate(loaded):
                at = builder.add(args[3], args[3].type(i))
                builder.store(register, _element(context, builder, signature.args[2], args[2], at))
            return context.get_dummy_value()

        return types.void(types.uint32, types.int64, registers, types.int64), codegen

    return load_matrices


load_matrices = _loader("")
load_transposed = _loader(".trans")


def multiplier(dtype):
    """The function that adds a product of two tiles of a dtype to sums."""
    name = _NAMES[dtype]
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )

    @intrinsic
    def multiply(typing, a, a_place, b, b_place, sums, place):
        """``sums[place : place + 4] += a[a_place : a_place + 4] @ b[b_place : b_place + 2]``, as tiles."""

        def codegen(context, builder, signature, args):
            def elements(which, count):
                array, index = args[2 * which], args[2 * which + 1]
                places = [builder.add(index, index.type(i)) for i in range(count)]
                return [_element(context, builder, signature.args[2 * which], array, at) for at in places]

            targets = elements(2, 4)
            values = [builder.load(at) for at in (*elements(0, 4), *elements(1, 2), *targets)]
            constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
            results = _assembly(builder, text, constraints, [_FLOAT] * 4, values, side_effect=True)  # stays out of branches
            for result, at in zip(results, targets, strict=True):
                builder.store(result, at)
            return context.get_dummy_value()

        return types.void(a, types.int64, b, types.int64, sums, types.int64), codegen

    return multiply


def packer(dtype):
    """The function that rounds two numbers to a dtype and puts them in a register, the first in its lower half."""
    text = f"cvt.rn.{_NAMES[dtype]}x2.f32 $0, $1, $2;"

    @intrinsic
    def pack(typing, low, high):
        def codegen(context, builder, signature, args):
            return _assembly(builder, text, "=r,f,f", [_I32], [args[1], args[0]])[0]

        return types.uint32(types.float32, types.float32), codegen

    return pack


def unpacker(dtype):
    """The function that gives number 0 or 1 of the two in a register."""
    kind = getattr(types, dtype)

    @intrinsic
    def unpack(typing, register, number):
        def codegen(context, builder, signature, args):
            bits = builder.lshr(args[0], builder.mul(builder.trunc(args[1], _I32), _I32(16)))
            return widen(builder, kind, builder.trunc(bits, ir.IntType(16)))

        return types.float32(types.uint32, types.int64), codegen

    return unpack


@intrinsic
def put_pair(typing, shared, index, register):
    """Store the two numbers of a register, at an index that is even."""

    def codegen(context, builder, signature, args):
        target = builder.bitcast(_element(context, builder, signature.args[0], args[0], args[1]), _I32.as_pointer())
        builder.store(args[2], target, align=4)
        return context.get_dummy_value()

    return types.void(shared, types.int64, types.uint32), codegen


@intrinsic
def store_load(typing, shared, index, pointer, distance):
    """Move 16 bytes from shared memory to so many bytes behind a pointer; both addresses are multiples of 16."""

    def codegen(context, builder, signature, args):
        whole = ir.VectorType(_I32, 4).as_pointer()
        source = builder.bitcast(_element(context, builder, signature.args[0], args[0], args[1]), whole)
        target = builder.gep(builder.bitcast(args[2], _I8.as_pointer()), [args[3]])
        builder.store(builder.load(source, align=LOAD), builder.bitcast(target, whole), align=LOAD)
        return context.get_dummy_value()

    return types.void(shared, types.int64, pointer, types.int64), codegen
