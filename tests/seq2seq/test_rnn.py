"""The recurrent translators: by the papers' formulas, through steps, padding, decoding, files, and as large as said."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from common import UserError
from common.training.checkpoint import read_weights, save_weights, unique_state
from seq2seq.architectures import build_model, model_config
from seq2seq.attention_picture import draw_attention
from seq2seq.beam import beam_search
from seq2seq.decoding import greedy
from seq2seq.rnn import RNN, RNNConfig
from seq2seq.search import Search
from seq2seq.task import Translation
from seq2seq.tokenizer import PAD_ID, Tokenizer
from seq2seq.train import main as train
from seq2seq.translation_model import TIES
from seq2seq.weights import load_seq2seq
from tests.seq2seq.helpers import JOINT, SOURCE, TARGET, run_main, sources, tiny_model

LENGTHS = [5, 1, 7, 3, 3, 2, 6]
E, H = 10, 7
both = pytest.mark.parametrize("attention", [False, True])


def tiny_rnn(attention: bool, tie: str = "none", seed: int = 0) -> RNN:
    """A random model whose next tokens differ clearly."""
    torch.manual_seed(seed)
    joint = tie in ("embeddings", "all")
    source, target = (JOINT, JOINT) if joint else (SOURCE, TARGET)
    model = RNN(RNNConfig(source, target, target - 2, target - 1, attention, E, H, 0.0, tie))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model.eval()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def gru_step(x: Tensor, h: Tensor, w: nn.GRU | nn.GRUCell, suffix: str = "") -> Tensor:
    """Reset and update gate, candidate, and their mixture (Cho et al. 2014, 2.3; the reset as torch applies it)."""
    xr, xz, xn = (getattr(w, f"weight_ih{suffix}") @ x + getattr(w, f"bias_ih{suffix}")).split(H)
    hr, hz, hn = (getattr(w, f"weight_hh{suffix}") @ h + getattr(w, f"bias_hh{suffix}")).split(H)
    r, z = 1 / (1 + torch.exp(-xr - hr)), 1 / (1 + torch.exp(-xz - hz))
    return z * h + (1 - z) * torch.tanh(xn + r * hn)


def by_hand(model: RNN, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and, with attention, weights (T, S) of one sentence without padding, word by word."""
    gru, decoder = model.encoder.gru, cast(Any, model.decoder)
    words = model.source_embedding.weight[source] * E**0.5
    onward, back = [torch.zeros(H)], [torch.zeros(H)]
    for word in words:
        onward.append(gru_step(word, onward[-1], gru, "_l0"))
    for word in words.flip(0):
        back.append(gru_step(word, back[-1], gru, "_l0_reverse"))
    annotations = torch.stack([torch.cat(pair) for pair in zip(onward[1:], back[:0:-1], strict=True)])
    summary = torch.zeros(0)
    if not model.config.attention:
        summary = torch.tanh(decoder.summary.weight @ torch.cat((onward[-1], back[-1])) + decoder.summary.bias)
    s = torch.tanh(decoder.initial.weight @ (back[-1] if model.config.attention else summary) + decoder.initial.bias)
    logits, maps = [], []
    for word in model.target_embedding.weight[target] * E**0.5:
        if model.config.attention:
            w = decoder.score.weight[0]
            energy = [
                w @ torch.tanh(decoder.query.weight @ s + decoder.key.weight @ a + decoder.key.bias)
                for a in annotations
            ]
            exp = torch.stack(energy).exp()
            maps.append(exp / exp.sum())
            context = maps[-1] @ annotations
            s = gru_step(torch.cat((word, context)), s, decoder.cell)
        else:
            context = summary
            s = gru_step(torch.cat((word, context)), s, decoder.gru, "_l0")
        t = model.readout.weight @ torch.cat((s, context, word)) + model.readout.bias
        t = torch.stack([torch.maximum(t[2 * i], t[2 * i + 1]) for i in range(E)])
        logits.append((model.target_embedding if model.projection is None else model.projection).weight @ t)
    return torch.stack(logits), torch.stack(maps) if maps else torch.zeros(0)


@torch.no_grad()
@both
@pytest.mark.parametrize("tie", TIES)
def test_the_model_is_the_formula(attention, tie):
    model = tiny_rnn(attention, tie)
    source, target = sources([5]), sources([4], seed=2, vocabulary=TARGET)
    logits, weights = by_hand(model, source[0], target[0])
    close(model(source, target)[0], logits)
    found = model.attention_weights(source, target)
    assert len(found) == model.source_attention[0] == int(attention)
    if attention:
        assert found[0].shape == (1, 1, 4, 5)
        close(found[0][0, 0], weights)
        assert weights.max() - weights.min() > 0.1  # it looks somewhere


@torch.no_grad()
@both
@pytest.mark.parametrize("chunks", [[1] * 6, [3, 1, 2]])
def test_all_positions_at_once_equal_steps(attention, chunks):
    model = tiny_rnn(attention)
    source, target = sources([5, 3, 1]), sources([6, 6, 6], seed=2, vocabulary=TARGET)
    at_once = model(source, target)
    close(model.project(model.hidden(source, target)), at_once)
    state = model.start(source)
    close(torch.stack([model.step(target[:, t], state) for t in range(6)], dim=1), at_once)
    memory, hidden = model.encode(source)
    parts = []
    for part in target.split(chunks, dim=1):
        x, hidden, _ = model.decode(part, memory, hidden)
        parts.append(model.project(x))
    close(torch.cat(parts, dim=1), at_once)


@torch.no_grad()
@both
def test_alone_as_in_a_padded_batch(attention):
    model = tiny_rnn(attention)
    source, target = sources(LENGTHS), sources(LENGTHS[::-1], seed=2, vocabulary=TARGET)
    more = torch.full((len(LENGTHS), 4), PAD_ID)
    together = model(torch.cat((source, more), dim=1), torch.cat((target, more), dim=1))
    weights = model.attention_weights(torch.cat((source, more), dim=1), target)
    for i, (s, t) in enumerate(zip(LENGTHS, LENGTHS[::-1], strict=True)):
        close(together[i : i + 1, :t], model(source[i : i + 1, :s], target[i : i + 1, :t]))
        assert all(one[i, :, :, s:].abs().max() == 0.0 for one in weights)


@torch.no_grad()
@both
def test_a_position_sees_only_what_is_written_before_it(attention):
    model = tiny_rnn(attention)
    source, target = sources([5, 5]), sources([6, 6], seed=2, vocabulary=TARGET)
    changed = target.clone()
    changed[:, 3] = 1 + changed[:, 3] % (TARGET - 1)
    before, after = model(source, target), model(source, changed)
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3], before[:, 3], atol=1e-3)


@both
def test_a_source_of_padding_alone_gives_finite_gradients(attention):
    model = tiny_rnn(attention).train()
    model(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[3, 4], [5, 6]])).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@both
def test_no_sentence_has_no_translation(attention):
    model, nothing = tiny_rnn(attention), torch.zeros(0, 3, dtype=torch.int64)
    assert greedy(model, nothing) == beam_search(model, nothing, Search()) == []


@both
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_is_by_full_passes_and_a_beam_of_one(attention, seed):
    model, source = tiny_rnn(attention, seed=seed), sources(LENGTHS)
    found = greedy(model, source)
    assert [one.ids for (one,) in beam_search(model, source, Search(beam=1))] == found
    assert [row for part in source.split(2) for row in greedy(model, part)] == found
    assert len({len(row) for row in found}) > 1  # they end at different steps
    for row, length, ids in zip(source, LENGTHS, found, strict=True):
        symbols = [*ids, model.config.end_id] if len(ids) < 2 * length + 10 else ids
        with torch.no_grad():
            logits = model(row[None, :length], torch.tensor([[model.config.start_id, *symbols[:-1]]]))[0]
        logits[:, [PAD_ID, model.config.start_id]] = float("-inf")
        assert logits.argmax(dim=1).tolist() == symbols


@both
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores_of_a_beam_are_sums_of_a_whole_pass(attention, seed):
    model, source = tiny_rnn(attention, seed=seed), sources(LENGTHS)
    found = beam_search(model, source, Search(beam=4, n_best=4))
    for row, length, hypotheses in zip(source, LENGTHS, found, strict=True):
        assert len(hypotheses) == 4
        assert all(a.score >= b.score for a, b in pairwise(hypotheses) if a.ended == b.ended)
        for one in hypotheses:
            symbols = [*one.ids, model.config.end_id] if one.ended else one.ids
            with torch.no_grad():
                logits = model(row[None, :length], torch.tensor([[model.config.start_id, *symbols[:-1]]]))[0]
            total = float(logits.double().log_softmax(dim=-1)[range(len(symbols)), symbols].sum())
            assert one.log_probability == pytest.approx(total, abs=1e-4)
            assert one.score == pytest.approx(total / ((5 + len(symbols)) / 6), abs=1e-4)


@pytest.mark.parametrize("name", ["rnn", "rnn_attention"])
def test_a_few_steps_lower_the_loss_and_a_file_keeps_the_model(name, toy, tmp_path):
    config = model_config(name, "toy", toy, dropout=0.0)
    model = build_model(name, config)
    task = Translation(toy, config, batch_tokens=256, architecture=name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(15):
        loss, count = task.loss(model, task.batch(0, 0, 1))
        (loss / count).backward()
        losses.append(float(loss.detach() / count))
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0] > 4.0
    assert losses[-1] < 0.4 * losses[0]
    save_weights(tmp_path / "w.safetensors", unique_state(model), task.description)
    loaded = load_seq2seq(tmp_path / "w.safetensors")
    assert isinstance(loaded.model, RNN)
    assert loaded.model.config == config
    source, target = task.batch(1, 0, 1)
    assert torch.equal(loaded.model(source, target), model.eval()(source, target))


def test_a_weights_file_names_its_architecture(toy, tmp_path):
    path = tmp_path / "w.safetensors"
    model = tiny_model("all")
    task = Translation(toy, model.config, batch_tokens=256)
    words = Tokenizer.of_words(f"w{i}" for i in range(JOINT - 4))  # and padding, unknown, start, end
    tokenizers = {f"{side}_tokenizer": words.to_json() for side in ("source", "target")}
    description = {**task.description, **tokenizers}
    assert description.pop("architecture") == "transformer"
    save_weights(path, unique_state(model), description)  # as it was before there were several
    loaded = load_seq2seq(path).model.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in model.state_dict().items())
    for name, message in (
        ("lstm", "unknown architecture 'lstm'"),
        ("rnn", "RNNConfig has no field 'n_encoder_layers'"),
    ):
        save_weights(path, unique_state(model), {**description, "architecture": name})
        with pytest.raises(UserError, match=message):
            load_seq2seq(path)
    model = tiny_rnn(True, "all")
    description = Translation(toy, model.config, batch_tokens=256, architecture="rnn").description
    description["config"]["attention"] = False
    save_weights(path, unique_state(model), {**description, **tokenizers})
    with pytest.raises(UserError, match=r"decoder.cell.bias_hh, which the model lacks"):
        load_seq2seq(path)


@pytest.mark.parametrize("name", ["rnn", "rnn_attention"])
def test_the_command_trains_and_draws_what_there_is(name, toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("seq2seq.data.DATASETS", {"toy": lambda *_: replace(toy, test=toy.valid)})
    options = ["--data", "toy", "--architecture", name, "--epochs", 1, "--device", "cpu"]
    ran = run_main(train, [*options, "--out", tmp_path / "run"], capsys)
    assert ran.code == 0, ran.err
    assert (tmp_path / "run" / "attention.png").exists() == (name == "rnn_attention")
    assert read_weights(tmp_path / "run" / "best.safetensors")[1]["architecture"] == name


def test_the_picture_is_one_panel_of_the_weights(toy, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("seq2seq.attention_picture.write_png", lambda _, figure: drawn.extend(figure.axes))
    model = build_model("rnn_attention", model_config("rnn_attention", "toy", toy)).eval()
    words = toy.source_tokenizer
    draw_attention(tmp_path / "a.png", model, words.encode(["ich sehe das schaf"])[0], words, words)
    (panel,) = drawn
    image = torch.from_numpy(panel.images[0].get_array().data)
    close(image.sum(dim=1), torch.ones(len(image)))
    assert image.shape[1] == 4
