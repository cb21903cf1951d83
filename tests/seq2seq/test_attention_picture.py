"""The picture of the encoder-decoder weights: what is drawn, what it is drawn from, and what stands beside it."""

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from common import TransformerConfig, UserError
from seq2seq.attention_picture import draw_attention
from seq2seq.decoding import greedy
from seq2seq.model import Seq2Seq, Seq2SeqConfig
from seq2seq.tokenizer import Tokenizer
from tests.seq2seq.helpers import tiny_model

WORDS = Tokenizer.of_words([" ".join(f"w{i}" for i in range(13))])
IDS = WORDS.encode(["w1 w2 w3 w4 w5"])[0]
BPE = Tokenizer.of_bpe(["Ein Mann fährt Rad"] * 3, 280)
START, END = len(BPE) - 2, len(BPE) - 1
HEADS = tiny_model().config.layers.n_heads


class Drawn:
    """The matrices of the panels that were drawn last, their titles, and what stands beside them."""

    def __init__(self) -> None:
        self.panels, self.titles, self.columns, self.rows = [], [], [], []


@pytest.fixture
def drawn(monkeypatch):
    seen, savefig = Drawn(), Figure.savefig

    def watched(figure, *args, **kwargs):
        seen.__init__()
        for axes in (axes for axes in figure.axes if axes.images):
            seen.panels.append(torch.from_numpy(axes.images[0].get_array().data))
            seen.titles.append(axes.get_title())
            seen.columns = [text.get_text() for text in axes.get_xticklabels()]
            seen.rows = [text.get_text() for text in axes.get_yticklabels()]
        return savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", watched)
    return seen


def size(path) -> tuple[int, int]:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return picture.size


def test_a_row_a_written_token_and_a_column_a_source_word(drawn, tmp_path):
    model, path = tiny_model("all"), tmp_path / "attention.png"
    draw_attention(path, model, IDS, WORDS, WORDS)
    assert min(size(path)) > 100
    assert [file.name for file in tmp_path.iterdir()] == ["attention.png"]  # nothing half-written is left
    (written,) = greedy(model, torch.tensor([IDS]))
    assert written
    assert drawn.titles == ["mean of all heads", *(f"head {i + 1}" for i in range(HEADS))]
    assert (drawn.columns, drawn.rows) == (WORDS.names(IDS), [*WORDS.names(written), "E"])
    for panel in drawn.panels:
        assert panel.shape == (len(written) + 1, len(IDS))  # the end symbol looks somewhere too
        torch.testing.assert_close(panel.sum(dim=1), torch.ones(len(panel)))
    torch.testing.assert_close(drawn.panels[0], sum(drawn.panels[1:]) / HEADS)


@pytest.mark.parametrize("layer", [None, 1, 2, 3])
def test_the_weights_are_those_of_the_steps_that_wrote_the_tokens(drawn, tmp_path, layer):
    model, source, written = tiny_model("all"), torch.tensor([IDS]), [7, 2, 11, model_end()]
    draw_attention(tmp_path / "a.png", model, IDS, WORDS, WORDS, written, layer)
    panels = list(drawn.panels)
    with torch.no_grad():
        state = model.start(source)
        for t, token in enumerate([model.config.start_id, *written[:-1]]):
            _, weights = model.decode(
                torch.tensor([[token]]), state.memory, state.memory_mask, state.cache, need_weights=True
            )
            for head in range(HEADS):
                expected = weights[layer - 1 if layer else -1][1][0, head, 0]
                torch.testing.assert_close(panels[1 + head][t], expected, atol=1e-5, rtol=1e-4)
    draw_attention(tmp_path / "b.png", model, IDS, WORDS, WORDS, written, layer, head=2)
    assert drawn.titles == ["head 2"]
    torch.testing.assert_close(drawn.panels[0], panels[2])


def model_end() -> int:
    return tiny_model("all").config.end_id


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 0}, "layer=0 must lie between 1 and 3, the decoder's layers"),
        ({"layer": 4}, "layer=4 must lie between 1 and 3"),
        ({"head": 0}, "head=0 must lie between 1 and 2, the heads of a layer"),
        ({"head": 3}, "head=3 must lie between 1 and 2"),
    ],
)
def test_a_layer_or_head_that_is_not_there_is_one_line(tmp_path, choice, message):
    with pytest.raises(UserError, match=message):
        draw_attention(tmp_path / "a.png", tiny_model("all"), IDS, WORDS, WORDS, **choice)
    assert not list(tmp_path.iterdir())


def byte_model() -> Seq2Seq:
    torch.manual_seed(0)
    layers = TransformerConfig(d_model=14, n_heads=2, d_ff=19, dropout=0.0)
    return Seq2Seq(Seq2SeqConfig(len(BPE), len(BPE), START, END, 1, 1, layers=layers)).eval()


def test_pieces_of_bytes_are_readable_and_no_letter_is_missing(drawn, tmp_path):
    (ids,) = BPE.encode(["Ein fährt $\\frac$ 👍\n日"])
    half = next(i for i, name in enumerate(BPE.names(ids)) if name == "\\xf0")
    draw_attention(tmp_path / "a.png", byte_model(), ids[: half + 2], BPE, BPE, [*ids, END], head=1)
    assert drawn.columns == ["·Ein", "·fährt", "·", "$", "\\", *"frac$·", "\\xf0", "\\x9f"]
    assert drawn.rows == [*drawn.columns, "\\x91", "\\x8d", "\\n", "\\xe6", "\\x97", "\\xa5", "E"]


def test_dollars_are_no_formula(drawn, tmp_path):
    words = Tokenizer.of_words(["w1 $\\frac$ " + " ".join(f"w{i}" for i in range(2, 13))])
    draw_attention(tmp_path / "a.png", tiny_model("all"), [2, 3], words, words, [3, model_end()])
    assert (drawn.columns, drawn.rows) == (["w1", "$\\frac$"], ["$\\frac$", "E"])


def test_pictures_grow_with_the_sentence_and_a_long_one_names_fewer_tokens(drawn, tmp_path):
    model, path, sizes = byte_model(), tmp_path / "a.png", []
    for n in (1, 7, 60, 300):
        draw_attention(path, model, [5] * n, BPE, BPE, [*[6] * (n - 1), END], head=1)
        assert drawn.panels[0].shape == (n, n)
        assert len(drawn.rows) == len(drawn.columns) == min(n, 60)
        sizes.append(size(path))
    assert sizes[1][1] < sizes[2][1]
    assert min(sizes[2]) > 60 * 20  # pixels a token
    assert max(sizes[3]) < 2 * max(sizes[2])
