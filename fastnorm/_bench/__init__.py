"""`fastnorm bench`: how fast the functions are, beside the fastest copy of the same bytes and beside other libraries.

================= ==============================================================
command           ``fastnorm bench``: measure, show, and write down
cases             what is measured, as a table: one line a case, with its targets
oracles           the results in float64 NumPy, for this package and for the tests
attention_oracles the same for softmax, RoPE and attention
peers             who takes part: this library, the copies, other libraries
attention         arrays, contenders and checks of softmax, RoPE and attention
realdata          the embeddings of a published model
measure           a result is checked, then timed, in turn with all others
processes         what needs processes of its own: imports, first calls, a busy core
table             the results on a terminal, and as JSON
plot              the results as a picture
================= ==============================================================

Installed with the library, so that the figures in its documentation can be had on any machine. Nothing of it but the
command imports this.
"""
