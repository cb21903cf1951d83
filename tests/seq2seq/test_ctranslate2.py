"""CTranslate2 computes what the exported model computes: probabilities, greedy decoding, beam search."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from common import UserError
from seq2seq.batches import pad
from seq2seq.beam import beam_search
from seq2seq.ctranslate2_export import END, PADDING, START, vocabulary, write_ctranslate2
from seq2seq.decoding import best_ids, decode_lines, encode_texts, greedy
from seq2seq.export import Options, export
from seq2seq.model import Seq2Seq
from seq2seq.multi30k import read_multi30k
from seq2seq.search import Search
from seq2seq.tokenizer import PAD_ID, Tokenizer
from seq2seq.weights import Translator, load_seq2seq
from tests.seq2seq.helpers import sources, tiny_config, tiny_model
from tests.usage import run_usage

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra ctranslate2")

Translators = ctranslate2.Translator
LIMIT = 23
LENGTHS = [5] * 70 + [1] * 20 + [11] * 40 + [3] * 70


def words(size: int) -> Tokenizer:
    """A tokenizer of ``size`` ids, padding, unknown, start and end among them."""
    return Tokenizer.of_words([" ".join(f"w{i}" for i in range(size - 4))])


def translator_of(model: Seq2Seq) -> Translator:
    config = model.config
    source, target = words(config.source_vocabulary), words(config.target_vocabulary)
    assert (target.start_id, target.end_id) == (config.start_id, config.end_id)
    return Translator(model, source, target, ("de", "en"))


class Exported:
    """A model as CTranslate2 runs it, ids in and ids out."""

    def __init__(self, model: Seq2Seq, folder, **options) -> None:
        translator = translator_of(model)
        write_ctranslate2(translator, folder, positions=50, **options)
        self.source, self.target = vocabulary(translator.source), vocabulary(translator.target)
        self.runner = ctranslate2.Translator(str(folder), intra_threads=1)

    def tokens(self, ids: Tensor) -> list[list[str]]:
        return [[self.source[i] for i in row if i] for row in ids.tolist()]

    def translate(self, ids: Tensor, beam: int) -> list[tuple[list[int], float]]:
        results = self.runner.translate_batch(
            self.tokens(ids),
            beam_size=beam,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=LIMIT,
            suppress_sequences=[[PADDING], [START]],
            return_scores=True,
        )
        return [([self.target.index(token) for token in one.hypotheses[0]], one.scores[0]) for one in results]


def changed(model: Seq2Seq, **layers) -> Seq2Seq:
    """A model like this one, whose layers differ."""
    torch.manual_seed(5)
    return Seq2Seq(replace(model.config, layers=replace(model.config.layers, **layers))).eval()


MODELS = {
    "pre-norm": lambda: tiny_model(),
    "post-norm, all tied": lambda: tiny_model("all", norm_first=False),
    "output tied": lambda: tiny_model("decoder_output"),
    "embeddings tied, not scaled": lambda: tiny_model("embeddings", scale_embedding=False),
    "positions by halves": lambda: tiny_model(layout="concatenated"),
    "a row for padding": lambda: tiny_model(padding_row=True, norm_first=False),
    "convolutions, gelu, wide eps": lambda: changed(tiny_model(), feedforward="conv", activation="gelu", norm_eps=0.3),
}


@pytest.mark.parametrize("name", MODELS)
def test_greedy_decoding_token_for_token_and_probabilities(name, tmp_path):
    model = MODELS[name]()
    exported = Exported(model, tmp_path)
    ids = sources(LENGTHS, vocabulary=model.config.source_vocabulary - 2)
    written = greedy(model, ids, LIMIT)
    assert [found for found, _ in exported.translate(ids, 1)] == written
    assert len({tuple(row) for row in written}) > 2
    assert exported_log_probabilities(exported, ids, written) == pytest.approx(
        log_probabilities(model, ids, written), rel=1e-5, abs=1e-4
    )


def log_probabilities(model: Seq2Seq, ids: Tensor, written: list[list[int]]) -> list[float]:
    """Of each translation and its end."""
    rows = [[model.config.start_id, *row, model.config.end_id] for row in written]
    target = pad(rows)
    with torch.no_grad():
        logits = model(ids, target[:, :-1])
    losses = torch.nn.functional.cross_entropy(logits.mT, target[:, 1:], ignore_index=PAD_ID, reduction="none")
    return (-losses.sum(dim=1)).tolist()


def exported_log_probabilities(exported: Exported, ids: Tensor, written: list[list[int]]) -> list[float]:
    targets = [[exported.target[i] for i in row] for row in written]
    return [sum(one.log_probs) for one in exported.runner.score_batch(exported.tokens(ids), targets)]


def without_symbols(model: Seq2Seq) -> Seq2Seq:
    """The model with no probability left for padding and start, which are never written.

    We rule them out after the softmax and CTranslate2 before it, so their share would tell the scores apart.
    """
    assert model.projection is not None
    assert isinstance(model.decoder.norm, torch.nn.Module)
    with torch.no_grad():
        weight, bias = model.decoder.norm.get_parameter("weight"), model.decoder.norm.get_parameter("bias")
        weight[0], bias[0] = 0.0, 1.0  # the first entry of what is projected is always 1
        model.projection.weight[:, 0] = 0.0
        model.projection.weight[[0, model.config.start_id], 0] = -1e4
        model.projection.weight[model.config.end_id, 0] = 1.0
    return model


@pytest.mark.parametrize("beam", [2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_beam_search_differs_where_theirs_keeps_more(beam, seed, tmp_path):
    """Two rules differ: their live hypotheses stay as many when one ends, ours become fewer; and one that is cut at the
    limit may win there, while ours has to end. Both can only find what is likelier."""
    model = without_symbols(tiny_model(seed=seed))
    exported = Exported(model, tmp_path)
    ids = sources(LENGTHS, vocabulary=model.config.source_vocabulary - 2)
    ours = [one[0] for one in beam_search(model, ids, Search(beam=beam, alpha=0.0, max_length=LIMIT))]
    theirs = exported.translate(ids, beam)
    same = 0
    for (found, score), hypothesis in zip(theirs, ours, strict=True):
        if found == hypothesis.ids:
            same += 1
            if len(found) < LIMIT:  # theirs may be cut there, without the end
                assert score == pytest.approx(hypothesis.log_probability, abs=1e-4)
        else:
            assert hypothesis.ended
            assert score > hypothesis.log_probability
    assert same > 150


@pytest.mark.parametrize("beam", [1, 4])
def test_a_trained_model_translates_alike(beam, tmp_path):
    """200 sentences, greedily and by beams without length penalty, which the two divide by differently."""
    folder = Path(os.environ.get("PATCHWORDS_DATA", "data"))
    if not (folder / "multi30k" / "val.de.gz").exists():
        pytest.skip("Multi30k is neither in $PATCHWORDS_DATA nor in data/")
    translator = load_seq2seq(Path("de-en"))
    ids = encode_texts([text for text, _ in read_multi30k(folder, "val", "de", "en")[:200]], translator.source)
    write_ctranslate2(translator, tmp_path)
    source, target = vocabulary(translator.source), vocabulary(translator.target)
    limit = 2 * max(map(len, ids)) + 10
    results = ctranslate2.Translator(str(tmp_path), intra_threads=1).translate_batch(
        [[source[i] for i in row] for row in ids],
        beam_size=beam,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=limit,
        suppress_sequences=[[PADDING], [START]],
    )
    numbers = {piece: i for i, piece in enumerate(target)}
    theirs = [[numbers[piece] for piece in result.hypotheses[0]] for result in results]
    ours = best_ids(translator.model, ids, Search(beam=beam, alpha=0.0, max_length=limit))
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) == 0


@pytest.mark.parametrize(("quantization", "tolerance"), [("float16", 0.05), ("int8", 1.5)])
def test_smaller_weights_are_nearly_the_same(quantization, tolerance, tmp_path):
    model = tiny_model(scale=1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = sources([5] * 30, vocabulary=9)
    written = greedy(model, ids, 7)
    found, size = {}, {}
    for kind in ("float32", quantization):
        folder = tmp_path / kind
        folder.mkdir()
        found[kind] = exported_log_probabilities(Exported(model, folder, quantization=kind), ids, written)
        size[kind] = (folder / "model.bin").stat().st_size
    assert found[quantization] != found["float32"]
    assert found[quantization] == pytest.approx(found["float32"], abs=tolerance)
    assert size[quantization] < 0.7 * size["float32"]
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_bytes_are_small_enough_for_processors_that_add_two_products_in_16_bits(tmp_path, monkeypatch):
    """Without VNNI two products of an unsigned and a signed byte are added with saturation at 32,767."""
    from ctranslate2.specs import transformer_spec

    saved = []
    monkeypatch.setattr(transformer_spec.TransformerSpec, "save", lambda spec, _: saved.append(spec))
    model = tiny_model()
    write_ctranslate2(translator_of(model), tmp_path, quantization="int8")
    variables = saved[0].variables()
    matrices = {name: value.numpy() for name, value in variables.items() if getattr(value, "dtype", "") == "int8"}
    matrices = {name: value for name, value in matrices.items() if f"{name}_scale" in variables}
    # 2 encoder layers of 4 matrices, 3 decoder layers of 7, two embeddings and the projection
    assert len(matrices) == 2 * 4 + 3 * 7 + 3
    assert {np.abs(value.astype(int)).max() for value in matrices.values()} == {64}
    assert 2 * 255 * 64 < 2**15
    name = "encoder/layer_1/ffn/linear_0/weight"
    restored = torch.from_numpy(matrices[name] / variables[f"{name}_scale"].numpy()[:, None])
    expected = model.state_dict()["encoder.layers.1.feedforward.inner.weight"]
    assert ((restored - expected).abs() <= expected.abs().amax(dim=1, keepdim=True) / 64 / 2 + 1e-6).all()


def test_what_readme_txt_tells_works_and_text_is_never_a_symbol(tmp_path, capsys):
    texts = ["ein Bier für <unk> 🍺", f"{PADDING} {START} {END}", "</s>", "w0 <s> w1"]
    tokenizer = Tokenizer.of_bpe([*texts] * 3, 300)
    torch.manual_seed(3)
    config = replace(
        tiny_config("all"),
        source_vocabulary=len(tokenizer),
        target_vocabulary=len(tokenizer),
        start_id=tokenizer.start_id,
        end_id=tokenizer.end_id,
    )
    model = Seq2Seq(config).eval()
    folder = tmp_path / "exported (ü)"
    export(Translator(model, tokenizer, tokenizer, ("de", "en")), Options(tmp_path, folder, "ctranslate2"))
    names = vocabulary(tokenizer)
    assert len(set(names)) == len(names) == len(tokenizer)
    for text in texts:  # one at a time: the program has one limit for all its sentences
        ran = run_usage(folder, lines=[text])
        assert [[names.index(token) for token in row] for row in ran["tokens"]] == tokenizer.encode([text])
        (expected,) = decode_lines([[i + 1 for i in ran["found"][0]]], tokenizer)
        assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize("longest", [17, 2049])
def test_readme_txt_translates_lines_of_any_length(longest, tmp_path, capsys, monkeypatch):
    """As many lines as there are, blank ones blank; a long one is cut with a warning, and spoils no other."""
    model = tiny_model()
    with torch.no_grad():  # translations of all lengths, but few that end late
        model.projection.weight[model.config.end_id] += 0.1  # pyright: ignore[reportOptionalMemberAccess]
    translator, folder = translator_of(model), tmp_path / "exported"
    export(translator, Options(folder, folder, "ctranslate2", longest=longest))
    texts = translator.source.decode(sources([longest + 3, longest, 5, 1], vocabulary=9).tolist())
    lines = ["", *texts, "  "]
    seen = []
    monkeypatch.setattr(ctranslate2, "Translator", lambda _: Spy(folder, seen))
    ran = run_usage(folder, lines=lines)
    assert [len(row) for row in ran["tokens"]] == [0, longest, longest, 5, 1, 0]
    ((passed, arguments),) = seen
    assert passed == ran["tokens"][1:-1]
    assert (arguments["max_input_length"], arguments["max_decoding_length"]) == (0, 2 * longest + 10 + 1)
    assert max(map(len, ran["found"])) <= 2 * longest + 10
    captured = capsys.readouterr()
    assert captured.out.count("\n") == len(lines)
    assert [bool(row) for row in ran["found"]][:: len(lines) - 1] == [False, False]
    assert captured.err == (f"warning: line 2 has {longest + 3} tokens, only the first {longest} are translated\n")
    assert run_usage(folder, lines=["", " "])["found"] == [[], []]


class Spy:
    """CTranslate2's translator, and what it is given."""

    def __init__(self, folder: Path, seen: list) -> None:
        self.runner, self.seen = Translators(str(folder), intra_threads=1), seen

    def translate_batch(self, tokens: list[list[str]], **arguments):
        if tokens:
            self.seen.append((tokens, arguments))
        return self.runner.translate_batch(tokens, **{**arguments, "beam_size": 1})


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            {"attention": "additive"},
            "CTranslate2 knows attention=scaled_dot_product only, this model has attention=",
        ),
        ({"attention": "restricted", "radius": 2}, "this model has attention=restricted; use --to onnx"),
        ({"unbiased_norm": True}, "CTranslate2 knows unbiased_norm=False only, this model has unbiased_norm=True"),
    ],
)
def test_what_ctranslate2_lacks_is_refused(layers, message, tmp_path):
    with pytest.raises(UserError, match=message):
        write_ctranslate2(translator_of(changed(tiny_model(), **layers)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_longer_sentence_than_the_table_is_an_error(tmp_path):
    exported = Exported(tiny_model(), tmp_path)
    with pytest.raises(RuntimeError, match="position"):
        exported.translate(sources([51]), 1)
