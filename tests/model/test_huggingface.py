"""Model directories as Hugging Face's transformers writes them, and the numbers that it computes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.cli.app import run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OF_RANGE = 1e-4
CONTEXT, VOCAB = 220, 97
PLANS = ("fast", "reference")


def saved_gpt2(folder: Path, **settings: Any) -> Any:
    """A small random GPT-2, saved; the model itself."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **{
            "vocab_size": VOCAB,
            "n_positions": CONTEXT,
            "n_embd": 48,
            "n_layer": 2,
            "n_head": 3,
            "bos_token_id": None,
            "eos_token_id": None,
            **settings,
        }
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases begin as ones and zeros
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def their_logits(model: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = model(torch.tensor([ids])).logits[0].double().numpy()
    return found


def prompt(tokens: int) -> list[int]:
    return np.random.default_rng(tokens).integers(2, VOCAB, tokens).tolist()


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"tie_word_embeddings": False, "n_inner": 70, "activation_function": "gelu", "layer_norm_epsilon": 1e-4},
    ],
    ids=["tied", "untied"],
)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("gpt2")
    return folder, saved_gpt2(folder, **request.param)


@pytest.mark.parametrize("plan", PLANS)
def test_logits_agree_at_every_position(saved: tuple[Path, Any], plan: str) -> None:
    folder, theirs = saved
    with glinfer.load(folder, plan=plan) as model:
        for tokens in (1, 7, 200):
            ids = prompt(tokens)
            expected = their_logits(theirs, ids)
            places = range(tokens) if plan == "fast" and tokens <= 7 else sorted({0, tokens // 2, tokens - 1})
            for place in places:
                error = np.abs(model.logits(ids[: place + 1]) - expected[place]).max()
                assert error <= OF_RANGE * np.ptp(expected), (tokens, place)
        if plan == "fast":
            ids = prompt(200)
            expected = their_logits(theirs, ids)
            with model.session() as session:
                for place, token in enumerate(ids):
                    session.step(token)
                    assert np.abs(session.logits() - expected[place]).max() <= OF_RANGE * np.ptp(expected), place


@pytest.mark.parametrize("plan", PLANS)
def test_greedy_tokens_are_equal_for_100_tokens(saved: tuple[Path, Any], plan: str) -> None:
    folder, theirs = saved
    ids = prompt(7)
    with glinfer.load(folder, plan=plan) as model:
        found = model.generate(ids, max_tokens=100, temperature=0)
    assert len(found) == 100
    # One run over what was chosen: were one token another, the first such would show.
    assert their_logits(theirs, ids + found)[6:-1].argmax(-1).tolist() == found


def test_shards_and_single_files_are_the_same_model(saved: tuple[Path, Any], tmp_path: Path) -> None:
    folder, theirs = saved
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    with glinfer.load(folder) as whole, glinfer.load(tmp_path) as sharded:
        assert np.array_equal(whole.logits(prompt(7)), sharded.logits(prompt(7)))


def test_half_precision_files_are_widened(tmp_path: Path) -> None:
    theirs = saved_gpt2(tmp_path / "full")
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    theirs.to(torch.float32)
    with glinfer.load(tmp_path / "half") as model:
        expected = their_logits(theirs, prompt(7))[-1]
        assert np.abs(model.logits(prompt(7)) - expected).max() <= OF_RANGE * np.ptp(expected)


def test_commands_take_the_directory(saved: tuple[Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = saved
    assert run(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "gpt2" in out
    assert run(["draws", str(folder), "--plan", "reference"]) == 0
    assert f"{2 * (8 + 4 * 3) + 4} draws/token" in capsys.readouterr().out
    assert run(["verify", str(folder), "--draws"]) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert run(["generate", str(folder), "--ids", "5,6,7", "--max-tokens", "4", "--temperature", "0"]) == 0


def with_tokenizer(folder: Path) -> Any:
    """A GPT-2 with a byte-level tokenizer of its own: the model and the tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    words.train_from_iterator(["once upon a time there was a naïve café, and then there was none"] * 4, trainer)
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    size = words.get_vocab_size()
    return saved_gpt2(folder, vocab_size=size + 5, eos_token_id=0), words


def test_text_is_that_of_transformers_with_the_directorys_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    theirs, words = with_tokenizer(folder)
    text = "once upon a café"
    ids = words.encode(text).ids
    found = theirs.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False, pad_token_id=0)[0, len(ids) :]
    expected = words.decode(found.tolist())
    with glinfer.load(folder) as model:
        assert model.tokenizer is not None
        assert model.tokenizer.encode(text) == ids
        assert model.generate(text, max_tokens=40, temperature=0) == expected
        streamed = "".join(model.stream(text, max_tokens=40, temperature=0))
    assert streamed == expected


def test_a_text_ends_at_the_directorys_end_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "m"
    with_tokenizer(folder)
    with glinfer.load(folder) as model:
        text = "once upon"
        first = model.generate(model.tokenizer.encode(text), max_tokens=1, temperature=0)[0]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{first}]}}')
    with glinfer.load(folder) as model:
        assert model.generate(text, max_tokens=9, temperature=0) == ""
    assert run(["generate", str(folder), text, "--max-tokens", "9", "--temperature", "0", "--json"]) == 0
    assert '"finish_reason": "stop"' in capsys.readouterr().out


def test_batches_and_scores_take_the_directory(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    with_tokenizer(folder)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "once upon"}\n{"prompt": "a café"}\n')
    out = tmp_path / "out.jsonl"
    arguments = ["generate", str(folder), "--batch", str(tmp_path / "prompts.jsonl"), "--out", str(out)]
    assert run([*arguments, "--max-tokens", "5", "--quiet"]) == 0
    assert len(out.read_text().splitlines()) == 2
    (tmp_path / "text.txt").write_text("once upon a time there was a naïve café, and then there was none " * 3)
    assert run(["eval", str(folder), "--text", str(tmp_path / "text.txt")]) == 0
