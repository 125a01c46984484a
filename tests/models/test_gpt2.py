"""GPT-2's files; what the family computes is in test_families.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from made_models import of_family, opened

from glinfer.cli.app import run
from glinfer.formats import load_checkpoint, save_checkpoint
from glinfer.formats.tensors import head_weight, weight_shapes
from qa.peers.peer import open_peers

pytestmark = pytest.mark.gl

IDS = [1, 5, 9, 77, 3, 100, 0]
OF_RANGE = 1e-4  # of the logits' range, as float32 allows
TIED = of_family("gpt2")
UNTIED = dataclasses.replace(TIED.config, tie_word_embeddings=False)


def test_a_tied_head_has_no_tensor_and_attention_has_biases() -> None:
    tied, untied = weight_shapes(TIED.config), weight_shapes(UNTIED)
    assert set(untied) - set(tied) == {"lm_head.weight"}
    assert "lm_head.bias" not in untied
    assert tied["transformer.h.1.attn.k_proj.bias"] == (64,)
    assert (head_weight(TIED.config), head_weight(UNTIED)) == ("transformer.wte.weight", "lm_head.weight")
    gab = weight_shapes(dataclasses.replace(UNTIED, model_type="gab"))
    assert set(untied) - set(gab) == {
        f"transformer.h.{block}.attn.{name}_proj.bias" for block in range(2) for name in ("q", "k", "v", "out")
    }


@pytest.mark.slow
def test_both_plans_go_on_to_the_end_of_the_context() -> None:
    texts = []
    for plan in ("fast", "reference"):
        with opened(TIED, plan) as model:
            texts.append(model.generate(IDS, max_tokens=41, temperature=0))
    assert texts[0] == texts[1]
    assert len(texts[0]) == 41


@pytest.mark.slow
def test_pytorch_runs_it_too() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    with opened(TIED) as model:
        expected = model.logits(IDS)
    for peer in open_peers(["torch"], TIED):  # on a machine with CUDA there are several, some in half precision
        share = OF_RANGE if "fp32" in peer.label else 0.05
        assert np.abs(peer.prefill(IDS) - expected).max() <= share * np.ptp(expected), peer.label
        peer.close()


def test_it_does_not_fit_a_gab_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out, again = (tmp_path / name for name in ("m.safetensors", "m.gab", "again.safetensors"))
    save_checkpoint(TIED, path)
    assert run(["convert", str(path), str(out)]) == 2
    assert "the model is of the family 'gpt2'" in capsys.readouterr().err
    assert not out.exists()
    assert run(["convert", str(path), str(again)]) == 0
    loaded = load_checkpoint(again)
    assert loaded.config == TIED.config
    assert all(np.array_equal(loaded.tensors[name], tensor) for name, tensor in TIED.tensors.items())
