"""BLEU counts what a language's words are made of, whatever the files or their owner call it."""

import pytest

from seq2seq.bleu_tokens import bleu_tokenizer
from seq2seq.comparison import bleu_by_length, paired_bootstrap
from seq2seq.scores import all_scores, raw_scores
from seq2seq.task import translation_figures

TEXTS = {  # reference, a translation with one word changed
    "zh": ("一个男人骑着自行车穿过街道。", "一个女人骑着自行车穿过街道。"),
    "ja": ("男の人が自転車に乗って通りを走っている。", "女の人が自転車に乗って通りを走っている。"),
    "th": ("ผู้ชายขี่จักรยานไปตามถนน", "ผู้หญิงขี่จักรยานไปตามถนน"),
    "km": ("បុរសម្នាក់ជិះកង់តាមផ្លូវ", "ស្ត្រីម្នាក់ជិះកង់តាមផ្លូវ"),
    "ko": ("한남자가자전거를타고거리를지나간다", "한여자가자전거를타고거리를지나간다"),
    "lo": ("ຜູ້ຊາຍຂີ່ລົດຖີບໄປຕາມຖະໜົນ", "ຜູ້ຍິງຂີ່ລົດຖີບໄປຕາມຖະໜົນ"),
    "my": ("လူတစ်ယောက်သည်လမ်းပေါ်တွင်စက်ဘီးစီးနေသည်", "မိန်းမတစ်ယောက်သည်လမ်းပေါ်တွင်စက်ဘီးစီးနေသည်"),
    "bo": ("མི་ཞིག་རྐང་འཁོར་བཞོན་ནས་འགྲོ།", "བུད་ཞིག་རྐང་འཁོར་བཞོན་ནས་འགྲོ།"),
}


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("known", [True, False])
def test_a_good_translation_has_points_in_every_way_of_scoring(language, known):
    references, hypotheses = ([pair] * 3 for pair in TEXTS[language])
    name = language if known else "own"
    tokens = "zh" if language == "zh" else "char"
    found = raw_scores(hypotheses, references, name)
    assert 40.0 < found["bleu"] < 100.0
    assert f"tok:{tokens}" in found["bleu_signature"]
    assert translation_figures(hypotheses, references, name)["bleu"] == pytest.approx(found["bleu"])
    scores = all_scores(hypotheses, references, name, None)
    assert (scores["cased"], scores["lc_tok"]) == (found, None)
    compared = paired_bootstrap(hypotheses, references, references, ("one", "two"), name)
    assert compared["bleu"]["score"] == pytest.approx(found["bleu"])
    assert f"tok:{tokens}" in compared["bleu"]["signature"]
    bins = bleu_by_length(references, hypotheses, references, (name, name))
    assert [row["bleu"] for row in bins if row["sentences"]] == [pytest.approx(found["bleu"])]
    assert bins[0]["sentences"] == 0  # no text of those is five words long or less


@pytest.mark.parametrize(
    ("language", "text", "tokenizer"),
    [
        ("en", "a man", "13a"),
        ("de", "ein Mann", "13a"),
        (None, "человек едет", "13a"),
        ("ar", "رجل يركب", "13a"),
        ("hi", "एक आदमी", "13a"),
        ("own", "", "13a"),
        ("own", "a song named 北京, in English", "13a"),
        ("zh-CN", "ok", "zh"),
        ("zh_Hant", "ok", "zh"),
        ("zho", "ok", "zh"),
        ("jpn", "ok", "char"),
        ("en", "一个男人", "zh"),  # the default of --target with files of another language
        ("own", "東京都は日本の首都である", "char"),
        ("own", "ラーメン", "char"),
        ("own", "iPhone 手机在北京的价格下降了", "zh"),
    ],
)
def test_the_language_decides_and_else_the_script(language, text, tokenizer):
    assert bleu_tokenizer(language, [text]) == tokenizer
