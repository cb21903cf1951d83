"""The lexicon: IBM model 1 against published figures and plain loops, and decoding with it against masked logits."""

import json
from collections import defaultdict

import pytest
import torch

from common import UserError
from common.training.checkpoint import save_weights
from seq2seq.decoding import best_ids, search_ids
from seq2seq.evaluate import main as evaluate
from seq2seq.lexicon import Lexicon, load_lexicon, save_lexicon
from seq2seq.search import GREEDY, Search
from seq2seq.shortlist import learn_lexicon, token_pairs, translation_table
from seq2seq.shortlist import main as shortlist
from seq2seq.tokenizer import Tokenizer
from seq2seq.translate import main as translate
from seq2seq.translation_model import for_inference
from tests.seq2seq.helpers import JOINT, SOURCE, TARGET, run_main, sources, tiny_model

# das 1, Haus 2, Buch 3, ein 4; the 1, house 2, book 3, a 4
BOOKS = [[1, 2], [1, 3], [4, 3]], [[1, 2], [1, 3], [4, 3]]
LENGTHS = [5, 1, 7, 3, 3, 2, 6]


def table(*arguments) -> dict[tuple[int, int], float]:
    return {(s, t): p for s, t, p in zip(*(column.tolist() for column in translation_table(*arguments)), strict=True)}


def test_every_source_token_stands_beside_every_target_token():
    source, target, token = token_pairs([[5, 7], [3], [2, 2, 9]], [[1], [4, 6], [8, 8]])
    expected = [(5, 1, 0), (7, 1, 0), (3, 4, 1), (3, 6, 2), *((s, 8, n) for n in (3, 4) for s in (2, 2, 9))]
    assert list(zip(source.tolist(), target.tolist(), token.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [  # by hand; Koehn 2010, figure 4.4, has the same
        (1, {(1, 1): 1 / 2, (1, 3): 1 / 4, (1, 2): 1 / 4, (3, 3): 1 / 2, (4, 3): 1 / 2, (2, 2): 1 / 2}),
        (2, {(1, 1): 7 / 11, (1, 3): 2 / 11, (1, 2): 2 / 11, (3, 3): 7 / 11, (4, 3): 3 / 7, (2, 2): 4 / 7}),
    ],
)
def test_the_book_and_the_house(iterations, expected):
    found = table(*BOOKS, iterations)
    assert len(found) == 3 + 2 + 3 + 2
    assert {pair: found[pair] for pair in expected} == pytest.approx(expected, abs=1e-9)


def test_model_1_by_plain_loops():
    random = torch.Generator().manual_seed(4)
    corpus = [
        [
            torch.randint(1, 6, (int(n),), generator=random).tolist()
            for n in torch.randint(1, 5, (11,), generator=random)
        ]
        for _ in range(2)
    ]
    p = defaultdict(lambda: 1.0)
    for _ in range(5):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in zip(*corpus, strict=True):
            for t in target:
                norm = sum(p[s, t] for s in source)
                for s in source:
                    counts[s, t] += p[s, t] / norm
                    totals[s] += p[s, t] / norm
        p.update({pair: count / totals[pair[0]] for pair, count in counts.items()})
    assert table(*corpus) == pytest.approx(dict(p), abs=1e-9)


def test_candidates_are_the_likeliest_and_the_frequent_always_there():
    lexicon = learn_lexicon(*BOOKS, vocabulary=7, n_candidates=2, n_frequent=2)
    assert lexicon.candidates[[1, 3]].tolist() == [[1, 2], [3, 4]]  # as in that figure
    assert lexicon.candidates[[2, 4]].tolist() == [[2, 1], [4, 3]]
    assert lexicon.candidates[[0, 5, 6]].tolist() == [[0, 0]] * 3  # never seen
    assert lexicon.always.tolist() == [1, 3]
    assert lexicon.words(torch.tensor([[2, 5], [2, 0]]), start_id=8, end_id=9).tolist() == [0, 1, 2, 3, 8, 9]
    joint = learn_lexicon(*BOOKS, vocabulary=7, n_candidates=1, n_frequent=0, joint=True)
    assert joint.words(torch.tensor([[4, 6]]), start_id=8, end_id=9).tolist() == [0, 4, 6, 8, 9]  # 6 is copied


@pytest.mark.parametrize("tie", ["none", "all"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_lexicon_of_all_words_changes_nothing(tie, packed):
    model = tiny_model(tie, seed=1)
    model = for_inference(model) if packed else model
    ids = [[i for i in row if i] for row in sources(LENGTHS).tolist()]
    lexicon = Lexicon(torch.zeros((JOINT, 1), dtype=torch.int64), torch.arange(model.config.target_vocabulary))
    assert best_ids(model, ids, GREEDY, lexicon) == best_ids(model, ids, GREEDY)
    search = Search(beam=3, n_best=3)
    for row, other in zip(search_ids(model, ids, search, lexicon), search_ids(model, ids, search), strict=True):
        assert [one.ids for one in row] == [one.ids for one in other]
        assert [one.score for one in row] == pytest.approx([one.score for one in other], abs=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_other_words_are_as_if_forbidden(beam):
    model, source = tiny_model(seed=2), sources(LENGTHS)
    ids = [[i for i in row if i] for row in source.tolist()]
    candidates = torch.tensor([[0], *[[2 + i % 4] for i in range(SOURCE - 1)]])
    lexicon = Lexicon(candidates, torch.tensor([9]))
    found = best_ids(model, ids, Search(beam=beam), lexicon)
    allowed = lexicon.words(source, TARGET - 2, TARGET - 1)
    assert {i for row in found for i in row} <= set(allowed.tolist()) - {0, TARGET - 2, TARGET - 1}
    assert found != best_ids(model, ids, Search(beam=beam))
    forbidden = torch.ones(TARGET, dtype=torch.bool).index_fill(0, allowed, False)
    project = model.project
    model.project = lambda x: project(x).masked_fill(forbidden, float("-inf"))  # pyright: ignore[reportAttributeAccessIssue]
    assert found == best_ids(model, ids, Search(beam=beam))


def test_samples_are_refused():
    lexicon = Lexicon(torch.zeros((SOURCE, 1), dtype=torch.int64), torch.tensor([1]))
    with pytest.raises(UserError, match="sample does not go with shortlist"):
        search_ids(tiny_model(), [[1, 2]], Search(sample=True), lexicon)


def test_a_file_comes_back_and_belongs_to_its_vocabularies(tmp_path):
    path, words, others = tmp_path / "l", Tokenizer.of_words(["a b c"]), Tokenizer.of_words(["a b d"])
    save_lexicon(path, Lexicon(torch.tensor([[3, 1]] * len(words)), torch.tensor([2])), words, others)
    lexicon = load_lexicon(path, words, others)
    assert (lexicon.candidates.tolist(), lexicon.always.tolist()) == ([[3, 1]] * 7, [2])
    with pytest.raises(UserError, match="other vocabularies; make one with"):
        load_lexicon(path, others, words)
    save_weights(path, {}, {"kind": "vit"})
    with pytest.raises(UserError, match="takes a lexicon"):
        load_lexicon(path, words, others)


def test_the_commands(tmp_path, capsys):
    pairs, lexicon = tmp_path / "pairs.tsv", tmp_path / "lexicon.safetensors"
    pairs.write_text("Ein Mann fährt Fahrrad.\tA man rides a bike.\nEin Hund.\tA dog.\n" * 3, encoding="utf-8")
    made = run_main(shortlist, ["de-en", lexicon, "--data", pairs, "--candidates", 30, "--pairs", 5], capsys)
    assert made.code == 0, made.err
    assert "learnt from 5 pairs" in made.err
    sentence = "Ein Mann fährt Fahrrad.\n".encode()
    told = run_main(translate, ["de-en", "--shortlist", lexicon], capsys, sentence)
    assert told.out == "A man rides a bike.\n"
    sentence = b"Eine Frau liest.\n"
    assert "woman" in run_main(translate, ["de-en"], capsys, sentence).out
    assert "woman" not in run_main(translate, ["de-en", "--shortlist", lexicon], capsys, sentence).out
    told = run_main(evaluate, ["de-en", "--data", pairs, "--shortlist", lexicon], capsys)
    assert json.loads(told.out)["shortlist"] == str(lexicon)
    wrong = run_main(shortlist, ["de-en", lexicon, "--candidates", 0], capsys)
    assert wrong.code == 2
    assert "candidates=0 must be at least 1" in wrong.err
