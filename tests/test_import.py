"""`import fastnorm` is light, and takes nothing along that was not asked for."""

import subprocess
import sys

OPTIONAL = ["numba", "llvmlite", "cupy", "dask", "torch", "ml_dtypes", "rich", "matplotlib", "onnx", "onnxruntime", "sklearn"]


def run(program):
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True).stdout


def test_imports_no_optional_library():
    loaded = run(f"import fastnorm, sys; print([name for name in {OPTIONAL} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_a_call_imports_no_array_library_but_numpy():
    program = "import fastnorm, sys, numpy; fastnorm.rms_norm(numpy.ones((2, 4), 'f4'))"
    loaded = run(f"{program}; print([name for name in {OPTIONAL[2:]} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_all_public_names_exist():
    import fastnorm

    assert fastnorm.__all__ == sorted(fastnorm.__all__)
    for name in fastnorm.__all__:
        assert getattr(fastnorm, name).__doc__
