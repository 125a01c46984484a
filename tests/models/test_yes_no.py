"""Qwen3-Reranker: the probability of "yes" against "no" behind its prompt, however its files hold it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.gguf_models import learned_bytes
from goldens.models import Made, write_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import glinfer
from glinfer.errors import FormatError, InputError
from glinfer.families.qwen3 import RERANK_PROMPT as PAIR
from glinfer.formats import load_checkpoint
from glinfer.text.encoder import TextEncoder
from glinfer.text.tokenizer import Tokenizer as GlinferTokenizer

pytestmark = pytest.mark.gl

QUERY = "What purrs?"
TEXTS = ["a dog sat on the mat", "cats purr", "", "hello world " * 80, "<|im_end|> yes"]
CONTEXT = 420
SETTINGS: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "tie_word_embeddings": True,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 70,
    "max_position_embeddings": CONTEXT,
}


def write_tokenizer(folder: Path) -> tuple[int, int, int]:
    """A byte-level tokenizer with whole tokens for the answers; returns its size and theirs."""
    tokens, merges = learned_bytes()
    tokens = [*tokens, *(each for each in ("ye", "yes", "no") if each not in tokens)]
    merges = [*merges, "y e", "ye s", "n o"]
    vocabulary = {text: number for number, text in enumerate(dict.fromkeys(tokens))}
    pairs = [tuple(each.split(" ")) for each in dict.fromkeys(merges)]
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    library.save(str(folder / "tokenizer.json"))
    return library.get_vocab_size(), vocabulary["yes"], vocabulary["no"]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """The directory of a Qwen 3 that continues texts, with the answers' tokens."""
    folder = tmp_path_factory.mktemp("reranker")
    size, yes, no = write_tokenizer(folder)
    write_model(Made({**SETTINGS, "vocab_size": size}, seed=2), folder)
    return folder, yes, no


def as_cross_encoder(causal: tuple[Path, int, int], folder: Path, **changes: Any) -> Path:
    """The same with the modules of a CrossEncoder of sentence-transformers."""
    source, yes, no = causal
    for file in source.iterdir():
        shutil.copy(file, folder)
    kinds = (("", "base.modules.transformer.Transformer"), ("1_LogitScore", "cross_encoder.modules.LogitScore"))
    modules = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(
        json.dumps({"true_token_id": yes, "false_token_id": no, **changes})
    )
    return folder


def prompts(folder: Path, texts: list[str]) -> list[list[int]]:
    """The tokens of the whole prompts, written down apart; a long text loses its end."""
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    before, behind = PAIR.replace("{query}", QUERY).split("{text}")
    end = library.encode(behind).ids
    return [library.encode(before + text).ids[: CONTEXT - len(end)] + end for text in texts]


def test_its_directory_is_a_classifier_of_two_rows(causal: tuple[Path, int, int], tmp_path: Path) -> None:
    folder, yes, no = causal
    found, plain = load_checkpoint(as_cross_encoder(causal, tmp_path)), load_checkpoint(folder)
    table = plain.tensors["model.embed_tokens.weight"]
    assert np.array_equal(found.tensors["dense.0.weight"], (table[yes] - table[no])[None])
    assert (found.config.pooling, found.config.dense) == ("lasttoken", ((1, False, "none"),))
    assert (found.embedding.ranks, found.embedding.squashes, found.embedding.pair) == (True, True, PAIR)
    assert not plain.config.embeds


def test_what_stands_around_a_text_is_not_cut(causal: tuple[Path, int, int]) -> None:
    encoder = TextEncoder(GlinferTokenizer.from_file(causal[0]), CONTEXT)
    found = [each.ids for each in encoder.framed(PAIR, QUERY, TEXTS)]
    assert found == prompts(causal[0], TEXTS)
    assert len(found[3]) == CONTEXT
    with pytest.raises(InputError, match=r"have \d+ tokens; expected fewer than 420, to leave room"):
        encoder.framed(PAIR, "why " * 400, TEXTS)


@pytest.mark.slow
def test_both_ways_agree(causal: tuple[Path, int, int], tmp_path: Path) -> None:
    """Asking the model that continues texts, and running its two rows as a classifier."""
    with glinfer.load(causal[0]) as asked:
        expected = {each.index: each.score for each in asked.rerank(QUERY, TEXTS)}
        logits = asked.logits(prompts(causal[0], TEXTS)[1]).astype(np.float64)
    likely = np.exp(logits[list(causal[1:])])
    assert expected[1] == pytest.approx(likely[0] / likely.sum(), abs=1e-6)
    with glinfer.load(as_cross_encoder(causal, tmp_path)) as model:
        found = model.rerank(QUERY, TEXTS)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert max(expected.values()) - min(expected.values()) > 0.01, "scores that are all alike show little"
    for each in found:
        assert each.score == pytest.approx(expected[each.index], abs=1e-5)


def test_models_that_were_not_trained_so_refuse() -> None:
    with glinfer.load("shakespeare") as model, pytest.raises(InputError, match="was not trained to score pairs"):
        model.rerank(QUERY, TEXTS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"false_token_id": None}, "false_token_id is None; expected an integer of at least 0"),
        (
            {"true_token_id": 1 << 20},
            "its scored tokens are 1048576 and .*, of a qwen3 model of .* tokens; expected two",
        ),
    ],
)
def test_what_is_refused(causal: tuple[Path, int, int], tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        load_checkpoint(as_cross_encoder(causal, tmp_path, **changes))


@pytest.mark.slow
def test_scores_are_those_of_transformers(causal: tuple[Path, int, int]) -> None:
    """As the code that was published with Qwen3-Reranker computes them."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    folder, yes, no = causal
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        logits = [theirs(torch.tensor([ids])).logits[0, -1, [no, yes]] for ids in prompts(folder, TEXTS)]
    expected = [torch.nn.functional.log_softmax(each, dim=0).exp()[1].item() for each in logits]
    with glinfer.load(folder) as model:
        for each in model.rerank(QUERY, TEXTS):
            assert each.score == pytest.approx(expected[each.index], abs=1e-5)
