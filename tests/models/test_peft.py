"""LoRA adapters against PEFT: logits with an adapter beside the weights, and what merging makes of the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from goldens import check_digest, recorded
from goldens.adapters import ADAPTED, write_adapter
from goldens.figures import Figures
from goldens.models import EVEN, MODELS, Made, prompt, write_model

import glinfer
from glinfer.errors import FormatError
from glinfer.export.convert import convert_model
from glinfer.formats import load_checkpoint

pytestmark = pytest.mark.gl

TOLERANCE = 1e-4
"""Of the range of the logits."""
CONTEXT = 64
"""Up to which Phi-3 takes the factors of short texts, whatever the text here."""
MERGED = 2e-7
"""Of the largest weight of a matrix: PEFT adds in float32."""


def written(name: str, folder: Path) -> tuple[Path, Path]:
    """The model and its adapter, the very files of the recorded figures."""
    model = write_model(MODELS[name], folder / "model")
    adapter = write_adapter(name, model, folder / "adapter")
    check_digest(adapter / "adapter_model.safetensors", {recorded("adapters")[name]["sha256"]})
    return model, adapter


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ADAPTED][::3])
def test_logits_are_those_of_peft(tmp_path: Path, name: str) -> None:
    path, adapter = written(name, tmp_path)
    figures = Figures.from_json({key: each for key, each in recorded("adapters")[name].items() if key != "sha256"})
    with glinfer.load(path, lora=adapter, context=CONTEXT) as model, model.session() as session:
        for place, token in enumerate(figures.ids):
            session.step(token)
            assert figures.error(place, session.logits()) <= TOLERANCE
        assert figures.error(len(figures.ids) - 1, model.logits(figures.ids)) <= TOLERANCE
        assert figures.error(len(figures.ids) - 1, model.logits(figures.ids, lora="base")) > 100 * TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTED)
def test_merged_weights_are_those_of_peft(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    pytest.importorskip("peft", reason="peft is not installed (make test-all installs it)")
    from goldens.record import load_adapted

    path, adapter = written(name, tmp_path)
    load_adapted(path, adapter).merge_and_unload().save_pretrained(tmp_path / "theirs")
    convert_model(path, tmp_path / "ours.safetensors", lora=adapter, with_tokenizer=False)
    ours, theirs = load_checkpoint(tmp_path / "ours.safetensors"), load_checkpoint(tmp_path / "theirs")
    base = load_checkpoint(path)
    changed = 0
    for weight, expected in theirs.tensors.items():
        found = ours.tensors[weight]
        np.testing.assert_allclose(found, expected, rtol=0, atol=MERGED * np.abs(expected).max())
        changed += not np.array_equal(found, base.tensors[weight])
    assert ours.tensors.keys() == theirs.tensors.keys()
    layers = [base.config.layer(layer) for layer in range(base.config.num_hidden_layers)]
    mlp = 3 if base.config.family.gated else 2
    if base.config.family.experts:
        adapted = ADAPTED[name].get("target_parameters", ())
        mlp = (3 * base.config.num_experts if adapted else 0) + ("mlp.gate.weight" in adapted)
    assert changed == sum(mlp + (4 if of.delta is None else 5) for of in layers)


@pytest.mark.slow
def test_an_adapter_of_a_head_is_read_as_peft_saves_it(tmp_path: Path) -> None:
    """Beside A and B of the head, save_pretrained writes the head itself."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    peft = pytest.importorskip("peft", reason="peft is not installed (make test-all installs it)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    made = Made({**EVEN, "model_type": "llama", "tie_word_embeddings": False})
    path, ids = write_model(made, tmp_path / "model"), prompt(12)
    for number, changes in enumerate(
        (
            {"target_modules": ["lm_head", "q_proj"]},
            {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
        )
    ):
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, **changes))
        torch.manual_seed(1)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        adapted.save_pretrained(tmp_path / str(number))
        with torch.no_grad():
            expected = adapted(torch.tensor([ids])).logits[0, -1].numpy()
        with glinfer.load(path, lora=tmp_path / str(number)) as read:
            assert np.abs(read.logits(ids) - expected).max() <= TOLERANCE * np.ptp(expected)
            assert np.abs(read.logits(ids, lora="base") - expected).max() > 100 * TOLERANCE * np.ptp(expected)
        named, saved = dict(adapted.named_parameters()), ("base_layer.weight", "modules_to_save.default.weight")[number]
        named[f"base_model.model.lm_head.{saved}"].data[3, 5] += 0.1
        adapted.save_pretrained(tmp_path / f"trained{number}")
        with pytest.raises(FormatError, match=r"lm_head\S* has other numbers than the model: it was trained"):
            glinfer.load(path, lora=tmp_path / f"trained{number}")
