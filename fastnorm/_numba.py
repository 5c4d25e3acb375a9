"""What this library needs of numba beyond its decorators: the private parts it uses are all in this file.

Numba's builder of generalised ufuncs, the class behind ``numba.guvectorize``, compiles a kernel. Three things differ from
what it would do by itself: helpers stay drafts, LLVM runs fewer passes, and no name but the kernel's own leaves its
object file.
"""

import contextlib
import functools

from llvmlite import ir
from llvmlite.binding import add_symbol, parse_assembly
from numba._dynfunc import make_function
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python
from numba.np.numpy_support import as_dtype
from numba.np.ufunc.ufuncbuilder import GUFuncBuilder
from numba.np.ufunc.wrappers import build_gufunc_wrapper

from ._compile import IS_X86

_USUAL_MODE = 0x1F80  # of x86: round to nearest, keep subnormal numbers, raise nothing
_FLAGS = 0x3F  # what was raised


def compiled(name, source):
    """Compile a `Source`. Returns what must be known of a kernel besides its machine code, and the library that has it."""
    source.function.__qualname__ = name  # numba makes the symbol of it, which must be unique among all kernels ever
    with global_compiler_lock, undisturbed():
        builder = GUFuncBuilder(source.function, source.layout, writable_args=source.writable)
        with _made_as(Draft):
            result = builder.add(source.types)
        with _made_as(Sealed):
            wrapper = build_gufunc_wrapper(source.function, result, builder.sin, builder.sout, cache=False, is_parfors=False)
        entry = _GUARDED + wrapper.name if IS_X86 else wrapper.name
        wrapper.library.get_pointer_to_function(entry)
    code = {
        "name": name,
        "entry": entry,
        "layout": source.layout,
        "dtypes": [as_dtype(t.dtype).str for t in result.signature.args],
        "writable": list(builder.writable_args),
    }
    return code, wrapper.library


def binaries(library):
    """The machine code of a library, and the LLVM code that numba wants beside it."""
    return library.serialize_using_object_code()[2]


def loaded(code, binaries):
    """The library that `binaries` came from."""
    return codegen().unserialize_library((code["name"], "object", binaries))


@functools.cache
def codegen():
    """Numba's front to LLVM's compiler and loader, for this processor."""
    # Every gufunc's wrapper refers to numba's memory functions (for exceptions, which our kernels never raise), and LLVM
    # ends the process over a name it cannot find. numba tells LLVM of them only once it compiles something itself.
    for name, address in _nrt_python.c_helpers.items():
        add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    return cpu_target.target_context.codegen()


class Draft(JITCodeLibrary):
    """A function that is only ever joined to others: no machine code is made of it, which saves 0.5 s a kernel.

    A kernel calls some twenty small functions. numba would optimise each and make machine code of it, to be run by itself,
    and then do both again where it joins them to the kernel.
    """

    def _optimize_functions(self, module):
        pass

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class Sealed(JITCodeLibrary):
    """A kernel with all that was joined to it, of which nothing but the entry can be seen from outside.

    numba numbers the functions of a process to tell them apart. Two kernels compiled in two processes may therefore have
    helpers of the same name, and a process that loads both would call one's from the other.
    """

    def _optimize_final_module(self):
        entry = next(f.name for f in self._final_module.functions if f.name.startswith("__gufunc__") and not f.is_declaration)
        if IS_X86:
            self._final_module.link_in(parse_assembly(str(_guard(entry))))
            entry = _GUARDED + entry
        for function in self._final_module.functions:
            if not function.is_declaration and function.name != entry:
                function.linkage = "internal"
        super()._optimize_final_module()


_GUARDED = "guarded_"


def _guard(entry):
    """A module with the entry to a kernel that runs it in the usual floating-point mode, and leaves all as it was.

    Other libraries change the mode of a thread (flush to zero, when loaded), and threads that it starts inherit that; and NumPy
    would warn of flags that a kernel has raised. 5 ns a call.
    """
    module, word, byte = ir.Module("guard"), ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte] * 4)
    inner = ir.Function(module, kind, entry)
    outer = ir.Function(module, kind, _GUARDED + entry)
    builder = ir.IRBuilder(outer.append_basic_block())
    access = ir.FunctionType(ir.VoidType(), [byte])
    save, load = (ir.Function(module, access, f"llvm.x86.sse.{name}") for name in ("stmxcsr", "ldmxcsr"))
    mode, other = builder.alloca(word), builder.alloca(word)
    builder.call(save, [builder.bitcast(mode, byte)])
    before = builder.load(mode)
    builder.store(word(_USUAL_MODE), other)
    with builder.if_then(builder.icmp_unsigned("!=", builder.and_(before, word(~_FLAGS & 0xFFFFFFFF)), word(_USUAL_MODE))):
        builder.call(load, [builder.bitcast(other, byte)])
    builder.call(inner, outer.args)
    builder.call(save, [builder.bitcast(other, byte)])
    with builder.if_then(builder.icmp_unsigned("!=", builder.load(other), before)):
        builder.call(load, [builder.bitcast(mode, byte)])
    builder.ret_void()
    return module


@contextlib.contextmanager
def _made_as(library_class):
    """Let numba put what it compiles meanwhile into such libraries: under its compiler lock, so that nobody else's are."""

    def executable(library, function, environment):
        """What Python would call, if it could call a draft; numba knows functions by this object."""
        return make_function(function.lookup_module(), function.qualname, "a draft", 0, environment, (library,))

    maker, target = codegen(), cpu_target.target_context
    usual = maker._library_class
    maker._library_class, target.get_executable = library_class, executable
    try:
        yield
    finally:
        maker._library_class = usual
        del target.get_executable


# LLVM's second level instead of its third: kernels are vectors already, as fast with it, and compile 0.2 s sooner. The others
# are settings for debugging code of the user's, under which numba does not compile what this library needs.
_SETTINGS = {"OPT": 2, "DEBUGINFO_DEFAULT": 0, "ENABLE_PROFILING": 0, "DISABLE_JIT": 0}


@contextlib.contextmanager
def undisturbed():
    """Numba with the settings that this library is made for, whatever its environment variables say."""
    before = {name: getattr(config, name) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        setattr(config, name, type(before[name])(value))
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
