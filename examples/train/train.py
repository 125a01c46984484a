"""Train the bundled Shakespeare model: tokenizer, Gab-shaped transformer, export. One GPU, a few minutes.

    python examples/train/train.py --text tinyshakespeare.txt --out build/shakespeare

The first 90% of the text train, the last 10% are never trained on. It is a small text, so everything here is
about not learning it by heart: dropout (Srivastava et al. 2014), strong decoupled weight decay (Loshchilov &
Hutter 2019), tied embeddings (Press & Wolf 2017), BPE dropout, which cuts the text into other tokens every
epoch (Provilkov et al. 2020), and a moving average of the weights, which is what gets exported.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers.models import BPE
from torch import nn
from torch.nn import functional

from glinfer import ModelConfig
from glinfer.engine.score import windows
from glinfer.formats import BpeModel, Checkpoint, save_checkpoint, weight_shapes, write_bpe
from glinfer.text.tokenizer import Tokenizer, learn_bpe


@dataclass
class Settings:
    """The settings; each is also an option of the command line."""

    vocab: int = 512
    dim: int = 256
    heads: int = 8
    blocks: int = 6
    context: int = 256
    steps: int = 2400
    batch: int = 64
    lr: float = 3e-3
    warmup: int = 200
    weight_decay: float = 2.0
    dropout: float = 0.3
    bpe_dropout: float = 0.3
    cuts: int = 32  # how many different tokenisations of the training text
    average: float = 0.999
    seed: int = 1
    evaluations: int = 12


class Block(nn.Module):
    """One block of Gab: attention without biases, then an MLP with them, each after a LayerNorm."""

    def __init__(self, config: ModelConfig, dropout: float) -> None:
        super().__init__()
        dim = config.hidden_size
        self.heads, self.p = config.num_attention_heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(dim, config.layer_norm_eps), nn.LayerNorm(dim, config.layer_norm_eps)
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.attn = nn.ModuleDict({name: nn.Linear(dim, dim, bias=False) for name in names})
        inner = config.intermediate_size
        self.mlp = nn.ModuleDict({"fc_in": nn.Linear(dim, inner), "fc_out": nn.Linear(inner, dim)})
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        normed = self.ln_1(x)
        q, k, v = (
            self.attn[name](normed).view(batch, length, self.heads, -1).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        p = self.p if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.dropout(self.attn["out_proj"](mixed.transpose(1, 2).reshape(batch, length, dim)))
        inner = functional.gelu(self.mlp["fc_in"](self.ln_2(x)), approximate="tanh")
        return x + self.dropout(self.mlp["fc_out"](inner))


class Gab(nn.Module):
    """Gab's architecture; its parameters have glinfer's names, so that export is a copy."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        dim, blocks = config.hidden_size, config.num_hidden_layers
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, dim),
                "wpe": nn.Embedding(config.max_position_embeddings, dim),
                "h": nn.ModuleList(Block(config, dropout) for _ in range(blocks)),
                "ln_f": nn.LayerNorm(dim, config.layer_norm_eps),
            }
        )
        self.lm_head = nn.Linear(dim, config.vocab_size)
        self.dropout = nn.Dropout(dropout)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                writes_residual = name.endswith(("out_proj.weight", "fc_out.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * blocks) if writes_residual else 0.02)
        nn.init.zeros_(self.lm_head.bias)
        self.lm_head.weight = self.transformer["wte"].weight  # tied

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        positions = self.transformer["wpe"].weight[: ids.shape[1]]
        x = self.dropout(self.transformer["wte"](ids) + positions)
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))

    def checkpoint(self, source: str) -> Checkpoint:
        """The weights rounded to float16, as float32 arrays under glinfer's names."""
        state = self.state_dict()
        shapes = weight_shapes(self.config)
        tensors = {name: state[name].cpu().to(torch.float16).float().numpy() for name in shapes}
        return Checkpoint(self.config, tensors, source)

    def load(self, checkpoint: Checkpoint) -> Gab:
        """Take a checkpoint's weights (the head must be the embedding)."""
        self.load_state_dict({name: torch.tensor(np.array(array)) for name, array in checkpoint.tensors.items()})
        return self


def encode_with_dropout(model: BpeModel, text: str, dropout: float) -> np.ndarray:
    """Token ids of ``text`` with each merge left out at random with this probability."""
    names = [piece.decode("latin-1") for piece in model.vocabulary]
    vocabulary = {name: token for token, name in enumerate(names)}
    merges = [(names[left], names[right]) for left, right, _ in model.merges]
    library = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=merges, dropout=dropout or None, cache_capacity=0))
    return np.array(library.encode(text.encode().decode("latin-1")).ids, dtype=np.int64)


@torch.no_grad()
def bits_per_byte(model: nn.Module, tokenizer: Tokenizer, ids: list[int], context: int) -> float:
    """Held-out quality in the same windows as ``glinfer eval``: half a context of overlap."""
    model.eval()
    device = next(model.parameters()).device
    tokens = torch.tensor(ids, device=device)
    nats = 0.0
    for start, stop, scored in windows(len(ids), context, context // 2):
        logits = model(tokens[None, start:stop])[0, scored - 1 - start :].float()
        nats += functional.cross_entropy(logits, tokens[scored : stop + 1], reduction="sum").item()
    count = sum(len(tokenizer.token_bytes(token)) for token in ids[1:])
    return nats / math.log(2) / count


def learning_rate(step: int, settings: Settings) -> float:
    """Linear warm-up, then a cosine to 2% of the peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / settings.steps)))
    return settings.lr * min(1.0, (step + 1) / settings.warmup) * (0.02 + 0.98 * cosine)


def train(text: str, settings: Settings, device: str) -> tuple[Gab, BpeModel, dict[str, object]]:
    """Train on the first 90% of ``text``; returns the averaged model, its tokenizer, and the facts."""
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    cut = int(0.9 * len(text))
    bpe = learn_bpe([text[:cut]], settings.vocab)
    tokenizer = Tokenizer(bpe)
    config = ModelConfig(len(bpe.vocabulary), settings.dim, settings.heads, settings.blocks, settings.context)
    cuts = [encode_with_dropout(bpe, text[:cut], settings.bpe_dropout if i else 0.0) for i in range(settings.cuts)]
    streams = [torch.tensor(stream, device=device) for stream in cuts]
    held_out = tokenizer.encode(text[cut:])
    model, average = Gab(config, settings.dropout).to(device), Gab(config).to(device)
    average.load_state_dict(model.state_dict())
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.99))
    forward = torch.compile(model) if device == "cuda" else model
    curve: list[tuple[int, float, float]] = []
    losses: list[float] = []
    started = time.perf_counter()
    for step in range(1, settings.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        stream = streams[rng.integers(len(streams))]
        starts = torch.tensor(rng.integers(0, len(stream) - settings.context, settings.batch), device=device)
        batch = stream[starts[:, None] + torch.arange(settings.context + 1, device=device)]
        model.train()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = forward(batch[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        weight = 1 - min(settings.average, step / (step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), weight)
        losses.append(loss.item() if step % 10 == 0 or step == 1 else math.nan)
        if step % max(1, settings.steps // settings.evaluations) == 0 or step == settings.steps:
            quality = bits_per_byte(average, tokenizer, held_out, settings.context)
            curve.append((step, float(np.nanmean(losses[-100:])), quality))
            print(
                f"step {step}: training loss {curve[-1][1]:.3f} nats/token, held out {quality:.4f} bits/byte",
                flush=True,
            )
    facts: dict[str, object] = {
        "settings": asdict(settings),
        "parameters": sum(math.prod(shape) for shape in weight_shapes(config).values()),
        "training_tokens": len(cuts[0]),
        "held_out_tokens": len(held_out),
        "seconds": round(time.perf_counter() - started, 1),
        "hardware": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "curve": curve,
        "losses": [loss for loss in losses if not math.isnan(loss)],
    }
    return average, bpe, facts


def plot(facts: dict[str, Any], path: Path) -> None:
    """The loss curve as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps, training, held_out = zip(*facts["curve"], strict=True)
    figure, left = pyplot.subplots(figsize=(7, 4), layout="constrained")
    left.plot(steps, training, color="tab:blue", marker="o", label="training loss (with dropout)")
    left.set(xlabel="step", ylabel="nats per token")
    right = left.twinx()
    right.plot(steps, held_out, color="tab:orange", marker="s", label="held out")
    right.axhline(2.12, color="grey", linestyle=":", label="character-level nanoGPT")
    right.set_ylabel("bits per byte")
    figure.legend(loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, export float16 safetensors, .gab and tokenizer, draw the curve, print the held-out quality."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the text file to train on")
    parser.add_argument("--out", type=Path, required=True, help="folder for model.safetensors, model.gab, model.bpe")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    options = vars(parser.parse_args())
    text, out, device = options.pop("text").read_text(encoding="utf-8"), options.pop("out"), options.pop("device")
    settings = Settings(**options)
    model, bpe, facts = train(text, settings, device)
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = model.checkpoint("train.py")
    save_checkpoint(checkpoint, out / "model.safetensors", dtype="float16")
    save_checkpoint(checkpoint, out / "model.gab")
    write_bpe(bpe, out / "model.bpe")
    exported = Gab(checkpoint.config).load(checkpoint).to(device)
    held_out = Tokenizer(bpe).encode(text[int(0.9 * len(text)) :])
    facts["held_out_bits_per_byte"] = bits_per_byte(exported, Tokenizer(bpe), held_out, settings.context)
    (out / "train.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    plot(facts, out / "loss.png")
    print(f"{facts['parameters']:,} parameters, {facts['seconds']} s on {facts['hardware']}")
    print(f"held out, from the exported float16 weights: {facts['held_out_bits_per_byte']:.4f} bits/byte")


if __name__ == "__main__":
    main()
