"""The norms."""

from ._arguments import deliver, norm_arguments, small_norm


def rms_norm(x, weight=None, *, eps=1e-6, axis=-1, weight_offset=0.0, out=None):
    y = small_norm("rms_norm", x, weight, eps, axis, weight_offset, out)
    if y is not None:
        return y
    backend, x, weight, eps, target, out = norm_arguments("rms_norm", x, weight, eps, axis, weight_offset, out)
    backend.rms_norm(x, weight, eps, target)
    return out if out is target else deliver(out)
