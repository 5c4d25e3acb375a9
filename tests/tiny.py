"""A kernel that compiles fast, for tests of the cache."""

from fastnorm._compile import Source


def doubled(dtype):
    """Kernel: twice x."""

    def kernel(x, out):
        for i in range(len(x)):
            out[i] = x[i] + x[i]

    return Source(kernel, "(n),(n)", f"void({dtype}[:], {dtype}[:])", ("out",))
