"""The pairs of calls of docs/drop-in.md, taken from the page: both sides give the same numbers."""

import math
import pathlib
import re
import types

import numpy as np
import pytest

import fastnorm

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "drop-in.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installation without the repository")


def sections():
    """For each section with calls: its title, the program before them, the library that it needs, and the pairs."""
    for text in re.split(r"^## ", PAGE.read_text() if PAGE.exists() else "", flags=re.MULTILINE)[1:]:
        program = re.search(
            r"^```\{code-block\} python\n:caption: needs ([-\w]+)\n\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
        table = re.search(r"^\| original \| here \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
        if program or table:
            pairs = [re.fullmatch(r"\| `(.*)` \| `(.*)` \|", row).groups() for row in table[1].splitlines()]
            yield text.splitlines()[0], program[1], program[2], pairs


ROWS = [pytest.param(*section[1:3], *pair, id=pair[0]) for section in sections() for pair in section[3]]
MODULES = {"scikit-learn": "sklearn", "SciPy": "scipy", "flash-attn": "torch"}  # flash-attn: what stands in for it


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None
):
    """What the documentation of flash-attention 2.8 says, in float64, for tensors of shape (batch, length, heads, size)."""
    import torch

    q, k, v = (a.double().transpose(1, 2) for a in (q, k, v))
    k, v = (a.repeat_interleave(q.shape[1] // k.shape[1], 1) for a in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    scores = scores if softcap == 0 else softcap * torch.tanh(scores / softcap)
    position = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    distance = torch.arange(k.shape[2]) - position
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * distance.abs()
    left, right = (math.inf if side == -1 else side for side in window_size)
    allowed = (distance >= -left) & (distance <= (min(right, 0) if causal else right))
    weights = torch.softmax(scores.masked_fill(~allowed, -math.inf), -1).nan_to_num()
    return (weights @ v).transpose(1, 2)


@pytest.fixture
def flash_attention(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flash_attn", types.SimpleNamespace(flash_attn_func=flash_attn_func))


def test_the_page_has_what_it_should():
    counts = {title: len(pairs) for title, _, _, pairs in sections()}
    assert len(counts) == 7
    assert min(counts.values()) >= 3


@pytest.mark.parametrize(("library", "program", "original", "here"), ROWS)
def test_both_calls_give_the_same(flash_attention, library, program, original, here):
    pytest.importorskip(MODULES.get(library, library))
    space = {"fastnorm": fastnorm}
    exec(program, space)
    wanted, y = eval(original, space), eval(here, space)
    if library != "flash-attn":
        assert type(y) is type(wanted)
    y, wanted = np.asarray(y), np.asarray(wanted)
    assert y.shape == wanted.shape
    assert wanted.std() > 1e-3
    np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=2e-6)
