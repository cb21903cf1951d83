"""``python -m vit.train``: trains a Vision Transformer on pictures, and tests it once at the end."""

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
from common.training.run import METRICS, WEIGHTS, goes_on, open_run, read_config, run_folder, say
from common.training.seeding import derive_seed
from common.training.step import choose_device
from vit.augment import AugmentConfig
from vit.data import load_data
from vit.initial import Initial, freeze_backbone, read_initial, seen_before, start_from
from vit.initialisation import initialise
from vit.model import SIZES, ViT, ViTConfig, multiply_adds
from vit.presets import BY_DATA, PRESETS
from vit.progressive import ProgressiveConfig
from vit.report import draw_confusion_matrix, predictions, print_per_class, test_figures
from vit.splits import hashes_in, imbalance
from vit.task import ImageClassification
from vit.weights import Transform, load_vit

ON_THE_DEVICE = 2 * 10**9  # bytes of training pictures that are moved to a GPU, where batches are made faster


@dataclass(frozen=True)
class Options:
    """Train a Vision Transformer on pictures, and test it once at the end."""

    data: str = "cifar10"
    """cifar10, cifar100, digits (needs no download), or a folder with train/CLASS/ and test/CLASS/."""
    data_dir: Path = field(default_factory=data_folder)
    """Where data sets lie or are downloaded to."""
    out: Path | None = None
    """The run folder; runs/DATA if not given."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Continue the run in --out with its own options."""
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Start again where --out holds a run."""
    preset: str | None = None
    """cpu20: 20 minutes on a CPU; speedrun: the same for 15, or any --minutes, with half of the patches at
    first; cifar10-300: 300 epochs for a small model, for a GPU."""
    init: str | None = None
    """Start from a weights file of a run, or from timm:NAME, timm's pretrained weights; they decide the model and, if
    --image-size is not given, the size of pictures; pictures are normalised as for them."""
    freeze: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Train the classifier alone and leave all else as in --init."""
    size: Literal["micro", "mini", "compact", "tiny", "small", "base", "init"] = "mini"
    """The model: micro 64 wide, mini 128, compact 192 (9 narrow layers), tiny 192, small 384, base 768; init: that of
    --init."""
    pooling: Literal["class_token", "mean", "attention", "map"] = "attention"
    """What the classifier looks at; attention: one learned query; map: one with heads and a feed-forward network."""
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """What is added to the patches to tell where they are."""
    stem: Literal["linear", "convolution", "shifted"] = "linear"
    """From pixels to patches: a linear layer, two convolutions, or a linear layer over each patch and four shifted."""
    heads: int | None = None
    """Attention heads; the size's where not given."""
    norm: Literal["pre", "post"] | None = None
    """LayerNorm before each sub-layer or after its sum; the size's where not given."""
    attention: Literal["scaled_dot_product", "locality", "shared_query_key"] | None = None
    """How queries score keys (locality: learned temperature, no patch sees itself); the size's where not given."""
    initialisation: Literal["xavier", "mimetic"] = "mimetic"
    """Of the attention's weights and the learned positions, where --init does not give them."""
    whiten: bool = True
    """Start a linear patch embedding as principal directions of training patches, where --init does not give it."""
    image_size: tuple[int, int] = (32, 32)
    """Height and width to which pictures are brought."""
    patch_size: tuple[int, int] = (4, 4)
    """Height and width of a patch; they divide the image's."""
    dropout: float = 0.0
    """In the embedding and after every sub-layer."""
    drop_path: float = 0.0
    """Stochastic depth of the last layer."""
    batch_size: int = 128
    """Pictures in a step, over all processes."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over all classes."""
    valid_fraction: float = 0.1
    """Part of the training pictures kept for validation where the data has no such split."""
    balanced: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show each class equally often, however many pictures it has."""
    skip_bad: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Leave out files of a folder that cannot be read, and name them, instead of refusing to start; a class without one
    readable training picture is still refused."""
    cache: str = "auto"
    """Where a folder's decoded pictures are kept: auto (in FOLDER/.patchwords-cache or ~/.cache), none, or a folder."""
    final_test: bool = True
    """Test the best weights once at the end."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    progressive: ProgressiveConfig = field(default_factory=ProgressiveConfig)
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=15, optimizer="muon", learning_rate=4e-3, warmup=0.1, precision="auto"
        )
    )

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UserError(f"batch_size={self.batch_size} must be at least 1")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UserError(f"label_smoothing={self.label_smoothing} must lie in [0, 1)")
        if self.init is None and (self.freeze or self.size == "init"):
            asked = "freeze=True" if self.freeze else "size=init"
            raise UserError(f"{asked} needs weights to start from; add --init WEIGHTS")


def by_init(name: str) -> dict[str, Any]:
    """The defaults that ``--init`` changes."""
    return read_initial(name, weights=False).options()


def initial_of(options: Options, out: Path) -> Initial | None:
    """What a run starts from; where it goes on from its own state, without the weights, which may be gone by now."""
    if options.init is None:
        return None
    saved = read_config(out).get("init") if goes_on(out, options.resume) else None
    return Initial.from_json(saved) if saved else read_initial(options.init)


def model_config(options: Options, n_classes: int, initial: Initial | None = None) -> ViTConfig:
    """The model that the options describe."""
    if options.size == "init" and initial is not None:
        n_layers, layers, norm_pooled = initial.config.n_layers, initial.config.layers, initial.config.norm_pooled
    else:
        (n_layers, layers), norm_pooled = SIZES[options.size], False
    return ViTConfig(
        n_classes=n_classes,
        image_size=options.image_size,
        patch_size=options.patch_size,
        n_layers=n_layers,
        pooling=options.pooling,
        positions=options.positions,
        stem=options.stem,
        norm_pooled=norm_pooled and options.pooling == "mean",
        layers=replace(
            layers,
            dropout=options.dropout,
            drop_path=options.drop_path,
            n_heads=layers.n_heads if options.heads is None else options.heads,
            norm_first=layers.norm_first if options.norm is None else options.norm == "pre",
            attention=options.attention or layers.attention,
        ),
    )


def run(options: Options) -> None:
    """Trains as the options say and keeps the run folder."""
    out = run_folder(options.out, options.data)
    if options.resume and (out / METRICS).exists():
        say(f"the run in {out} is finished; its figures are in {out / METRICS}")
        return
    options = replace(options, training=for_this_machine(options.training))
    saved_options = json.loads(json.dumps(asdict(replace(options, resume=False, overwrite=False)), default=str))
    description = {"options": saved_options, **about_machine()}
    initial = initial_of(options, out)  # before the folder is made: it may be the one whose weights are started from
    if initial is not None:
        description["init"] = initial.to_json()
    device = choose_device(options.training.device)
    resume = options.resume
    if not options.training.dry_run:
        resume = open_run(out, description, resume=options.resume, overwrite=options.overwrite)
    seed = options.training.seed
    with distributed.one_per_machine_first(device):
        data = load_data(
            options.data,
            options.data_dir,
            seed=seed,
            image_size=options.image_size,
            valid_fraction=options.valid_fraction,
            skip_bad=options.skip_bad,
            cache=options.cache,
        )
    sizes = {name: len(getattr(data, name)) for name in ("train", "valid", "test")}
    about = {"name": data.name, "content": data.content, "pictures": sizes, "skipped": data.skipped}
    config = model_config(options, len(data.classes), initial)
    torch.manual_seed(derive_seed("weights", seed))
    model = ViT(config)
    if options.init is None and not goes_on(out, options.resume):
        transform = Transform(options.image_size, data.mean, data.std)
        mimetic = options.initialisation == "mimetic"
        initialise(model, data.train, transform, attention=mimetic, patches=options.whiten, seed=seed)
    parameters = sum(p.numel() for p in model.parameters())
    say(f"{data.name}: {sizes['train']} training, {sizes['valid']} validation, {sizes['test']} test pictures")
    seen = hashes_in(data.train)
    uneven = None if options.balanced else imbalance(data.train.labels, data.classes)
    for note in (*data.notes, *([uneven] if uneven else [])):
        say(note)
    size = f"of {options.init}" if options.size == "init" else options.size
    say(f"ViT {size}: {parameters:,} parameters, {multiply_adds(config) / 1e6:,.1f} M multiply-adds a picture")
    if initial is not None:
        data = replace(data, mean=initial.mean, std=initial.std)
        if initial.tensors:
            say(start_from(model, initial, data.classes))
            seen = np.concatenate([seen, seen_before(initial.name, data)])
    if options.freeze:
        say(f"trains {freeze_backbone(model):,} parameters, the classifier's")
    task = ImageClassification(
        data,
        config,
        options.augment,
        batch_size=options.batch_size,
        label_smoothing=options.label_smoothing,
        balanced=options.balanced,
        seed=seed,
        device=device if options.training.workers == 0 and data.train.nbytes <= ON_THE_DEVICE else None,
        progressive=options.progressive,
    )
    if options.freeze:
        task.settings["freeze"] = True
    announce(options.training)
    description["data"] = about
    record = trained_on(seen)
    figures = train(model, task, options.training, out=out, resume=resume, options=description, trained_on=record)
    if figures is None:
        return
    if not options.final_test:
        if distributed.is_main():
            write_json(out / METRICS, {"data": data.name, "content": data.content, **figures})
        say(f"validation accuracy {figures['val_accuracy']:.2%}; everything is in {out}")
        return
    best = load_vit(out / WEIGHTS).model
    predicted = predictions(task, best.to(device), data.test)
    figures = {
        "data": data.name,
        "content": data.content,
        **test_figures(data.test.labels, predicted, data.classes),
        **figures,
    }
    if distributed.is_main():
        draw_confusion_matrix(out / "confusion_matrix.png", data.test.labels, predicted, data.classes)
        write_json(out / METRICS, figures)
        print_per_class(figures["test_accuracy_per_class"])
    say(f"test accuracy {figures['test_accuracy']:.2%} ({len(data.test)} pictures); everything is in {out}")


def main() -> None:
    """The command."""
    training_command(Options, PRESETS, BY_DATA, run, by_init)


if __name__ == "__main__":
    main()
