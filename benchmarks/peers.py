"""The same translator in other libraries, with the same weights: what it is compared with.

Shapes: B batch, S source length, T target length, D width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from seq2seq.model import Seq2Seq
from seq2seq.tokenizer import PAD_ID


def marian(model: Seq2Seq) -> nn.Module:
    """transformers' ``MarianMTModel`` with a post-norm model's weights (its embeddings tied three ways)."""
    from transformers import MarianConfig, MarianMTModel  # pyright: ignore[reportMissingImports]
    from transformers.utils import logging  # pyright: ignore[reportMissingImports]

    logging.set_verbosity_error()
    config, layers = model.config, model.config.layers
    assert not layers.norm_first, "Marian normalises after each sum"
    assert config.tie == "all", "Marian ties its embeddings three ways"
    peer = MarianMTModel(
        MarianConfig(
            vocab_size=config.target_vocabulary,
            d_model=layers.d_model,
            encoder_layers=config.n_encoder_layers,
            decoder_layers=config.n_decoder_layers,
            encoder_attention_heads=layers.n_heads,
            decoder_attention_heads=layers.n_heads,
            encoder_ffn_dim=layers.d_ff,
            decoder_ffn_dim=layers.d_ff,
            activation_function=layers.activation,
            dropout=layers.dropout,
            attention_dropout=layers.attention_dropout,
            activation_dropout=layers.inner_dropout,
            scale_embedding=config.scale_embedding,
            max_position_embeddings=256,
            pad_token_id=PAD_ID,
            bos_token_id=config.start_id,
            eos_token_id=config.end_id,
            forced_eos_token_id=None,
            decoder_start_token_id=config.start_id,
        )
    )
    ours, theirs = model.state_dict(), dict(peer.named_parameters())
    with torch.no_grad():
        theirs["model.shared.weight"].copy_(ours["source_embedding.weight"])
        for side in ("encoder", "decoder"):
            table: Tensor = model.positions.table
            getattr(peer.model, side).embed_positions.weight.copy_(table[:256])
            for i in range(config.n_encoder_layers if side == "encoder" else config.n_decoder_layers):
                for name, tensor in _marian_layer(ours, f"{side}.layers.{i}."):
                    theirs[f"model.{side}.layers.{i}.{name}"].copy_(tensor)
    return peer.eval()


def _marian_layer(ours: dict[str, Tensor], prefix: str) -> list[tuple[str, Tensor]]:
    found = []
    for mine, theirs in (("self_attention", "self_attn"), ("cross_attention", "encoder_attn")):
        if f"{prefix}{mine}.in_proj.weight" not in ours:
            continue
        for kind in ("weight", "bias"):
            rows = ours[f"{prefix}{mine}.in_proj.{kind}"].chunk(3)
            found += [(f"{theirs}.{name}_proj.{kind}", part) for name, part in zip("qkv", rows, strict=True)]
            found.append((f"{theirs}.out_proj.{kind}", ours[f"{prefix}{mine}.out_proj.{kind}"]))
            found.append((f"{theirs}_layer_norm.{kind}", ours[f"{prefix}{mine}_residual.norm.{kind}"]))
    for kind in ("weight", "bias"):
        found.append((f"fc1.{kind}", ours[f"{prefix}feedforward.inner.{kind}"]))
        found.append((f"fc2.{kind}", ours[f"{prefix}feedforward.outer.{kind}"]))
        found.append((f"final_layer_norm.{kind}", ours[f"{prefix}feedforward_residual.norm.{kind}"]))
    return found


class TorchTranslator(nn.Module):
    """``torch.nn.Transformer`` between our model's embeddings and projection; it has no cache."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        config, layers = model.config, model.config.layers
        self.ours = model
        self.transformer = nn.Transformer(
            layers.d_model,
            layers.n_heads,
            config.n_encoder_layers,
            config.n_decoder_layers,
            layers.d_ff,
            layers.dropout,
            activation=layers.activation,
            norm_first=layers.norm_first,
            batch_first=True,
        )
        if not layers.norm_first:  # as in the paper: nothing after the last layer's own
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        own, ours = self.transformer.state_dict(), model.state_dict()
        names = {
            "self_attn.in_proj_": "self_attention.in_proj.",
            "self_attn.out_proj": "self_attention.out_proj",
            "multihead_attn.in_proj_": "cross_attention.in_proj.",
            "multihead_attn.out_proj": "cross_attention.out_proj",
            "linear1": "feedforward.inner",
            "linear2": "feedforward.outer",
        }
        for name in own:
            mine = name
            for theirs, our in names.items():
                mine = mine.replace(theirs, our)
            norms = ["self_attention", "feedforward"]
            if name.startswith("decoder"):
                norms.insert(1, "cross_attention")
            for i, norm in enumerate(norms, start=1):
                mine = mine.replace(f"norm{i}.", f"{norm}_residual.norm.")
            own[name] = ours[mine]
        self.transformer.load_state_dict(own)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Ids (B, S) -> memory (B, S, D) and where it is padding (B, S)."""
        padding = source == PAD_ID
        x = self.ours._embed(self.ours.source_embedding, source, 0)
        return self.transformer.encoder(x, src_key_padding_mask=padding), padding

    def decode(self, target: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """Ids (B, T) -> (B, T, D)."""
        x = self.ours._embed(self.ours.target_embedding, target, 0)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1]) < 0
        return self.transformer.decoder(x, memory, tgt_mask=causal, memory_key_padding_mask=padding, tgt_is_causal=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Teacher forcing: logits (B, T, V)."""
        return self.ours.project(self.decode(target, *self.encode(source)))

    @torch.inference_mode()
    def greedy(self, source: Tensor, steps: int) -> Tensor:
        """``steps`` tokens of each sentence (B, steps), everything before them computed again at each."""
        memory, padding = self.encode(source)
        target = torch.full((len(source), 1), self.ours.config.start_id)
        for _ in range(steps):
            x = self.decode(target, memory, padding)[:, -1]
            target = torch.cat((target, self.ours.project(x).argmax(dim=1, keepdim=True)), dim=1)
        return target[:, 1:]
