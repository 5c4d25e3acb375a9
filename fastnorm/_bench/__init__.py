"""`fastnorm bench`: how fast the norms are, beside the fastest copy of the same bytes and beside other libraries.

========== ====================================================================
cases      what is measured, as a table: one line a case, with its targets
oracles    the results in float64 NumPy, for this package and for the tests
peers      who takes part: this library, the copies, other libraries
measure    a result is checked, then timed, in turn with all others
processes  what needs processes of its own: imports, first calls, a busy core
table      the results on a terminal, and as JSON
plot       the results as a picture
========== ====================================================================

Installed with the library, so that the figures in its documentation can be had on any machine. Nothing but the two
commands imports it.
"""
