"""The translator: weight sharing, what a position may see, padding, steps through the cache."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from common import UserError
from seq2seq.model import SIZES, Seq2Seq, Seq2SeqConfig
from seq2seq.tokenizer import PAD_ID
from seq2seq.translation_model import TIES
from tests.seq2seq.helpers import JOINT, SOURCE, TARGET, sources, tiny_config, tiny_model


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_embeddings_have_length_one_and_enter_as_the_paper_says():
    """N(0, 1 / d), so about length 1; multiplied by sqrt(d) they are as loud as the positions (3.4)."""
    model = tiny_model(scale=1.0)
    layers = replace(model.config.layers, d_model=62)
    model = Seq2Seq(replace(model.config, source_vocabulary=997, layers=layers))
    weight = model.source_embedding.weight
    assert weight.square().sum(dim=1).mean().item() == pytest.approx(1.0, rel=0.03)
    assert abs(weight.mean().item()) < 0.003
    kurtosis = (weight**4).mean() / weight.square().mean() ** 2
    assert kurtosis.item() == pytest.approx(3.0, rel=0.05)  # of a uniform distribution 1.8


def by_hand(tie: str) -> int:
    """Parameters of the tiny model, counted from the paper's description."""
    d, f = 14, 19
    attention, feedforward, norm = 4 * (d * d + d), d * f + f + f * d + d, 2 * d
    encoder = 2 * (attention + feedforward + 2 * norm) + norm
    decoder = 3 * (2 * attention + feedforward + 3 * norm) + norm
    tables = {
        "none": SOURCE * d + TARGET * d + TARGET * d,
        "embeddings": JOINT * d + JOINT * d,
        "decoder_output": SOURCE * d + TARGET * d,
        "all": JOINT * d,
    }
    return encoder + decoder + tables[tie]


@pytest.mark.parametrize("tie", TIES)
def test_parameter_count_by_hand(tie):
    assert parameters(tiny_model(tie)) == by_hand(tie)


def test_named_sizes():
    words = {"toy": 200, "tiny": 8000, "small": 8000, "base": 37000}
    counts = {}
    for name, (n_layers, layers) in SIZES.items():
        with torch.device("meta"):
            config = Seq2SeqConfig(words[name], words[name], 1, 2, n_layers, n_layers, "all", layers=layers)
            counts[name] = parameters(Seq2Seq(config))
    assert 2.2e6 < counts["tiny"] < 2.7e6
    assert counts["small"] < 9.1e6
    assert 60e6 < counts["base"] < 66e6  # 65 million in the paper, table 3


@pytest.mark.parametrize("tie", TIES)
def test_what_is_tied_is_one_tensor_and_learns_from_both_uses(tie):
    model = tiny_model(tie).train()
    joint, output = tie in ("embeddings", "all"), tie in ("decoder_output", "all")
    assert (model.source_embedding.weight.data_ptr() == model.target_embedding.weight.data_ptr()) == joint
    assert (model.projection is None) == output
    source, target = torch.tensor([[3, 4]]), torch.tensor([[5, 6]])
    # A loss on a word that stands in no input reaches its row through the projection alone.
    model(source, target)[:, :, 9].sum().backward()
    gradient = {
        name: getattr(model, f"{name}_embedding").weight.grad.abs().sum(dim=1) > 0 for name in ("source", "target")
    }
    assert gradient["target"][5]
    assert gradient["target"][6]
    assert gradient["target"][9] == output
    assert gradient["target"][3] == gradient["target"][4] == joint
    assert gradient["source"][3]
    assert gradient["source"][9] == (tie == "all")


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match="unknown tie 'both'; choose one of none, embeddings, decoder_output, all"):
        tiny_config("both")
    with pytest.raises(UserError, match="needs one joint vocabulary, not 5 source and 7 target"):
        Seq2SeqConfig(5, 7, 5, 6, tie="all")


def test_two_passes_of_a_batch_differ_by_their_dropout_alone():
    model = tiny_model(dropout=0.5)
    source, target = sources([5, 3]), sources([6, 4], seed=2, vocabulary=TARGET)
    batch = source, target[:, :-1], target[:, 1:], 0.1
    once, count = model.eval()(*batch)
    twice, again = model(*batch, r_drop=3.0)
    torch.testing.assert_close(twice, once)
    assert int(count) == int(again) == int((target[:, 1:] != 0).sum())
    model.train()
    torch.manual_seed(0)
    near, _ = model(*batch, r_drop=1e-9)
    torch.manual_seed(0)
    far, _ = model(*batch, r_drop=3.0)
    torch.manual_seed(0)
    p, q = model(source.repeat(2, 1), target[:, :-1].repeat(2, 1)).log_softmax(-1).chunk(2)
    distance = ((p.exp() - q.exp()) * (p - q)).sum(-1)[target[:, 1:] != 0].sum()
    assert distance > 0.1
    torch.testing.assert_close(far - near, 3 / 4 * distance, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_position_sees_only_what_is_written_before_it(norm_first):
    model = tiny_model(norm_first=norm_first)
    source, target = sources([5, 5]), sources([7, 7], seed=2, vocabulary=TARGET)
    with torch.no_grad():
        before = model(source, target)
        for i in range(1, 7):
            changed = target.clone()
            changed[:, i] = 1 + (changed[:, i] % (TARGET - 1))
            after = model(source, changed)
            assert torch.equal(after[:, :i], before[:, :i])
            assert not torch.allclose(after[:, i], before[:, i], atol=1e-3)


@pytest.mark.parametrize("chunks", [[1] * 6, [3, 1, 2], [6]])
@pytest.mark.parametrize("padding_row", [True, False])
def test_all_positions_at_once_equal_steps_through_the_cache(chunks, padding_row):
    model = tiny_model(padding_row=padding_row)
    source, target = sources([5, 3, 1]), sources([6, 6, 6], seed=2, vocabulary=TARGET)
    with torch.no_grad():
        at_once = model(source, target)
        state = model.start(source)
        parts = []
        for part in target.split(chunks, dim=1):
            x, _ = model.decode(part, state.memory, state.memory_mask, state.cache)
            parts.append(model.project(x))
        torch.testing.assert_close(torch.cat(parts, dim=1), at_once, atol=1e-5, rtol=1e-5)
        state = model.start(source)
        steps = [model.step(target[:, t], state) for t in range(6)]
        torch.testing.assert_close(torch.stack(steps, dim=1), at_once, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padding_row", [True, False])
def test_padding_of_source_and_target_changes_nothing(padding_row):
    model = tiny_model(padding_row=padding_row)
    source, target = sources([5, 5]), sources([3, 3], seed=2, vocabulary=TARGET)
    more = torch.full((2, 4), PAD_ID)
    with torch.no_grad():
        alone = model(source, target)
        padded = model(torch.cat((source, more), dim=1), torch.cat((target, more), dim=1))
    torch.testing.assert_close(padded[:, :3], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tie", TIES)
def test_loss_of_the_model_is_that_of_its_logits(tie):
    model = tiny_model(tie)
    source, target = sources([5, 3, 2]), sources([4, 4, 4], seed=2, vocabulary=TARGET)
    end = model.config.end_id
    labels = torch.tensor([[4, 5, 6, end], [4, end, 0, 0], [end, 0, 0, 0]])
    loss, count = model(source, target, labels, 0.1)
    assert int(count) == 4 + 2 + 1
    expected = F.cross_entropy(
        model(source, target).flatten(0, 1), labels.flatten(), ignore_index=PAD_ID, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()
    ours = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    expected.backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(ours[name], p.grad, atol=1e-5, rtol=1e-5)
