"""Attention whose numbers are near either end of the range, for every backend."""

import numpy as np


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype).reshape(-1, 1)


SMALL, LARGE = np.float32(1e-36), np.finfo(np.float32).max
CASES = [  # q, k, v of one feature, options, the result, its logarithm
    (column(-1e30), column(1e30), column(1), {}, 1, -np.inf),
    (column(-2e19), column(1e19), column(1), {"scale": 1.9}, 1, -np.inf),
    (column(1e30), column(1e30), column(1e-36), {}, SMALL, np.inf),
    (column(1e38), column(1.3e-38, 2.41e-38), column(1, 0.5) * LARGE, {"scale": 1.0}, 0.6239355 * LARGE, 2.6948493),
    (column(1e-18), column(1e-18, 2e-18), column(0, 1), {"scale": 1e36}, 0.7310586, 2.3132617),
    (column(2.5e37), column(2.5e37, 5e37), column(0, 1), {"scale": 1.6e-75}, 0.7310586, 2.3132617),
    (column(1e30), column(1e30, 2e30), column(1, 3), {"scale": 0.0}, 2, np.log(2)),
    (column(1), column(1, 0.5), column(1, 3), {"softcap": 1e39}, 1.7550814, 1.4740770),
    (column(1), column(1, 0.5), column(1, 3), {"sinks": [1e300]}, 0, LARGE),
    (column(1), column(1, 1, 1), column(0, 1, 2), {"alibi_slopes": [1e300], "q_start": 1}, 1, 1),
    (
        column(1e-150, dtype=float),
        column(1e-150, 2e-150, dtype=float),
        column(0, 1, dtype=float),
        {"scale": 1e300},
        0.7310586,
        2.3132617,
    ),
]
