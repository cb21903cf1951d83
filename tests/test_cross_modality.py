"""One core, two modalities: the same encoder object, weights and training serve pictures and sentences."""

import pytest
import torch
from torch import nn

from common import Encoder, TransformerConfig, UserError
from common.training.checkpoint import load_weights, read_weights, save_weights, unique_state
from seq2seq import Seq2Seq, Seq2SeqConfig
from vit import ViT, ViTConfig
from vit.weights import load_vit

LAYERS = TransformerConfig(d_model=22, n_heads=2, d_ff=37, dropout=0.0, activation="gelu", norm_first=True)
N_LAYERS = 3


@pytest.fixture
def vit():
    torch.manual_seed(0)
    config = ViTConfig(n_classes=5, image_size=(12, 20), patch_size=(4, 4), n_layers=N_LAYERS, layers=LAYERS)
    return ViT(config).eval()


@pytest.fixture
def translator():
    torch.manual_seed(1)
    config = Seq2SeqConfig(17, 19, start_id=17, end_id=18, n_encoder_layers=N_LAYERS, n_decoder_layers=2, layers=LAYERS)
    return Seq2Seq(config).eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 12, 20, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def source():
    return torch.tensor([[3, 5, 7, 11, 13, 2, 1], [4, 6, 8, 0, 0, 0, 0]])


def test_one_encoder_object_encodes_patches_and_words(vit, translator, images, source):
    encoder = Encoder(LAYERS, N_LAYERS).eval()
    vit.encoder = translator.encoder = encoder
    calls = []
    encoder.register_forward_hook(lambda module, inputs, output: calls.append(tuple(inputs[0].shape)))
    assert vit(images).shape == (2, 5)
    assert translator.encode(source)[0].shape == (2, 7, 22)
    assert calls == [(2, 15, 22), (2, 7, 22)]


@pytest.mark.parametrize("giver", ["vit", "translator"])
def test_encoder_weights_move_between_the_modalities_through_a_file(giver, vit, translator, tmp_path):
    from_model, to_model = (vit, translator) if giver == "vit" else (translator, vit)
    x = torch.randn(2, 7, 22)
    assert not torch.allclose(from_model.encoder(x)[0], to_model.encoder(x)[0])
    save_weights(tmp_path / "encoder.safetensors", unique_state(from_model.encoder), {"kind": "encoder"})
    load_weights(to_model.encoder, read_weights(tmp_path / "encoder.safetensors", "encoder")[0])
    assert torch.equal(from_model.encoder(x)[0], to_model.encoder(x)[0])
    to_model.encoder.load_state_dict(from_model.encoder.state_dict(), strict=True)


def test_a_picture_and_a_sentence_share_a_batch(vit, translator, images, source):
    encoder = vit.encoder
    patches = vit.embed(images[:1])  # (1, 15, D)
    words = translator.source_embedding(source[:1])  # (1, 7, D)
    padded = nn.functional.pad(words, (0, 0, 0, 8), value=99.0)
    mask = torch.ones(2, 15, dtype=torch.bool)
    mask[1, 7:] = False
    together, _ = encoder(torch.cat((patches, padded)), key_mask=mask)
    torch.testing.assert_close(together[0], encoder(patches)[0][0], atol=1e-5, rtol=0)
    torch.testing.assert_close(together[1, :7], encoder(words)[0][0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("modality", ["vit", "translator"])
def test_a_training_step_in_either_modality_moves_the_shared_parameters(modality, vit, translator, images, source):
    encoder = Encoder(LAYERS, N_LAYERS)
    vit.encoder = translator.encoder = encoder
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    logits = vit(images) if modality == "vit" else translator(source, torch.tensor([[17, 3, 4], [17, 5, 18]]))
    logits.square().mean().backward()
    torch.optim.SGD(encoder.parameters(), lr=1.0).step()
    same = [name for name, value in encoder.state_dict().items() if torch.equal(value, before[name])]
    assert same == []


@pytest.mark.parametrize("modality", ["vit", "translator"])
def test_without_positions_the_encoder_is_permutation_equivariant(modality, vit, translator, images, source):
    x = vit.patch_embedding(images) if modality == "vit" else translator.source_embedding(source)
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(3))
    encoder = vit.encoder if modality == "vit" else translator.encoder
    torch.testing.assert_close(encoder(x[:, order])[0], encoder(x)[0][:, order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("modality", ["vit", "translator"])
def test_with_positions_the_order_matters(modality, vit, translator, images, source):
    if modality == "vit":
        x = vit.embed(images)
        swapped = vit.embed(images.flip(-1))
    else:
        x = translator._embed(translator.source_embedding, source[:1], 0)
        swapped = translator._embed(translator.source_embedding, source[:1].flip(1), 0)
    out, other = vit.encoder(x)[0], vit.encoder(swapped)[0]
    assert not torch.allclose(out.mean(dim=1), other.mean(dim=1), atol=1e-4)


def test_a_translator_s_file_given_to_the_vit_is_one_line(tmp_path):
    save_weights(tmp_path / "best.safetensors", {"a": torch.zeros(1)}, {"kind": "seq2seq"})
    with pytest.raises(UserError, match="holds a seq2seq model, this command takes a vit model"):
        load_vit(tmp_path / "best.safetensors")
