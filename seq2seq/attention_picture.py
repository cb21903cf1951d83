"""Where a translation looked: the attention weights of the decoder over the source as a heat map."""

from pathlib import Path

import torch

from common.training.checkpoint import write_png
from common.training.run import say
from seq2seq.decoding import greedy
from seq2seq.tokenizer import Tokenizer
from seq2seq.translation_model import TranslationModel


@torch.inference_mode()
def draw_attention(path: Path, model: TranslationModel, text: str, source: Tokenizer, target: Tokenizer) -> None:
    """Translates a sentence and draws the last layer's weights: the mean over its heads, then each head where there
    are several.

    Rows are the tokens written, columns the source; the weights of a row sum to 1. A model without attention says so.
    """
    from matplotlib.figure import Figure

    ids = torch.tensor(source.encode([text]), device=next(model.parameters()).device)
    written = [*greedy(model, ids)[0], model.config.end_id]
    # Each row is what was looked at when its token was written, that is with the token before as input.
    shifted = torch.tensor([[model.config.start_id, *written[:-1]]], device=ids.device)
    weights = model.attention_weights(ids, shifted)
    if weights is None:
        say(f"no {path.name}: this model has no attention")
        return
    weights = weights[0].cpu()  # (H, T, S)
    panels = [(f"head {i + 1}", head) for i, head in enumerate(weights)]
    panels = [("mean of all heads", weights.mean(dim=0)), *panels]
    if len(weights) == 1:
        panels = [("what each written word looked at", weights[0])]
    columns = min(len(panels), 5)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.7 * columns, 0.8 + 2.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, (title, values) in zip(axes, panels, strict=False):
        panel.imshow(values.float().numpy(), cmap="Blues", vmin=0.0, vmax=1.0)
        panel.set_title(title, fontsize=10)
        panel.set_xticks(range(values.shape[1]), source.names(ids[0].tolist()), rotation=60, fontsize=9)
        panel.set_yticks(range(values.shape[0]), target.names(written), fontsize=9)
    for panel in axes[len(panels) :]:
        panel.axis("off")
    if len(weights) > 1:
        figure.suptitle("encoder-decoder attention of the last layer: what each written word looked at", fontsize=11)
    write_png(path, figure)
