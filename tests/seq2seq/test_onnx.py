"""The two ONNX graphs in ONNX Runtime compute what the model computes, whatever the batch and the lengths."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from seq2seq.decoding import decode_lines, encode_texts, greedy
from seq2seq.export import Options, export
from seq2seq.model import Seq2Seq
from seq2seq.tokenizer import Tokenizer
from seq2seq.weights import Translator
from tests.seq2seq.helpers import sources, tiny_config
from tests.usage import run_usage

onnxruntime: Any = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytest.importorskip("onnxscript", reason="needs the extra onnx")

LONGEST = 29
OUT_OF_BOUNDS = onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument


def usual_model() -> Seq2Seq:
    torch.manual_seed(0)
    return widened(Seq2Seq(replace(tiny_config(), n_encoder_layers=1, n_decoder_layers=2)))


def odd_model() -> Seq2Seq:
    """A model with what is unusual, all at once."""
    config = tiny_config("all", norm_first=False, padding_row=True, layout="concatenated", scale_embedding=False)
    layers = replace(
        config.layers, attention="shared_query_key", feedforward="conv", activation="gelu", unbiased_norm=True
    )
    torch.manual_seed(0)
    return widened(Seq2Seq(replace(config, layers=layers, n_encoder_layers=1, n_decoder_layers=1)))


def widened(model: Seq2Seq) -> Seq2Seq:
    """Its next tokens differ clearly."""
    with torch.no_grad():
        (model.target_embedding if model.projection is None else model.projection).weight.mul_(3.0)
    return model.eval()


@pytest.fixture(scope="module", params=[usual_model, odd_model], ids=["usual", "odd"])
def exported(request, tmp_path_factory):
    model = request.param()
    source, target = (
        Tokenizer.of_words([" ".join(f"{side}{i}" for i in range(size - 4))])
        for side, size in (("s", model.config.source_vocabulary), ("t", model.config.target_vocabulary))
    )
    translator = Translator(model, source, target, ("de", "en"))
    folder = tmp_path_factory.mktemp("exports") / "graphs (ü)"
    export(translator, Options(folder, folder, "onnx", longest=LONGEST))
    return translator, folder


def test_readme_txt_decodes_token_for_token_as_greedy(exported, capsys):
    translator, folder = exported
    model, source, target, _ = translator
    lengths = [5] * 20 + [1] * 8 + [9] * 20 + [3] * 16 + [LONGEST, LONGEST + 2]
    ids = sources(lengths, vocabulary=model.config.source_vocabulary - 2)
    texts = source.decode(ids.tolist())
    assert encode_texts(texts, source) == [[i for i in row if i] for row in ids.tolist()]
    ran = run_usage(folder, lines=["", *(f" {text}\n" for text in texts), "  "])
    expected = [[], *greedy(model, ids[:, :LONGEST]), []]
    assert ran["found"] == expected
    captured = capsys.readouterr()
    assert captured.out.split("\n")[:-1] == decode_lines(expected, target)
    assert captured.err == "warning: line 67 has 31 tokens, only the first 29 are translated\n"
    assert len({tuple(row) for row in expected}) > 2
    assert run_usage(folder, lines=["", " "])["found"] == [[], []]


@pytest.mark.parametrize("lengths", [[1], [7, 2, 5]])
def test_logits_of_every_step(exported, lengths):
    """Against one pass of the whole model without a cache, on sizes the export never saw."""
    (model, *_), folder = exported
    ids = sources(lengths, seed=4, vocabulary=model.config.source_vocabulary - 2)
    target = sources([6] * len(lengths), seed=5, vocabulary=model.config.target_vocabulary - 2)
    target[:, 0] = model.config.start_id
    with torch.no_grad():
        expected = model(ids, target)
    found = torch.stack([logits for logits, _ in steps(folder, ids, target)], dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def steps(folder, ids, target):
    """The logits after each token of the target (B, T), and how many keys the cache then holds."""
    encoder, step = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder_step"))
    names = [one.name for one in encoder.get_outputs()]
    memory = dict(zip(names, encoder.run(None, {"source": ids.numpy()}), strict=True))
    inputs = [one for one in step.get_inputs() if one.name.startswith("past_")]
    empty = torch.zeros(len(ids), inputs[0].shape[1], 0, inputs[0].shape[3]).numpy()
    past = {one.name: empty for one in inputs}
    for tokens in target.T.contiguous().numpy():
        logits, *present = step.run(None, {"tokens": tokens, **memory, **past})
        past = dict(zip(past, present, strict=True))
        yield torch.from_numpy(logits), present[-1].shape[2]


def test_the_graphs_name_their_axes_and_grow_their_cache(exported):
    (model, *_), folder = exported
    step = onnxruntime.InferenceSession(folder / "decoder_step.onnx")
    shapes = {one.name: one.shape for one in step.get_inputs()}
    assert shapes["tokens"] == ["batch"]
    assert shapes["memory_mask"] == ["batch", "source_length"]
    last = model.config.n_decoder_layers - 1
    assert shapes[f"memory_values_{last}"] == ["batch", 2, "source_length", 7]
    assert shapes[f"past_keys_{last}"] == ["batch", 2, "written", 7]
    target = torch.ones((2, 3), dtype=torch.int64)
    assert [held for _, held in steps(folder, torch.ones((2, 5), dtype=torch.int64), target)] == [1, 2, 3]


def test_more_tokens_than_the_table_are_an_error(exported):
    _, folder = exported
    most = 2 * LONGEST + 10 + 1  # of a translation, and the start symbol
    enough = torch.ones((1, most), dtype=torch.int64)
    assert len(list(steps(folder, enough, enough))) == most
    too_many = torch.ones((1, most + 1), dtype=torch.int64)
    with pytest.raises(OUT_OF_BOUNDS, match="invalid index found, index = 69"):
        list(steps(folder, enough, too_many))
    with pytest.raises(OUT_OF_BOUNDS, match="invalid index found, index = 69"):
        list(steps(folder, too_many, enough))
