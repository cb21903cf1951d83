"""Where a translation looked: the encoder-decoder attention weights as a heat map.

Shapes: H heads, S source tokens, T target tokens.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from common import UserError
from common.training.checkpoint import write_png
from common.training.fonts import fonts_for
from seq2seq.decoding import greedy
from seq2seq.tokenizer import Tokenizer
from seq2seq.translation_model import TranslationModel

CELL, FIGURE = 0.2, 42.0
"""Inches: of a weight, so that a name fits beside it, and of all panels side by side."""
POINTS, LABELS = 9, 60
"""The size of the tokens' names, and how many of them a side of a panel has room for; a longer one names fewer."""


def draw_attention(
    path: Path,
    model: TranslationModel,
    ids: Sequence[int],
    source: Tokenizer,
    target: Tokenizer,
    written: Sequence[int] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Draws the weights of one layer into a PNG file: the mean over its heads, then each head.

    Rows are the tokens written, columns the source; the weights of a row sum to 1. All panels share one scale, from
    white at 0 to dark at their greatest weight.

    Args:
        path: of the file.
        model: in evaluation mode.
        ids: of the source (S,), at least one.
        source: whose ids these are.
        target: whose ids are written.
        written: the translation (T,), the end symbol included where it ended; by greedy decoding where None.
        layer: of the decoder, counted from 1; the last where None.
        head: only this one, counted from 1.

    Raises:
        ValueError: the model has no such layer or head, or the file cannot be written.
    """
    layer, head = check_choice(model, layer, head)
    if written is None:
        tensor = torch.tensor([ids], device=next(model.parameters()).device)
        written = [*greedy(model, tensor)[0], model.config.end_id]
    weights = attention_weights(model, ids, written)[layer - 1]
    panels = [("mean of all heads", weights.mean(dim=0)), *((f"head {i + 1}", one) for i, one in enumerate(weights))]
    panels = panels[1:] if len(weights) == 1 else panels if head is None else panels[head : head + 1]
    darkest = max(float(values.max()) for _, values in panels)
    names = source.names(ids), target.names(written)
    with fonts_for([*names[0], *names[1]]) as shown:
        columns, rows = ([shown(name) for name in side] for side in names)
        title = f"what each written token looked at: layer {layer}, white 0, dark {darkest:.2f}"
        _draw(path, panels, columns, rows, darkest, title)


def _draw(
    path: Path,
    panels: Sequence[tuple[str, torch.Tensor]],
    columns: Sequence[str],
    rows: Sequence[str],
    darkest: float,
    title: str,
) -> None:
    """Draws weights (T, S), each with its title, with the names of the tokens; all on one scale up to ``darkest``."""
    from matplotlib.figure import Figure

    step = -(-max(len(columns), len(rows)) // LABELS)  # every step-th token has room for its name
    cell, letter = CELL / step, 0.8 * POINTS / 72
    beside, below = (0.35 + letter * max(map(len, names)) for names in (rows, columns))
    width, height = max(cell * len(columns) + beside, 1.8), cell * len(rows) + below + 0.4
    across = min(len(panels), 5, max(int(FIGURE / width), 1))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(max(width * across, 5.5), 0.6 + height * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for panel, (name, values) in zip(axes, panels, strict=False):
        panel.imshow(values.float().numpy(), cmap="Blues", vmin=0.0, vmax=darkest)
        panel.set_title(name, fontsize=10)
        panel.set_xticks(range(0, len(columns), step), columns[::step], rotation=90, fontsize=POINTS, parse_math=False)
        panel.set_yticks(range(0, len(rows), step), rows[::step], fontsize=POINTS, parse_math=False)
    for panel in axes[len(panels) :]:
        panel.axis("off")
    figure.suptitle(title, fontsize=11)
    write_png(path, figure)


def check_choice(model: TranslationModel, layer: int | None, head: int | None) -> tuple[int, int | None]:
    """The layer, the last where None, and the head. Raises ValueError where the model has no such layer or head."""
    layers, heads = model.source_attention
    if not layers:
        raise UserError("this model has no attention to draw")
    if layer is not None and not 1 <= layer <= layers:
        raise UserError(f"layer={layer} must lie between 1 and {layers}, the decoder's layers")
    if head is not None and not 1 <= head <= heads:
        raise UserError(f"head={head} must lie between 1 and {heads}, the heads of a layer")
    return layers if layer is None else layer, head


@torch.inference_mode()
def attention_weights(model: TranslationModel, ids: Sequence[int], written: Sequence[int]) -> list[torch.Tensor]:
    """What each written token (T,) looked at in the source (S,), a tensor (H, T, S) for each decoder layer."""
    device = next(model.parameters()).device
    # Each row is what was looked at when its token was written, that is with the token before as input.
    shifted = torch.tensor([[model.config.start_id, *written[:-1]]], device=device)
    return [one[0].cpu() for one in model.attention_weights(torch.tensor([ids], device=device), shifted)]
