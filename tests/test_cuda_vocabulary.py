"""The words of formulas have the same meaning on the GPU as for NumPy arrays."""

import subprocess
import sys

import cuda_devices  # noqa: F401 - first: it skips where there is no compiler
import numpy as np
import ptxrun
import pytest
from numba import cuda
from numba.cuda import types

from fastnorm import _vocabulary as words
from fastnorm._cuda import block


def by_gpu(formula, *arrays):
    """The formula of each element of two or three arrays, a thread an element."""
    kind = types.CPointer(getattr(types, arrays[0].dtype.name))
    if len(arrays) == 2:

        def kernel(a, b, out):
            i = cuda.threadIdx.x
            out[i] = formula(a[i], b[i])

    else:

        def kernel(a, b, c, out):
            i = cuda.threadIdx.x
            out[i] = formula(a[i], b[i], c[i])

    formula = block.inlined(formula)
    out = np.zeros_like(arrays[0])
    ptxrun.launch(*ptxrun.compile_ptx(kernel, (kind,) * (len(arrays) + 1)), 1, len(out), [*arrays, out])
    return out


FORMULAS = {
    "sqrt": lambda a, b: words.sqrt(words.magnitude(a)),
    "magnitude": lambda a, b: words.magnitude(a),
    "minimum": lambda a, b: words.minimum(a, b),
    "maximum": lambda a, b: words.maximum(a, b),
    "select": lambda a, b: words.select((a < b) & (b == b) | (a == b), a, -b),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("word", FORMULAS)
def test_words(rng, word, dtype):
    info = np.finfo(dtype)
    special = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, info.max, info.smallest_subnormal, -info.tiny, info.eps]
    a = np.concatenate([np.repeat(special, 10), rng.standard_normal(100)]).astype(dtype)
    b = np.concatenate([np.tile(special, 10), rng.standard_normal(100)]).astype(dtype)
    np.testing.assert_array_equal(by_gpu(FORMULAS[word], a, b), FORMULAS[word](a, b))


def test_fma_rounds_once(rng):
    a, b, c = rng.standard_normal((3, 200)).astype(np.float32)
    c = np.where(np.arange(200) % 2, c, -a * b)  # what rounding the product would leave
    wanted = (a.astype(np.float64) * b + c).astype(np.float32)
    np.testing.assert_array_equal(by_gpu(words.fma, a, b, c), wanted)


def test_every_word_has_a_body():
    functions = {name for name, value in vars(words).items() if getattr(value, "__module__", None) == words.__name__}
    public = {name for name in functions if name.islower() and not name.startswith("_")}
    of_exponentials = {"polynomial", "two_to", "logarithm"}  # no kernel for GPUs takes any yet
    assert public - {"name_of", "functions_of", "finite_in"} == {*FORMULAS, "fma"} | of_exponentials


BESIDE_THE_CPU = """
import re
from fastnorm._cuda import launch

def compiled():  # shared memory has a number that counts up
    ptx = launch.compile_ptx(("fastnorm._cuda.rows:rows", "rms_norm", "float32", False, False), "80")
    return re.sub(rb"smem_[0-9]+", b"", ptx)

before = compiled()
import fastnorm._cpu.simd  # defines the words for the CPU
assert compiled() == before
"""


@pytest.mark.slow
def test_words_stay_the_gpus_own_when_the_cpu_defines_its():
    """Both register in numba, and numba-cuda looks at what others have registered there."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", BESIDE_THE_CPU], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
