"""The picture of the encoder-decoder weights: what is drawn, and what it is drawn from."""

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from seq2seq.attention_picture import draw_attention
from seq2seq.decoding import greedy
from seq2seq.tokenizer import Tokenizer
from tests.seq2seq.helpers import tiny_model

WORDS = Tokenizer.of_words([" ".join(f"w{i}" for i in range(13))])
TEXT = "w1 w2 w3 w4 w5"


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """The file of a drawing, and the matrices of its panels."""
    panels = []
    savefig = Figure.savefig

    def watched(figure, *args, **kwargs):
        panels.extend(axes.images[0].get_array() for axes in figure.axes if axes.images)
        return savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", watched)
    path = tmp_path / "attention.png"
    draw_attention(path, tiny_model("all"), TEXT, WORDS, WORDS)
    return path, panels


def test_it_is_a_picture(drawn):
    path, _ = drawn
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 100
    assert [file.name for file in path.parent.iterdir()] == ["attention.png"]  # nothing half-written is left


def test_a_row_a_written_token_and_a_column_a_source_word(drawn):
    model = tiny_model("all")
    (written,) = greedy(model, torch.tensor(WORDS.encode([TEXT])))
    assert written
    _, panels = drawn
    assert len(panels) == 1 + model.config.layers.n_heads
    for panel in panels:
        assert panel.shape == (len(written) + 1, len(TEXT.split()))  # the end symbol looks somewhere too
        assert abs(panel.sum(axis=1) - 1.0).max() < 1e-5
    assert abs(panels[0] - sum(panels[1:]) / model.config.layers.n_heads).max() < 1e-6


def test_the_weights_are_those_of_the_steps_that_wrote_the_tokens(drawn):
    model = tiny_model("all")
    source = torch.tensor(WORDS.encode([TEXT]))
    (written,) = greedy(model, source)
    with torch.no_grad():
        state = model.start(source)
        for t, token in enumerate([model.config.start_id, *written]):
            _, weights = model.decode(
                torch.tensor([[token]]), state.memory, state.memory_mask, state.cache, need_weights=True
            )
            _, panels = drawn
            for head in range(model.config.layers.n_heads):
                row = torch.from_numpy(panels[1 + head][t].data)
                torch.testing.assert_close(row, weights[-1][1][0, head, 0], atol=1e-5, rtol=1e-4)
