"""The toy task as the paper's base model: one pair, every shape, trained by the command until it is known by heart."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from common import ConvFeedForward, FeedForward
from seq2seq.batches import encode_pairs
from seq2seq.data import CorpusOptions, PairData, load_data
from seq2seq.decoding import greedy
from seq2seq.model import Seq2Seq
from seq2seq.train import main as train
from seq2seq.translate import main as translate
from seq2seq.weights import load_seq2seq
from tests.seq2seq.helpers import run_main


@pytest.fixture(scope="module")
def weights():
    """The weights of a short run; its folder, of 700 MB, is not left behind."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        out = Path(folder) / "run"
        arguments = ["--preset", "seed", "--device", "cpu", "--epochs", "24", "--evaluate-every", "24", "--out", out]
        patch.setattr("sys.argv", ["train", *map(str, arguments)])
        train()
        yield out / "best.safetensors"


@pytest.fixture(scope="module")
def model(weights) -> Seq2Seq:
    model = load_seq2seq(weights)[0]
    assert isinstance(model, Seq2Seq)
    return model


@pytest.fixture(scope="module")
def data() -> PairData:
    return load_data(["seed"], Path(), CorpusOptions())


@pytest.fixture(scope="module")
def batch(data) -> tuple[Tensor, Tensor]:
    """Encoder input, and start + labels + end."""
    return encode_pairs(data.train, data).batch(torch.tensor([0]))


def shapes(model: nn.Module, run) -> dict[str, tuple[list[tuple[int, ...]], tuple[int, ...]]]:
    """What goes into and comes out of each module: name -> (shapes of its tensors, shape of its output)."""
    found = {}

    def watch(name):
        def hook(_, inputs, output):
            first = output[0] if isinstance(output, tuple) else output
            found[name] = ([tuple(x.shape) for x in inputs if isinstance(x, Tensor)], tuple(first.shape))

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules()]
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return found


def test_vocabularies_and_ids(data, batch):
    source, target = batch
    assert data.source_tokenizer.names(range(5)) == ["P", "ich", "mochte", "ein", "bier"]
    assert data.target_tokenizer.names(range(7)) == ["P", "i", "want", "a", "beer", "S", "E"]
    assert data.source_tokenizer.names(source[0].tolist()) == ["ich", "mochte", "ein", "bier", "P"]
    assert data.target_tokenizer.names(target[0, :-1].tolist()) == ["S", "i", "want", "a", "beer"]
    assert data.target_tokenizer.names(target[0, 1:].tolist()) == ["i", "want", "a", "beer", "E"]
    assert source.shape == target[:, :-1].shape == target[:, 1:].shape == (1, 5)


def test_size(model):
    config = model.config
    assert (config.source_vocabulary, config.target_vocabulary, config.tie) == (5, 7, "none")
    assert (config.layers.d_model, config.layers.n_heads, config.layers.d_ff) == (512, 8, 2048)
    assert config.layers.d_model // config.layers.n_heads == 64
    assert len(model.encoder.layers) == len(model.decoder.layers) == 6
    assert not config.layers.norm_first
    assert model.source_embedding.weight.shape == (5, 512)
    assert model.target_embedding.weight.shape == (7, 512)


def test_every_shape_on_the_way(model, batch):
    source, target = batch
    found = shapes(model, lambda: model(source, target[:, :-1]))
    wide, inner = (1, 5, 512), (1, 5, 2048)
    assert found["source_embedding"] == ([(1, 5)], wide)
    assert found["target_embedding"] == ([(1, 5)], wide)
    assert found["positions"] == ([wide, (1, 5)], wide)
    for i in range(6):
        for layer in (f"encoder.layers.{i}", f"decoder.layers.{i}"):
            assert found[layer][1] == wide
            assert found[f"{layer}.self_attention"] == ([wide], wide)
            assert found[f"{layer}.feedforward.inner"] == ([wide], inner)
            assert found[f"{layer}.feedforward.outer"] == ([inner], wide)
        assert found[f"decoder.layers.{i}.cross_attention"] == ([wide, wide], wide)
    assert model.projection is not None
    assert model.projection.weight.shape == (7, 512)
    assert model(source, target[:, :-1]).shape == (1, 5, 7)
    _, weights = model.decode(target[:, :-1], *model.encode(source), need_weights=True)
    assert [(tuple(own.shape), tuple(cross.shape)) for own, cross in weights] == [((1, 8, 5, 5), (1, 8, 5, 5))] * 6


def test_embedding_and_position_are_of_one_width_and_added(model, batch):
    source, _ = batch
    with torch.no_grad():
        embedded = model.source_embedding(source) * 512**0.5
        positions = model.positions(embedded, 0, source != 0)
        assert embedded.shape == positions.shape == (1, 5, 512)
        seen = shapes(model, lambda: model.encode(source))["dropout"]
        assert seen == ([(1, 5, 512)], (1, 5, 512))
        table = model.positions.table
        # Words take rows 1 to 4, the padding behind them row 0.
        assert torch.equal(positions[0], table[[1, 2, 3, 4, 0]])
        assert table[0, 0::2].abs().max() == 0.0
        assert table[0, 1::2].min() == 1.0
    assert not [name for name in model.state_dict() if "position" in name]
    assert not list(model.positions.parameters())


def test_the_feedforward_network_is_two_convolutions_of_width_one(model):
    linear = model.encoder.layers[0].feedforward
    assert isinstance(linear, FeedForward)
    conv = ConvFeedForward(512, 2048)
    conv.load_state_dict({n: w.unsqueeze(-1) if w.dim() == 2 else w for n, w in linear.state_dict().items()})
    assert conv.inner.weight.shape == (2048, 512, 1)
    assert conv.outer.weight.shape == (512, 2048, 1)
    x = torch.randn(1, 5, 512)
    found = shapes(conv.eval(), lambda: torch.testing.assert_close(conv(x), linear(x), atol=1e-4, rtol=1e-4))
    assert found["inner"] == ([(1, 512, 5)], (1, 2048, 5))
    assert found["outer"] == ([(1, 2048, 5)], (1, 512, 5))


def test_padding_of_the_source_is_never_looked_at(model, batch):
    source, target = batch
    _, weights = model.decode(target[:, :-1], *model.encode(source), need_weights=True)
    for own, cross in weights:
        assert cross[..., 4].abs().max() == 0.0
        assert own.triu(1).abs().max() == 0.0


def test_greedy_decoding_gives_the_labels(model, batch):
    source, target = batch
    (ids,) = greedy(model, source)
    assert [*ids, model.config.end_id] == target[0, 1:].tolist()


def test_the_command_translates_and_names_an_unknown_word(weights, capsys):
    ran = run_main(translate, [weights], capsys, b"ich mochte ein bier\n")
    assert (ran.code, ran.out) == (0, "i want a beer\n")
    ran = run_main(translate, [weights], capsys, b"ich mochte wein\n")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("error: unknown word 'wein'; this model knows ich, mochte, ein, bier\n")


def test_all_positions_at_once_predict_the_labels(model, batch):
    source, target = batch
    with torch.no_grad():
        assert torch.equal(model(source, target[:, :-1]).argmax(dim=-1), target[:, 1:])
