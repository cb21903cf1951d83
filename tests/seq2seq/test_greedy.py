"""Greedy decoding: through the cache as by full passes, alone as in a batch, and always an end."""

import pytest
import torch
from torch import Tensor

from common import UserError
from seq2seq.decoding import decode_lines, encode_texts, greedy, translate
from seq2seq.model import Seq2Seq
from seq2seq.search import Search, length_limits
from seq2seq.tokenizer import PAD_ID, Tokenizer
from tests.seq2seq.helpers import sources, tiny_model

LENGTHS = [5, 1, 7, 3, 3, 2, 6]


@torch.no_grad()
def by_full_passes(model: Seq2Seq, source: Tensor, limit: int) -> list[int]:
    """One sentence (S,), every step a whole pass over all that was written."""
    written = [model.config.start_id]
    while len(written) <= limit:
        logits = model(source.unsqueeze(0), torch.tensor([written]))[0, -1]
        logits[[PAD_ID, model.config.start_id]] = float("-inf")
        token = int(logits.argmax())
        if token == model.config.end_id:
            break
        written.append(token)
    return written[1:]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cache_gives_what_full_passes_give(seed):
    model, source = tiny_model(seed=seed), sources(LENGTHS)
    found = greedy(model, source)
    expected = [by_full_passes(model, row[:n], 2 * n + 10) for row, n in zip(source, LENGTHS, strict=True)]
    assert found == expected
    assert len({len(row) for row in found}) > 1  # they end at different steps


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_alone_in_any_batch_and_in_any_order(seed, size):
    model, source = tiny_model(seed=seed), sources(LENGTHS)
    together = greedy(model, source)
    in_batches = [row for batch in source.split(size) for row in greedy(model, batch)]
    assert in_batches == together
    assert greedy(model, source.flip(0)) == together[::-1]


def test_finished_sentences_leave_the_batch(monkeypatch):
    model, source = tiny_model(seed=1), sources(LENGTHS)
    sizes = []
    step = Seq2Seq.step

    def watched(self, tokens, state):
        sizes.append(len(tokens))
        assert len(state.memory) == len(state.memory_mask) == len(tokens)
        return step(self, tokens, state)

    monkeypatch.setattr(Seq2Seq, "step", watched)
    found = greedy(model, source)
    # A sentence of n words takes part in n + 1 steps, one of its own limit in that many.
    steps = [min(len(row) + 1, 2 * n + 10) for row, n in zip(found, LENGTHS, strict=True)]
    assert sizes == [sum(n > t for n in steps) for t in range(max(steps))]


def test_it_ends_at_the_longest_length_where_no_end_comes():
    model, source = tiny_model(), sources(LENGTHS)
    project, end = model.project, torch.tensor([model.config.end_id])
    model.project = lambda x: project(x).index_fill(-1, end, float("-inf"))  # pyright: ignore[reportAttributeAccessIssue]
    assert [len(row) for row in greedy(model, source)] == [2 * n + 10 for n in LENGTHS]
    assert [len(row) for row in greedy(model, source, max_length=3)] == [3] * len(LENGTHS)
    assert [len(row) for row in greedy(model, source, max_length_factor=3.5)] == [7 * n // 2 + 10 for n in LENGTHS]
    assert greedy(model, source, max_length=0) == [[]] * len(LENGTHS)


def test_translate_keeps_order_and_blank_lines():
    words = [f"w{i}" for i in range(13)]
    tokenizer = Tokenizer.of_words([" ".join(words)])
    model = tiny_model("all")
    assert len(tokenizer) == model.config.target_vocabulary
    texts = ["w1 w2 w3", "", "w4", "   ", "w5 w6 w7 w8 w9", "\t", "w2"]
    together = translate(model, texts, tokenizer, tokenizer)
    assert together == [translate(model, [text], tokenizer, tokenizer)[0] for text in texts]
    assert [bool(line) for line in together] == [bool(text.strip()) for text in texts]
    assert translate(model, [], tokenizer, tokenizer) == []


def test_blanks_around_a_text_make_no_difference():
    tokenizer = Tokenizer.of_bpe(["a b c"], 259)
    expected = tokenizer.encode(["a b", "c", ""])
    assert encode_texts(["a b", "c", ""], tokenizer) == expected
    assert encode_texts([" a b\t", "c \r", " \u3000 "], tokenizer) == expected


def test_a_line_feed_that_a_model_writes_ends_no_line():
    tokenizer = Tokenizer.of_bpe(["a b"], 259)
    ids = tokenizer.encode(["two\nlines\u2028or one\n", "one"])
    assert decode_lines(ids, tokenizer) == ["two lines\u2028or one ", "one"]


def test_blank_lines_never_reach_the_model(monkeypatch):
    tokenizer = Tokenizer.of_words([" ".join(f"w{i}" for i in range(13))])
    monkeypatch.setattr(Seq2Seq, "start", lambda *_: pytest.fail("a blank line reached the model"))
    assert translate(tiny_model("all"), ["", "  ", "\t"], tokenizer, tokenizer) == ["", "", ""]


@pytest.mark.parametrize("factor", [1e30, 2.0**63, 99_999.5])
def test_a_limit_beyond_all_that_is_held_is_what_is_held(factor):
    source = torch.tensor([[3, 4, 0], [5, 0, 0], [6, 7, 8]])
    assert length_limits(source, max_length_factor=factor).tolist() == [
        min(100_000, int(factor * n)) + 10 for n in (2, 1, 3)
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_length": 10**12}, "max_length=1000000000000 must be at most 100,000"),
        ({"max_length": 10**23}, "must be at most 100,000"),
        ({"min_length": 10**23}, "must be 0 or more, and below 100,000"),
    ],
)
def test_lengths_beyond_all_that_is_held_are_refused(options, told):
    with pytest.raises(UserError, match=told):
        Search(**options)
