"""The toy world against German and English written by hand, and the promises of its split."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from seq2seq.toy import sentences, toy_pairs, toy_split

SEEDS = (0, 1, 2, 17)

# Written from knowledge of the two languages, not from the tables: every rule at least once.
HAND_WRITTEN = [
    # articles: three genders in the accusative, and the masculine subject that keeps its nominative
    ("ich mochte ein bier", "i want a beer"),
    ("du kaufst eine zeitung", "you buy a newspaper"),
    ("er sieht einen hund", "he sees a dog"),
    ("der mann kauft den kuchen", "the man buys the cake"),
    ("die frau sieht die katze", "the woman sees the cat"),
    ("wir haben das pferd", "we have the horse"),
    # conjugation: every verb, stem changes, and "sie" that only the verb tells apart
    ("du mochtest den saft", "you want the juice"),
    ("sie mochte den saft", "she wants the juice"),
    ("sie mochten den saft", "they want the juice"),
    ("ich sehe das schaf", "i see the sheep"),
    ("du siehst das schaf", "you see the sheep"),
    ("die eltern sehen das schaf", "the parents see the sheep"),
    ("ich habe den brief", "i have the letter"),
    ("du hast den brief", "you have the letter"),
    ("er hat den brief", "he has the letter"),
    ("ich trinke die limonade", "i drink the lemonade"),
    ("sie trinkt die limonade", "she drinks the lemonade"),
    ("ich esse die tomate", "i eat the tomato"),
    ("du isst die tomate", "you eat the tomato"),
    ("er isst die tomate", "he eats the tomato"),
    ("du liest den roman", "you read the novel"),
    ("die frau liest den roman", "the woman reads the novel"),
    ("wir lesen den roman", "we read the novel"),
    ("ich kaufe die suppe", "i buy the soup"),
    # the verb stays second when an adverb comes first, and comes first in a question
    ("heute mochte ich ein bier", "today i want a beer"),
    ("ich mochte heute ein bier", "i want a beer today"),
    ("heute abend trinkt die frau einen tee", "tonight the woman drinks a tea"),
    ("jetzt lesen sie das buch", "now they read the book"),
    ("mochtest du eine cola ?", "do you want a cola ?"),
    ("hat er den brief ?", "does he have the letter ?"),
    # negation
    ("ich mochte kein bier", "i do not want a beer"),
    ("sie isst keine suppe", "she does not eat a soup"),
    ("heute trinken wir keinen kaffee", "today we do not drink a coffee"),
    ("der mann kauft heute keine bucher", "the man does not buy any books today"),
    ("sehen die eltern keinen hund ?", "do the parents not see a dog ?"),
    # numbers and plurals, regular and not
    ("ich mochte zwei biere", "i want two beers"),
    ("er sieht drei mause", "he sees three mice"),
    ("wir haben zwei ganse", "we have two geese"),
    ("sie sehen die schafe", "they see the sheep"),
    ("du isst zwei kartoffeln", "you eat two potatoes"),
    ("ich kaufe drei apfel", "i buy three apples"),
    ("die frau isst die eier", "the woman eats the eggs"),
    # adjectives
    ("ich trinke ein kaltes bier", "i drink a cold beer"),
    ("er isst eine kalte suppe", "he eats a cold soup"),
    ("sie mochte einen kalten kaffee", "she wants a cold coffee"),
    ("wir sehen das kleine pferd", "we see the small horse"),
    ("wir sehen den kleinen hund", "we see the small dog"),
    ("wir sehen die kleine maus", "we see the small mouse"),
    ("wir sehen die kleinen pferde", "we see the small horses"),
    ("du trinkst zwei kalte biere", "you drink two cold beers"),
    ("ich habe keine grossen kartoffeln", "i do not have any big potatoes"),
    # a or an: the next word decides
    ("ich mochte einen apfel", "i want an apple"),
    ("ich mochte einen roten apfel", "i want a red apple"),
    ("er kauft ein ei", "he buys an egg"),
    ("er liest kein altes buch", "he does not read an old book"),
    ("wir essen keine orange", "we do not eat an orange"),
]

ENGLISH_VERBS = "want wants, see sees, buy buys, have has, drink drinks, eat eats, read reads"
ENGLISH_NOUNS = (
    "beer beers, coffee coffees, tea teas, juice juices, lemonade lemonades, cola colas, apple apples, egg eggs, "
    "orange oranges, soup soups, cake cakes, potato potatoes, tomato tomatoes, roll rolls, dog dogs, cat cats, "
    "mouse mice, goose geese, sheep, horse horses, book books, newspaper newspapers, letter letters, novel novels"
)


def lemmas(table: str) -> dict[str, str]:
    return {form: entry.split()[0] for entry in table.split(", ") for form in entry.split()}


VERB_LEMMA, NOUN_LEMMA = lemmas(ENGLISH_VERBS), lemmas(ENGLISH_NOUNS)


def combination(english: str) -> tuple[str, str]:
    """The (verb, noun) of a sentence, read off its words alone."""
    words = english.split()
    (verb,) = (VERB_LEMMA[word] for word in words if word in VERB_LEMMA)
    (noun,) = (NOUN_LEMMA[word] for word in words if word in NOUN_LEMMA)
    return verb, noun


def vocabulary(pairs: list[tuple[str, str]], side: int) -> Counter[str]:
    return Counter(word for pair in pairs for word in pair[side].split())


@pytest.fixture(scope="module")
def grammar() -> dict[str, str]:
    """Every sentence of the grammar, not only the ones that the data set keeps."""
    everything = [(german, english) for _, german, english in sentences(step=1)]
    translation = dict(everything)
    assert len(translation) == len(everything), "a German sentence has two derivations"
    return translation


@pytest.mark.parametrize(("german", "english"), HAND_WRITTEN)
def test_grammar_agrees_with_hand_written_sentences(grammar, german, english):
    assert grammar.get(german) == english


@pytest.mark.parametrize(
    "german",
    [
        "ich mochte einen bier",
        "ich mochten ein bier",
        "heute ich mochte ein bier",
        "ich trinke eine suppe",
        "du isst einen hund",
        "er liest ein ei",
        "ich mochte ein kalte bier",
        "ich mochte zwei bier",
    ],
)
def test_grammar_leaves_out_what_is_wrong(grammar, german):
    assert german not in grammar


def test_pairs_are_a_function_of_the_right_size():
    pairs = toy_pairs()
    assert 5_000 <= len(pairs) <= 12_000
    assert len({german for german, _ in pairs}) == len(pairs)
    assert pairs == toy_pairs()


@pytest.mark.parametrize("side", [0, 1])
def test_sentences_are_short_plain_and_of_few_words(side):
    for pair in toy_pairs():
        sentence = pair[side]
        assert sentence == " ".join(sentence.split())
        assert all(word == "?" or (word.isascii() and word.isalpha() and word.islower()) for word in sentence.split())
        assert 3 <= len(sentence.split()) <= 10
    assert 80 <= len(vocabulary(toy_pairs(), side)) <= 130


@pytest.mark.parametrize("seed", SEEDS)
def test_split_is_a_partition_with_a_tenth_held_out(seed):
    split = toy_split(seed)
    assert list(split) == ["train", "valid", "test"]
    assert sorted(pair for part in split.values() for pair in part) == sorted(toy_pairs())
    assert ("ich mochte ein bier", "i want a beer") in split["train"]
    n_pairs = len(toy_pairs())
    assert 0.08 <= (len(split["valid"]) + len(split["test"])) / n_pairs <= 0.12
    assert min(len(split["valid"]), len(split["test"])) >= 0.04 * n_pairs


@pytest.mark.parametrize("seed", SEEDS)
def test_held_out_combinations_occur_nowhere_else(seed):
    found = {name: {combination(english) for _, english in part} for name, part in toy_split(seed).items()}
    assert len(found["valid"]) == len(found["test"]) == 6
    assert not found["valid"] & found["train"]
    assert not found["test"] & found["train"]
    assert not found["valid"] & found["test"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", [0, 1])
def test_every_held_out_word_is_frequent_in_training(seed, side):
    split = toy_split(seed)
    train = vocabulary(split["train"], side)
    for word in vocabulary(split["valid"] + split["test"], side):
        assert train[word] >= 20, word


def test_four_verbs_take_every_noun_and_three_their_own_kind():
    objects = Counter(verb for verb, _ in {combination(english) for _, english in toy_pairs()})
    assert objects == {"want": 24, "see": 24, "buy": 24, "have": 24, "drink": 6, "eat": 8, "read": 4}


def test_seed_decides_what_is_held_out():
    held_out = [frozenset(combination(english) for _, english in toy_split(seed)["test"]) for seed in SEEDS]
    assert len(set(held_out)) == len(SEEDS)


def test_split_does_not_depend_on_the_hash_seed():
    program = "from seq2seq.toy import toy_split; print(toy_split(3))"
    root = Path(__file__).parents[2]
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # than this process has
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": str(root)}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == str(toy_split(3))
