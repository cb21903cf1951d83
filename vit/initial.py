"""What fine-tuning starts from: the weights of another run, or timm's pretrained ones, fitted to other pictures.

Shapes: D width, T positions, K classes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common import UserError
from common.config import from_dict
from common.training.checkpoint import first_difference, load_weights
from common.training.examples import read_trained_on, seen_note
from common.training.run import say
from vit.exchange_timm import config_from_timm, from_timm
from vit.model import ViT, ViTConfig
from vit.patch_embedding import grid_size, resize_positions
from vit.splits import PictureData, hashes_in
from vit.weights import read_vit

TIMM = "timm:"
# What may be other than in the weights: all else decides what they compute.
FREE = ("n_classes", "image_size", "dropout", "feedforward_dropout", "attention_dropout", "drop_path")


@dataclass(frozen=True)
class Initial:
    """A model to start from: its weights, and the pictures it was made for."""

    name: str
    config: ViTConfig
    classes: tuple[str, ...]  # none where they are not known by name
    mean: tuple[float, ...]
    std: tuple[float, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All but the weights: what a continued run needs of it."""
        return {name: value for name, value in asdict(self).items() if name != "tensors"}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Initial":
        """What ``to_json`` gave, without weights."""
        return cls(
            values["name"],
            from_dict(ViTConfig, values["config"]),
            tuple(values["classes"]),
            tuple(values["mean"]),
            tuple(values["std"]),
        )

    def options(self) -> dict[str, Any]:
        """The options of training that these weights decide where nobody asks for others."""
        names = ("pooling", "positions", "stem", "image_size", "patch_size")
        return {"init": self.name, "size": "init", **{name: getattr(self.config, name) for name in names}}


def read_initial(name: str, *, weights: bool = True) -> Initial:
    """Reads a weights file of this program, or timm's pretrained weights where ``name`` is ``timm:NAME``.

    Args:
        name: as the user gave it.
        weights: without them nothing is downloaded.

    Raises:
        ValueError: no such file or model, no network, or a model that a ViT is not.
    """
    if name.startswith(TIMM):
        return _read_timm(name, weights)
    tensors, found, _ = read_vit(name)
    return Initial(name, found.config, found.classes, found.mean, found.std, tensors if weights else {})


def _read_timm(name: str, weights: bool) -> Initial:
    import timm

    model = name.removeprefix(TIMM)
    if not timm.is_model(model):
        raise UserError(f"init={name}: timm knows no model {model!r}; timm.list_models('vit*') lists them")
    if weights:
        say(f"getting {name}")  # without a network it takes a minute until that is given up
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of each attempt
    try:
        with torch.device("cpu" if weights else "meta"):
            theirs = timm.create_model(model, pretrained=weights, num_classes=1)  # its own head is of no use here
    except Exception as error:  # whatever a download and a file may raise means the same
        raise UserError(
            f"init={name}: cannot get its weights ({_reason(error)}); give a weights file of a run"
        ) from None
    try:
        tensors = from_timm(theirs).state_dict() if weights else {}
        config = config_from_timm(theirs)
    except UserError as error:
        raise UserError(f"init={name}: {error}") from None
    settings: Any = theirs.pretrained_cfg
    return Initial(name, config, (), tuple(settings["mean"]), tuple(settings["std"]), tensors)


def _reason(error: BaseException) -> str:
    """What was the matter at first, in a line."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return " ".join(str(error).split())[:120] or type(error).__name__


def start_from(model: ViT, initial: Initial, classes: Sequence[str]) -> str:
    """Loads the weights into a model for other classes and pictures of another size.

    Positions that were learned on another grid of patches are resized. The classifier's rows are kept for classes of
    the same name; the others stay as the model had them. All else is loaded strictly.

    Returns:
        A line that tells what was loaded and what was not.

    Raises:
        ValueError: the model differs in more than that; names the first difference.
    """
    difference = first_difference(_fixed(asdict(initial.config)), _fixed(asdict(model.config)))
    if difference:
        raise UserError(
            f"init={initial.name} is another model, {difference}; leave --size, --pooling, --positions, --stem "
            "and --patch-size to the weights"
        )
    tensors, said = dict(initial.tensors), []
    old, new = (grid_size(config.image_size, config.patch_size) for config in (initial.config, model.config))
    if "positions.weight" in tensors and old != new:
        tensors["positions.weight"] = resize_positions(tensors["positions.weight"], old, new)
        said.append(f"positions resized from {old[0]}x{old[1]} to {new[0]}x{new[1]} patches")
    kept = [name for name in classes if name in initial.classes]
    rows = torch.tensor([initial.classes.index(name) for name in kept], dtype=torch.int64)
    places = torch.tensor([i for i, name in enumerate(classes) if name in kept], dtype=torch.int64)
    for part in ("classifier.weight", "classifier.bias"):
        fresh = model.get_parameter(part).detach().clone()
        fresh[places] = tensors[part][rows].to(fresh)
        tensors[part] = fresh
    others = len(classes) - len(kept)
    if not others:
        said.append(f"classifier kept for all {len(classes)} classes")
    elif not kept:
        said.append(f"classifier new for all {len(classes)} classes")
    else:
        said.append(f"classifier kept for {len(kept)} classes, new for {others}")
    load_weights(model, tensors, initial.name)
    untouched = len(tensors) - 2 - sum(text.startswith("positions") for text in said)
    return f"starts from {initial.name}: {untouched} tensors as they are, {', '.join(said)}"


def seen_before(name: str, data: PictureData) -> np.ndarray:
    """The hashes of what weights were trained on, as far as they tell; says how many held-out pictures are among them.

    Args:
        name: of the weights, as the user gave it.
        data: of the run that starts from them.

    Returns:
        int64 (n,), see ``common.training.examples``.
    """
    seen = None
    if not name.startswith(TIMM):
        splits = {"validation": hashes_in(data.valid), "test": hashes_in(data.test)}
        if note := seen_note(Path(name), splits, "pictures", data.content):
            say(note)
        seen = read_trained_on(Path(name))
    return np.empty(0, dtype=np.int64) if seen is None else seen


def freeze_backbone(model: ViT) -> int:
    """Leaves the classifier alone to be trained; returns how many parameters that are."""
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    return sum(p.numel() for p in model.classifier.parameters())


def _fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that must be those of the weights."""
    return {
        name: _fixed(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in FREE
    }
