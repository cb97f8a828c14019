# SPDX-License-Identifier: Apache-2.0
"""Transformers of real width with random weights as ONNX files, for attention_peers.py. Needs torch and transformers.

A script: python attention_exports.py MODEL LAYERS OUT.onnx (LAYERS 0: as many as the model has). Gains of norms are
drawn from a fixed distribution with heavy tails, as trained ones are.
"""

from __future__ import annotations

import sys

import torch
import transformers
from torch import nn

SEED, TOKENS = 0, 128


class Last(nn.Module):
    """What the last block of a model gives out, from its inputs by name."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def vision(layers: int, width: int, heads: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A ViT over 224 x 224 pixels in patches of 16."""
    config = transformers.ViTConfig(
        hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, num_hidden_layers=layers or 12
    )
    return transformers.ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(1, 3, 224, 224)}


def dinov2(layers: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """DINOv2-S over 224 x 224 pixels in patches of 14."""
    config = transformers.Dinov2Config(
        hidden_size=384, num_attention_heads=6, num_hidden_layers=layers or 12, image_size=224, patch_size=14
    )
    return transformers.Dinov2Model(config), {"pixel_values": torch.randn(1, 3, 224, 224)}


def swin(layers: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Swin-T; LAYERS counts stages of two blocks."""
    depths = [2, 2, 6, 2][: layers or 4]
    config = transformers.SwinConfig(depths=depths, num_heads=[3, 6, 12, 24][: len(depths)])
    return transformers.SwinModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(1, 3, 224, 224)}


def bert(layers: int, attention: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """BERT-base over 128 tokens with a mask."""
    config = transformers.BertConfig(num_hidden_layers=layers or 12, attn_implementation=attention)
    words = torch.randint(0, config.vocab_size, (1, TOKENS))
    mask = torch.ones(1, TOKENS, dtype=torch.int64)
    return transformers.BertModel(config, add_pooling_layer=False), {"input_ids": words, "attention_mask": mask}


def whisper(layers: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The encoder of Whisper-base: 1500 tokens."""
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(d_model=512, encoder_attention_heads=8, encoder_ffn_dim=2048)
    config.encoder_layers = layers or 6
    return WhisperEncoder(config), {"input_features": torch.randn(1, 80, 3000)}


MODELS = {
    "vit_b": lambda layers: vision(layers, 768, 12),
    "deit_s": lambda layers: vision(layers, 384, 6),
    "swin_t": swin,
    "bert_base": lambda layers: bert(layers, "eager"),
    "bert_base_sdpa": lambda layers: bert(layers, "sdpa"),
    "whisper_base": whisper,
    "dinov2_s": dinov2,
}


def main(name: str, layers: str, path: str) -> None:
    """Write one model."""
    torch.manual_seed(SEED)
    model, inputs = MODELS[name](int(layers))
    tails = torch.distributions.StudentT(3.0)
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.weight.data = 1 + 0.3 * tails.sample(part.weight.shape).clamp(-8, 8)
    names = list(inputs)
    torch.onnx.export(
        Last(model, tuple(names)).eval(),
        tuple(inputs.values()),
        path,
        dynamo=False,
        opset_version=17,
        input_names=names,
        output_names=["y"],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
