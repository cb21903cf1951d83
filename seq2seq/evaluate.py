"""``python -m seq2seq.evaluate WEIGHTS --data multi30k --split SPLIT``: how good a translator is on unseen pairs."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from common import UserError
from common.runtime.threads import use_threads
from common.training.checkpoint import check_place, write_atomically
from common.training.cli import data_folder, print_json, read_options
from common.training.command import run_command
from common.training.examples import seen_count, seen_note
from common.training.machine import inference_precision
from common.training.run import name_note, say, weights_of
from common.training.step import choose_device
from seq2seq.comparison import bleu_by_length, comparison_table, length_table, paired_bootstrap
from seq2seq.data import DATASETS, Pair, named_data, own_files, pair_hashes
from seq2seq.decoding import best_ids, decode_lines, encode_texts, translate
from seq2seq.lexicon import load_lexicon
from seq2seq.multi30k import read_multi30k
from seq2seq.scores import all_scores
from seq2seq.search import LONGEST_SOURCE, Search
from seq2seq.text_files import read_lines, read_pairs
from seq2seq.translation_model import for_inference
from seq2seq.weights import SHIPPED, is_shipped, load_seq2seq

USUAL_SPLIT = {"multi30k": "test_2016_flickr"}
"""Of data sets whose test pairs are called otherwise than test."""


@dataclass(frozen=True)
class Options:
    """Translate pairs with a trained model and compare with their references: a table on stderr, JSON on stdout."""

    weights: tyro.conf.Positional[Path]
    """A run folder, its best.safetensors, or the name of weights that come with the program: de-en."""
    data: tuple[str, ...] = ("multi30k",)
    """multi30k or toy; or a source and a target file, or one of tab-separated pairs."""
    split: str | None = None
    """Of Multi30k: val, test_2016_flickr (where not given), test_2017_flickr, test_2017_mscoco, test_2018_flickr; of
    toy: valid, test (where not given). Your own pairs have none."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie or are downloaded to."""
    hypotheses: Path | None = None
    """Write the translations to this file, one a line."""
    against: Path | None = None
    """Compare with another system by paired bootstrap: its weights (.safetensors, or de-en), or its translations, one
    a line."""
    by_length: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Say BLEU by the number of words of the source too."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu."""
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Of the products on a CPU; auto: bf16 if it is faster on this processor, else fp32."""
    threads: int | None = None
    """CPU threads; default: OMP_NUM_THREADS, else the cores that are free for this process."""
    shortlist: Path | None = None
    """A lexicon made by seq2seq.shortlist: consider only words that may translate the source, which is faster."""
    cut: int = LONGEST_SOURCE
    """The most tokens of a source; of a longer one the rest is not translated, with a warning."""
    search: Search = field(default_factory=lambda: Search(beam=5))

    def __post_init__(self) -> None:
        if self.cut < 1:
            raise UserError(f"cut={self.cut} must be at least 1")


def pairs_to_translate(options: Options, languages: tuple[str, str]) -> tuple[list[Pair], list[str] | None]:
    """The pairs of the options, and the references as the data set publishes their tokens, if it does."""
    if options.data == ("multi30k",):
        assert options.split is not None
        published = options.data_dir / "multi30k" / "tok" / f"{options.split}.lc.norm.tok.{languages[1]}"
        pairs = read_multi30k(options.data_dir, options.split, *languages)
        return pairs, read_lines(published) if published.exists() else None
    if len(options.data) == 1 and options.data[0] in DATASETS:
        data = named_data(options.data[0], options.data_dir, languages)
        splits = {"valid": data.valid, "test": data.test}
        if options.split not in splits:
            raise UserError(f"unknown split {options.split!r}; choose valid or test")
        return list(splits[options.split]), None
    if options.split is not None:
        raise UserError(f"split={options.split} is of a data set, {' '.join(options.data)} has none; leave it out")
    pairs, dropped = read_pairs([Path(name) for name in options.data])
    if dropped:
        say(f"{dropped} pairs left out because a side was blank")
    return pairs, None


def other_system(options: Options, sources: Sequence[str], languages: tuple[str, str]) -> list[str]:
    """The translations of the system to compare with.

    Raises:
        ValueError: not as many lines as sources, or a model of other languages.
    """
    assert options.against is not None
    if options.against.suffix != ".safetensors" and not is_shipped(options.against):
        lines = read_lines(options.against)
        if len(lines) != len(sources):
            raise UserError(
                f"{options.against} has {len(lines)} lines, but there are {len(sources)} pairs; "
                "line n must be the translation of pair n, pairs with a blank side left out"
            )
        return [line.strip() for line in lines]
    other = load_seq2seq(options.against)
    if other.languages != languages:
        raise UserError(
            f"{options.against} translates {' to '.join(other.languages)}, not {' to '.join(languages)}; "
            "compare systems of the same languages"
        )
    model = for_inference(other.model.to(choose_device(options.device)), options.precision)
    return translate(model, sources, other.source, other.target, options.search, options.cut)


def run(options: Options) -> None:
    """Evaluates as the options say."""
    options = replace(options, weights=weights_of(options.weights, SHIPPED))
    if options.against is not None:
        options = replace(options, against=weights_of(options.against, SHIPPED))
    if len(options.data) == 1 and (note := name_note(options.data[0], DATASETS)):
        say(note)
    if options.split is None and len(options.data) == 1 and options.data[0] in DATASETS:
        options = replace(options, split=USUAL_SPLIT.get(options.data[0], "test"))
    if options.search.n_best > 1:
        raise UserError(f"n_best={options.search.n_best} must be 1: only the best translation is compared")
    if options.hypotheses is not None:
        read = [options.weights, *own_files(options.data), options.against, options.shortlist]
        check_place(options.hypotheses, [path for path in read if path is not None])
    device = choose_device(options.device)
    use_threads(options.threads)
    options = replace(options, precision=inference_precision(options.precision, device))
    translator = load_seq2seq(options.weights)
    pairs, reference_tokens = pairs_to_translate(options, translator.languages)
    if not pairs:
        raise UserError(f"no pairs in {' '.join(options.data)}; both sides of a pair need words")
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    others = None if options.against is None else other_system(options, sources, translator.languages)
    model = for_inference(translator.model.to(device), options.precision)
    tokenizers = translator.source, translator.target
    lexicon = None if options.shortlist is None else load_lexicon(options.shortlist, *tokenizers)
    began = time.monotonic()
    ids = best_ids(model, encode_texts(sources, translator.source, options.cut), options.search, lexicon)
    seconds = time.monotonic() - began
    hypotheses = decode_lines(ids, translator.target)
    hashes = pair_hashes(pairs)
    figures: dict[str, Any] = {
        "weights": str(options.weights),
        "data": list(options.data),
        "split": options.split,
        "languages": list(translator.languages),
        "sentences": len(pairs),
        "trained_on": seen_count(options.weights, hashes),
        "search": asdict(options.search),
        "parameters": sum(p.numel() for p in translator.model.parameters()),
        "exact_match": sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(pairs),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(map(len, ids)) / seconds, 1),
        "precision": options.precision,
        "shortlist": None if options.shortlist is None else str(options.shortlist),
        "threads": torch.get_num_threads(),
        **all_scores(hypotheses, references, translator.languages[1], reference_tokens),
    }
    if options.by_length:
        figures["by_length"] = bleu_by_length(sources, hypotheses, references, translator.languages)
    if others is not None:
        names = str(options.weights), str(options.against)
        figures["against"] = all_scores(others, references, translator.languages[1], reference_tokens)
        figures["comparison"] = paired_bootstrap(hypotheses, others, references, names, translator.languages[1])
    if options.hypotheses is not None:
        write_atomically(options.hypotheses, "".join(f"{text}\n" for text in hypotheses).encode())
    if seen := seen_note(options.weights, {options.split or "": hashes}, "pairs"):
        say(seen)
    _print_table(figures)
    print_json(figures)


def _print_table(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    source, target = figures["languages"]
    table = Table(
        title=Text(f"{' '.join(figures['data'])} {figures['split'] or ''}".strip() + f", {source} to {target}")
    )
    systems = [figures, *([figures["against"]] if "against" in figures else [])]
    for column in ("", "BLEU", "chrF", "BLEU, against", "chrF, against")[: 1 + 2 * len(systems)]:
        table.add_column(column)
    rows = {name: figures[name] for name in ("cased", "lowercased", "lc_tok") if figures[name]}
    for name in rows:
        cells = [(f"{s[name]['bleu']:.2f}", f"{s[name]['chrf']:.2f}" if "chrf" in s[name] else "") for s in systems]
        table.add_row(name, *(cell for pair in cells for cell in pair))
    console = Console(stderr=True)
    console.print(table)
    if "by_length" in figures:
        console.print(length_table(figures["by_length"]))
    if "comparison" in figures:
        console.print(comparison_table(figures["comparison"]))
    for name, row in rows.items():
        say(f"{name}: BLEU {row['bleu_signature']}" + (f", chrF {row['chrf_signature']}" if "chrf" in row else ""))
    if figures["lc_tok"]:
        row = figures["lc_tok"]
        say(
            f"lc_tok: {row['hypothesis_tokens']:,} tokens against {row['reference_tokens']:,}, "
            f"references {row['references']}"
        )
    way = "sampled" if figures["search"]["sample"] else f"beam {figures['search']['beam']}"
    say(
        f"{figures['sentences']} sentences in {figures['seconds']:.1f} s "
        f"({figures['tokens_per_second']:,.0f} tokens/s, {way})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    run_command(lambda: run(read_options(Options, arguments)), "use a smaller --beam")


if __name__ == "__main__":
    main()
