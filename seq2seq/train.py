"""``python -m seq2seq.train``: trains a translator on sentence pairs, and tests it once at the end."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from common import UserError
from common.training import TrainingConfig, distributed, train
from common.training.checkpoint import write_json
from common.training.cli import data_folder, training_command
from common.training.examples import trained_on
from common.training.machine import about as about_machine
from common.training.machine import announce, for_this_machine
from common.training.run import METRICS, WEIGHTS, goes_on, name_note, open_run, run_folder, say
from common.training.seeding import derive_seed
from common.training.step import choose_device
from seq2seq.architectures import architecture_of, build_model, model_config
from seq2seq.attention_picture import draw_attention
from seq2seq.bleu_tokens import bleu_tokenizer
from seq2seq.data import DATASETS, CorpusOptions, load_data, pair_hashes, shared_pairs, without_long
from seq2seq.decoding import encode_texts
from seq2seq.initial import by_init, config_for, read_initial, seen_before, with_tokenizers
from seq2seq.search import LONGEST_SOURCE
from seq2seq.task import Translation
from seq2seq.weights import load_seq2seq


@dataclass(frozen=True)
class Options:
    """Train a translator on sentence pairs, and test it once at the end."""

    data: tuple[str, ...] = ("toy",)
    """toy: a small German-English world made by a grammar; multi30k: captions of pictures in German, English and
    French; seed: the one pair of the toy task; or your own source and target file, or one of tab-separated pairs."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie or are downloaded to."""
    out: Path | None = None
    """The run folder; runs/DATA if not given."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Continue the run in --out with its own options."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Start again where --out holds a run."""
    preset: str | None = None
    """seed: the toy task with vocabularies of 5 and 7 and the paper's base size."""
    architecture: Literal["transformer", "rnn", "rnn_attention"] = "transformer"
    """transformer; rnn: a recurrent network that keeps the source in one vector; rnn_attention: one that attends
    to it."""
    init: str | None = None
    """Start from the weights of another run, or from de-en, which comes with the program; they decide the model, its
    vocabularies and the languages."""
    size: Literal["toy", "tiny", "small", "base", "init"] = "toy"
    """The Transformer: toy 96 wide and 2 + 2 layers, tiny 128 and 4 + 4, small 256 and 3 + 3, base 512 and 6 + 6; the
    others up to small, with as many parameters; init: that of --init."""
    tie: Literal["none", "embeddings", "decoder_output", "all"] = "all"
    """Which of the two embeddings and the output projection are one matrix."""
    padding_row: bool = False
    """Give row 0 of the positions to padding; real tokens take 1, 2, 3, ..."""
    dropout: float | None = None
    """Of the size where not given."""
    feedforward_dropout: float | None = None
    """Inside the feed-forward networks; of the size where not given (tiny has none, the others that of --dropout)."""
    attention_dropout: float | None = None
    """Of attention weights; 0 where not given."""
    d_ff: int | None = None
    """Width inside the feed-forward networks; of the size where not given."""
    norm: Literal["pre", "post"] | None = None
    """LayerNorm before each sub-layer, or after the sum as in the paper; of the size where not given."""
    batch_tokens: int = 2048
    """Positions in a step on the longer side, padding included, over all processes."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over all words; positions of padding cost nothing."""
    longest: int = LONGEST_SOURCE
    """Leave out training and validation pairs with more tokens on a side: one takes the memory of thousands. A longer
    test source is cut, with a warning."""
    bpe_dropout: float = 0.0
    """Pass over each merge of byte pairs with this probability, so that words come in other pieces in each epoch."""
    r_drop: float = 0.0
    """Let each batch through twice with different dropout, and let the distance of the two answers count so much in
    the loss; a step takes twice the time (R-Drop, Liang et al. 2021)."""
    final_test: bool = True
    """Translate the test pairs at the end; switch it off while you still choose between settings."""
    corpus: CorpusOptions = field(default_factory=CorpusOptions)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=6, learning_rate=3e-3, warmup=0.1))

    def __post_init__(self) -> None:
        if self.batch_tokens < 1:
            raise UserError(f"batch_tokens={self.batch_tokens} must be at least 1")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError(f"label_smoothing={self.label_smoothing} must lie in [0, 1)")
        if self.longest < 1:
            raise UserError(f"longest={self.longest} must be at least 1")
        if not 0.0 <= self.bpe_dropout < 1.0:
            raise UserError(f"bpe_dropout={self.bpe_dropout} must lie in [0, 1)")
        if not 0.0 <= self.r_drop < float("inf"):
            raise UserError(f"r_drop={self.r_drop} must be 0 or more; 5 is usual")
        if (self.init is None) != (self.size != "init"):
            missing = "needs weights to start from; add --init WEIGHTS" if self.init is None else "is that of --init"
            raise UserError(f"size={self.size} {missing}" + ("" if self.init is None else "; leave it out"))
        if self.init is not None:
            places = ((self, ("architecture", "tie", "padding_row")), (self.corpus, ("vocabulary", "joint")))
            for place, names in places:
                for name in names:
                    if getattr(place, name) != getattr(type(place), name):  # the default
                        raise UserError(f"{name}={getattr(place, name)} is decided by --init; leave it out")


BY_DATA: dict[str, dict[str, Any]] = {
    "multi30k": {  # size and dropout of Wu et al. 2021, section 3.2; the optimizer and the schedule are our own
        "size": "tiny",
        "batch_tokens": 4096,
        "training": {
            "epochs": 36,
            "precision": "auto",
            "optimizer": "muon",
            "learning_rate": 4e-3,
            "warmup": 0.1,
            "weight_decay": 0.01,
            "average_last": 5,
            "patience": 20,
        },
    },
}

PRESETS: dict[str, dict[str, Any]] = {
    "seed": {
        "data": ("seed",),
        "size": "base",
        "tie": "none",
        "padding_row": True,
        "label_smoothing": 0.0,
        "dropout": 0.0,
        "training": {"epochs": 40, "learning_rate": 1e-4, "warmup": 0.25, "evaluate_every": 20, "weight_decay": 0.0},
    },
}


def layer_options(options: Options) -> dict[str, Any]:
    """Those of a layer that were given, by their names in ``TransformerConfig``."""
    names = ("dropout", "feedforward_dropout", "attention_dropout", "d_ff")
    given = {name: getattr(options, name) for name in names}
    given["norm_first"] = None if options.norm is None else options.norm == "pre"
    return {name: value for name, value in given.items() if value is not None}


def run(options: Options) -> None:
    """Trains as the options say and keeps the run folder."""
    out = run_folder(options.out, options.data[0])
    if options.resume and (out / METRICS).exists():
        say(f"the run in {out} is finished; its figures are in {out / METRICS}")
        return
    options = replace(options, training=for_this_machine(options.training))
    saved_options = json.loads(json.dumps(asdict(replace(options, resume=False, overwrite=False)), default=str))
    description: dict[str, Any] = {"options": saved_options, **about_machine()}
    initial = None  # read before the folder is made: it may be the one whose weights are started from
    if options.init is not None:
        initial = read_initial(options.init, out, goes_on(out, options.resume))
    device = choose_device(options.training.device)
    resume = options.resume
    if not options.training.dry_run:
        resume = open_run(out, description, resume=options.resume, overwrite=options.overwrite)
    if len(options.data) == 1 and (note := name_note(options.data[0], DATASETS)):
        say(note)
    with distributed.one_per_machine_first(device):
        data = load_data(options.data, options.data_dir, options.corpus)
    seed = options.training.seed
    torch.manual_seed(derive_seed("weights", seed))
    if initial is None or options.init is None:
        layers = layer_options(options)
        architecture, tie = options.architecture, options.tie
        config = model_config(architecture, options.size, data, tie, padding_row=options.padding_row, **layers)
        model = build_model(architecture, config)
    else:
        data = with_tokenizers(data, initial, options.init)
        architecture = architecture_of(initial.model)
        config = config_for(initial, options.init, layer_options(options))
        model = build_model(architecture, config)
        model.load_state_dict(initial.model.state_dict())
    parameters = sum(p.numel() for p in model.parameters())
    data, long = without_long(data, options.longest)
    seen = pair_hashes(data.train)
    if options.init is not None and not goes_on(out, resume):
        seen = np.concatenate([seen, seen_before(options.init, data)])
    sizes = {name: len(getattr(data, name)) for name in ("train", "valid", "test")}
    about = {"name": data.name, "content": data.content, "pairs": sizes, "blank": data.dropped, "long": long}
    left_out = f"; {data.dropped} left out because a side was blank" if data.dropped else ""
    left_out += f"; {long} left out because a side has more than {options.longest} tokens (--longest)" if long else ""
    say(f"{data.name}: {sizes['train']} training, {sizes['valid']} validation, {sizes['test']} test pairs{left_out}")
    for note in (*data.notes, *shared_pairs(data)):
        say(note)
    say(
        f"{architecture} {options.init or options.size}: {parameters:,} parameters, "
        f"{len(data.source_tokenizer)} source and {len(data.target_tokenizer)} target entries"
    )
    task = Translation(
        data,
        config,
        batch_tokens=options.batch_tokens,
        label_smoothing=options.label_smoothing,
        architecture=architecture,
        seed=seed,
        bpe_dropout=options.bpe_dropout,
        r_drop=options.r_drop,
        cut=options.longest,
    )
    say(f"{task.steps_per_epoch} batches an epoch, {task.padding_share():.1%} of their positions padding")
    announce(options.training)
    description["data"] = about
    record = trained_on(seen)
    figures = train(model, task, options.training, out=out, resume=resume, options=description, trained_on=record)
    if figures is None:
        return
    best, source, target, _ = load_seq2seq(out / WEIGHTS)
    best.to(device)
    figures = {"data": data.name, "content": data.content, **figures}
    if options.final_test:
        hypotheses = task.translate(best, data.test)
        tested = task.figures(hypotheses, data.test)
        tokens = bleu_tokenizer(data.languages[1], [reference for _, reference in data.test])
        figures |= {f"test_{name}": value for name, value in tested.items()} | {"bleu_tokens": tokens}
        shown = list(zip(data.test, hypotheses, strict=True))[:: max(len(data.test) // 5, 1)][:5]
        for (text, reference), hypothesis in shown:
            say(f"  {text}  ->  {hypothesis}" + ("" if hypothesis == reference else f"   (expected: {reference})"))
        exact, bleu = tested["exact_match"], tested["bleu"]
        say(f"test exact match {exact:.1%}, BLEU {bleu:.1f} (tokens {tokens}; {len(data.test)} held-out pairs)")
    if distributed.is_main():
        if best.source_attention[0]:
            (example,) = encode_texts([data.example[0]], source, options.longest)
            draw_attention(out / "attention.png", best, example, source, target)
        write_json(out / METRICS, figures)
    say(f"everything is in {out}")


def main() -> None:
    """The command."""
    training_command(Options, PRESETS, BY_DATA, run, by_init)


if __name__ == "__main__":
    main()
