"""The passes that choose among filtered tokens: against float64, against the sampler, and in sequences and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS
from logit_rows import Floats, Rows, over, packed, some_logits
from tiers import tiered

from glinfer.engine import batch
from glinfer.engine.batch import Batch
from glinfer.engine.logits import LogitChanges, change_logits
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.run import cached
from glinfer.engine.run.choice import Choice
from glinfer.engine.sampler import Sampler, SamplingOptions, sample_rows
from glinfer.gl.context import Device
from glinfer.inspect.verify.draws import choice_error
from glinfer.kernels import OPS
from glinfer.kernels.fused.allowed import allowed_tokens, mask_words
from glinfer.kernels.fused.changes import WRITTEN, change_word, changed_logits
from glinfer.kernels.fused.choice import FILTER_WORDS, LISTED, pieces_for
from glinfer.kernels.fused.rows import fill_choices, row_table
from glinfer.kernels.fused.sample import best_candidates
from glinfer.kernels.spec import Array
from glinfer.lower.fused.choice import CHANGES as CHANGE_TABLE
from glinfer.lower.fused.choice import CHOICE_DRAWS, TEXELS
from glinfer.program.oracle import by_output, run_draw, written_rows

VOCABS = (1, 2, 3, 4, 5, 63, 64, 65, 129, 257, 500, 513, 2047, 3001, 5256, 49152)


def chosen_by_oracles(logits: Floats, sampler: Sampler) -> tuple[int, float, bool]:
    """The id, the score and the doubt that the three passes leave of one row, by their oracles in float32."""
    table, pieces = row_table(1), pieces_for(logits.size)
    table[0, FILTER_WORDS] = sampler.options.filter_words
    fill_choices(table, [sampler.draw])
    params = {"ROWS": 1, "VOCAB": logits.size, "PIECES": pieces, "first_row": 0}
    size = 1, LISTED * pieces

    def run(op: str, inputs: Mapping[str, Array], size: tuple[int, int]) -> Floats:
        return np.asarray(OPS[op].oracle({**inputs, "rows": table}, params, size), dtype=np.float32)

    lists = dict(zip(("best", "drawn", "facts", "other"), run("choice_list", {"x0": logits[None]}, size), strict=True))
    ranks = dict(zip(("low", "high", "further"), run("choice_rank", lists, size), strict=True))
    ids, scores, doubts = best_candidates(run("choice_pick", {**lists, **ranks}, (1, 64)))
    return int(ids[0]), float(scores[0]), bool(doubts[0])


def odd_logits(random: np.random.Generator, vocab: int) -> Floats:
    """Logits of one of many kinds: ties, masked tokens, all alike, one far above the others, of every size."""
    logits = random.normal(size=vocab) * random.choice([0.01, 1.0, 3.0, 10.0, 1e30])
    kind = random.integers(7)
    if kind in (1, 6):
        logits = np.round(logits)
    if kind in (2, 6):
        logits[random.random(vocab) < random.choice([0.1, 0.5, 0.99])] = -np.inf
    if kind == 3:
        logits = np.sort(logits)
    if kind == 4:
        logits[:] = logits[0]
    if kind == 5:
        logits[random.integers(vocab)] += 30.0
    if not np.isfinite(logits).any():
        logits[0] = 0.0
    return logits.astype(np.float32)


def odd_options(random: np.random.Generator, vocab: int) -> SamplingOptions:
    chosen: dict[str, Any] = {"seed": int(random.integers(1000))}
    chosen["temperature"] = float(random.choice([1e-4, 0.01, 0.5, 0.8, 1.0, 1.5, 10.0, 1e3, 1e6]))
    every: Mapping[str, list[float]] = {
        "top_k": [1, 2, 5, 40, 200, 600, 3000, vocab],
        "top_p": [0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9],
        "min_p": [1e-9, 0.01, 0.05, 0.5, 1.0],
    }
    for name, values in every.items():
        if random.random() < 0.45:
            value = random.choice(values)
            chosen[name] = int(value) if name == "top_k" else float(value)
    return SamplingOptions(**chosen)


@tiered(("seed", "count"), [(0, 120), (1, 800)])
def test_a_sure_choice_is_the_samplers(seed: int, count: int) -> None:
    random, sure = np.random.default_rng(seed), 0
    for number in range(count):
        logits = odd_logits(random, VOCABS[number % len(VOCABS)])
        sampler = Sampler(odd_options(random, logits.size))
        sampler.step = number
        token, score, doubt = chosen_by_oracles(logits, sampler)
        sure += not doubt
        scores = sampler.scores(logits)
        assert doubt or token == sampler.sample(logits) or np.isclose(scores[token], score, rtol=1e-6), sampler.options
    assert sure > 0.5 * count


def test_usual_options_are_seldom_unsure() -> None:
    """Over logits as models have them: a few dozen likely tokens above a wide bell, 49,152 in all."""
    random, unsure = np.random.default_rng(5), 0
    usual: list[dict[str, Any]] = [
        {"temperature": 0.7, "top_k": 40, "top_p": 0.95},
        {"temperature": 0.8, "top_p": 0.95},
        {"min_p": 0.05},
    ]
    for number in range(30):
        logits = random.normal(size=49152).astype(np.float32) * 2
        likely = random.integers(0, logits.size, 60)
        logits[likely] += random.uniform(5, 14, likely.size).astype(np.float32)
        unsure += chosen_by_oracles(logits, Sampler(SamplingOptions(seed=number, **usual[number % 3])))[2]
    assert unsure <= 1


def test_what_the_lists_hide_is_unsure() -> None:
    """Six of the best seven tokens are in one piece, of which four are listed."""
    logits = np.full(5000, -9.0, dtype=np.float32)
    logits[[7, 135, 263, 391, 519, 647, 3]] = 5, 6, 7, 8, 9, 10, 4
    doubts = set()
    for seed in range(40):
        sampler = Sampler(SamplingOptions(temperature=30.0, top_k=6, seed=seed))
        token, _, doubt = chosen_by_oracles(logits, sampler)
        assert doubt or token == sampler.sample(logits)
        doubts.add(doubt)
    assert doubts == {True, False}


@pytest.mark.parametrize(("bad", "where"), [(np.nan, 0), (np.nan, 4999), (np.inf, 77)])
def test_broken_logits_are_unsure(bad: float, where: int) -> None:
    logits = np.arange(5000, dtype=np.float32) / 500
    logits[where] = bad
    assert chosen_by_oracles(logits, Sampler(SamplingOptions(top_k=3)))[2]
    assert chosen_by_oracles(np.full(70, -np.inf, np.float32), Sampler(SamplingOptions(top_k=3)))[2]


def test_pieces_of_a_vocabulary() -> None:
    for vocab, pieces in ((1, 64), (8192, 64), (8193, 128), (49152, 128), (1 << 19, 128), (1 << 24, 4096)):
        assert pieces_for(vocab) == pieces
        assert -(-vocab // pieces) <= 4096, "two steps have to fit a float32"


# ---- rows of the sampler


def test_rows_are_chosen_together_as_alone() -> None:
    random = np.random.default_rng(2)
    for vocab in (3, 130, 700, 5256):
        logits = np.stack([odd_logits(random, vocab) for _ in range(24)])
        options = [
            dataclasses.replace(odd_options(random, vocab), repetition_penalty=1 + row % 3 / 10) for row in range(24)
        ]
        histories = random.integers(0, vocab, (24, 20))
        samplers = [Sampler(each) for each in options]
        found = sample_rows(samplers, logits, list(histories))
        assert [each.step for each in samplers] == [1] * 24
        for row, each in enumerate(options):
            assert found[row] == int(np.argmax(Sampler(each).scores(logits[row], histories[row]))), each


# ---- the passes


def some_samplers(count: int, penalty: float = 1.0) -> list[Sampler]:
    options: list[dict[str, Any]] = [
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 0},
        {"min_p": 0.05},
        {"temperature": 1.2, "top_k": 200},
        {"temperature": 0.01, "top_k": 3},
    ]
    made = [
        Sampler(SamplingOptions(seed=number, repetition_penalty=penalty, **options[number % len(options)]))
        for number in range(count)
    ]
    for number, sampler in enumerate(made):
        sampler.step = 7 * number
    return made


def check_draws(choice: Choice, inputs: Mapping[str, Array], rows: int) -> None:
    """Each of the three passes against float64, on the GPU's own inputs."""
    session, values = choice.session, {"rows": rows, "row": 0, "slot": 0}
    for spec in session.plan.draws[:CHOICE_DRAWS]:
        given = {name: inputs[name] if name in inputs else session.read(name) for name in spec.reads}
        for name, expected in by_output(spec, run_draw(spec, given, values)).items():
            found = np.asarray(session.read(name), np.float64)[: len(expected)]
            assert choice_error(name, found, np.asarray(expected)) < 1e-5, (spec.name, name)


HISTORY = np.array([1, 2, 3, 1, 700, 9999, 31000])


def change(made: Rows, choice: Choice, logits: Floats, samplers: Mapping[int, Sampler]) -> list[int]:
    """Change the logits of rows, here and in the table of the passes, which find the newest tokens in picks alone.

    Returns the words of the rows.
    """
    vocab = logits.shape[1]
    held = (HISTORY % vocab).tolist()
    picks = np.zeros((len(logits), 64), np.float32)
    picks[:, 1::4] = np.arange(len(logits))[:, None]
    picks[:, 4 : 4 + 2] = 1.0, held[-1]  # the largest score
    made.session.write(made.picks, picks)
    changes = LogitChanges(0.7, 0.4, {held[0]: 3.0, vocab - 1: -2.0, 0: 1.5})
    change_logits(logits, dict.fromkeys(samplers, (changes, held[3:])))
    assert choice.changes is not None
    words = []
    for number, (row, sampler) in enumerate(samplers.items()):
        ahead = min(number, 1) if len(samplers) > 1 else 0
        choice.changes.fill(row, sampler.options, held[: 7 - ahead], changes, held[3 : 7 - ahead])
        words.append(change_word(ahead, 0))
    return words


def some_masks(count: int, vocab: int) -> Floats:
    """Rows that allow everything, half, a few, and one token."""
    random = np.random.default_rng(3)
    shares = np.array([1.0, 0.5, 0.02, 0.0])[np.arange(count) % 4]
    allowed = random.random((count, vocab)) < shares[:, None]
    allowed[np.arange(count), random.integers(0, vocab, count)] = True
    return allowed


def test_bits_of_the_table() -> None:
    for vocab in (1, 31, 32, 33, 127, 128, 129, 300):
        allowed = some_masks(4, vocab)
        words = packed(allowed)
        assert words.shape == (4, mask_words(vocab))
        assert words.shape[1] % 4 == 0
        assert 32 * words.shape[1] - vocab < 128
        for row, each in zip(words, allowed, strict=True):
            assert np.array_equal(allowed_tokens(row, vocab), each)
            assert [int(row[token // 32]) >> token % 32 & 1 for token in range(vocab)] == each.astype(int).tolist()


@pytest.mark.gl
@tiered("name", ["llvmpipe", "GPU", "one by one"])
@pytest.mark.parametrize(("masked", "changed"), [(False, False), (True, False), (False, True), (True, True)])
def test_every_form_against_float64(device: Device, name: str, masked: bool, changed: bool) -> None:
    number = list(KERNELS).index(name)
    targets, vocab = (1, 8, 4, 2)[number % 4], (3000, 300, 49152, 5)[number % 4]
    logits = some_logits(targets * 2 if targets > 1 else 1, vocab)
    with over(device, logits, KERNELS[name], targets) as made:
        for numbers in ([0], list(range(len(logits)))[::-1]):
            masks = packed(some_masks(len(numbers), vocab)) if masked else None
            samplers, choice = (
                some_samplers(len(numbers), penalty=1.3 if changed else 1.0),
                made.choices[masked, changed],
            )
            expected, words, inputs = logits.copy(), [], dict[str, Array]()
            if changed:
                words = change(made, choice, expected, dict(zip(numbers, samplers, strict=True)))
                inputs = {made.picks: made.session.read(made.picks)}
            candidates = made.run(numbers, samplers, masks, words)
            rows = {
                each.name: made.session.read(each.name)
                for each in choice.session.plan.of_kind("input")
                if each.name in made.session.plan.table
            }
            table = {"choice.rows": choice.table}
            mask = {} if masks is None else {"choice.mask": np.resize(masks, (len(choice.table), masks.shape[1]))}
            check_draws(choice, {**rows, **table, **mask, **inputs}, len(numbers))
            ids, _, doubts = best_candidates(candidates)
            for row, (source, sampler) in enumerate(zip(numbers, samplers, strict=True)):
                scores = expected[source]
                if masks is not None:
                    scores = np.where(allowed_tokens(masks[row], vocab), scores, -np.inf)
                assert doubts[row] or ids[row] == sampler.sample(scores, HISTORY % vocab)


@pytest.mark.gl
def test_a_row_has_the_bits_it_has_alone(device: Device) -> None:
    logits, samplers = some_logits(16, 300), some_samplers(8)
    with over(device, logits, KERNELS["llvmpipe"], 8) as made:
        together = made.run(range(8), samplers)
        for row in (0, 3, 7):
            assert np.array_equal(made.run([row], [samplers[row]])[0], together[row])


# ---- sequences and batches

PROMPT = [13, 132, 251, 70]
OPTIONS: dict[str, dict[str, Any]] = {
    "filtered": {"temperature": 0.2, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 7},
    "nucleus": {"temperature": 0.3, "top_p": 0.95, "seed": 8},
    "penalised": {"temperature": 0, "repetition_penalty": 1.3},
    "rewarded": {"repetition_penalty": 0.9, "top_k": 90, "temperature": 0.3, "seed": 10},
}
CHANGES: dict[str, Any] = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}}
CHANGED: list[dict[str, Any]] = [
    {"presence_penalty": 2.0, "logit_bias": {7: 2.0, 132: -100.0}, "seed": 11},
    {"frequency_penalty": 1.5, "repetition_penalty": 1.2, "top_p": 0.9, "temperature": 0.3, "seed": 12},
    {"frequency_penalty": -2.0, "presence_penalty": -1.0, "temperature": 0},
]


@pytest.fixture
def passing(model: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The model, of which passes choose the tokens of batches too."""
    monkeypatch.setattr(batch, "filters_by_passes", lambda device: True)
    return model


def by_hand(model: Model, prompt: Sequence[int], options: dict[str, Any], count: int) -> list[int]:
    """What the sampler chooses from the logits, token by token."""
    presence, frequency, bias = (options.get(name, off) for name, off in CHANGES.items())
    changes = LogitChanges(presence, frequency, bias)
    sampler = Sampler(SamplingOptions(**{name: each for name, each in options.items() if name not in CHANGES}))
    with model.session() as session:
        session.prefill(prompt)
        for _ in range(count):
            logits = session.logits()[None]
            change_logits(logits, {0: (changes, session.ids[len(prompt) :])})
            session.step(sampler.sample(logits[0], session.ids))
        return session.ids[len(prompt) :]


@pytest.mark.gl
@pytest.mark.parametrize("options", [*CHANGED, *(OPTIONS[name] for name in ("penalised", "rewarded"))])
def test_a_followed_text_changes_logits_as_a_new_one(device: Device, options: dict[str, Any]) -> None:
    random, vocab = np.random.default_rng(5), 300
    changes = LogitChanges(*(options.get(name, off) for name, off in CHANGES.items()))
    sampling = SamplingOptions(**{name: each for name, each in options.items() if name not in CHANGES})
    prompt, generated = [1, 2, 2], random.integers(0, 8, 14).tolist()
    with over(device, some_logits(2, vocab), KERNELS["llvmpipe"], 2) as made:
        followed, filled = (made.choices[masked, True] for masked in (False, True))
        for count in range(len(generated) + 1):
            new = generated[:count]
            assert followed.changes is not None
            followed.changes.follow(1, "text", sampling, prompt + new, changes, new)
            assert filled.changes is not None
            filled.changes.fill(1, sampling, prompt + new, changes, new)
            logits, tables = random.normal(size=vocab), list[Array]()
            for each in (followed, filled):
                each.upload()
                tables.append(each.session.read(CHANGE_TABLE))
            found, expected = (changed_logits(logits, table[1], np.zeros(0, int)) for table in tables)
            assert np.array_equal(found, expected)
            assert not tables[0][0].any()


@pytest.mark.gl
def test_only_changed_texels_of_a_row_are_written(device: Device) -> None:
    """A long text takes several draws; the next text of the row leaves nothing of it."""
    random, vocab = np.random.default_rng(6), 5256
    with over(device, some_logits(4, vocab), KERNELS["llvmpipe"], 4) as made:
        choice = made.choices[False, True]
        assert choice.changes is not None
        sampling, expected = SamplingOptions(repetition_penalty=1.25), np.zeros((4, vocab))
        for row, count, draws in ((2, 2000, 2), (1, 300, 1), (2, 10, 2)):
            held, issued = random.integers(0, vocab, count), choice.session.draws_issued
            expected[row] = 0
            expected[row, held] = 1
            choice.changes.fill(row, sampling, held.tolist(), LogitChanges(bias={5: -1.5}))
            choice.upload()
            assert choice.session.draws_issued - issued == draws
            table = choice.session.read(CHANGE_TABLE)
            assert np.array_equal(table[:, 5 : 5 + 2 * vocab : 2], expected)
            assert np.array_equal(table[:, 14], np.where(expected.any(axis=1), -1.5, 0))
            assert np.array_equal(table[:, 0], np.where(expected.any(axis=1), 1.25, 0))
        spec, values = choice.session.plan.draws[CHOICE_DRAWS], {"rows": 1, "row": 0, "slot": 0, "written": 7}
        texels = choice.session.read(TEXELS)
        texels[:, 0] = random.permutation(choice.session.plan.table[spec.outputs[0]].shape[0])[:WRITTEN]
        texels[:, 4:] = random.normal(size=(WRITTEN, 4)).astype(np.float32).view(np.uint32)
        former = choice.session.read(spec.outputs[0])
        choice.session.write(TEXELS, texels)
        choice.session.run(values, first=CHOICE_DRAWS)
        former[written_rows(spec, {TEXELS: texels}, values)] = run_draw(spec, {TEXELS: texels}, values)
        assert np.array_equal(choice.session.read(spec.outputs[0]), former)


@pytest.fixture
def doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every second choice of the passes unsure."""
    count = 0

    def doubts(candidates: Floats) -> tuple[Floats, Floats, Floats]:
        nonlocal count
        count += 1
        ids, scores, found = best_candidates(candidates)
        return ids, scores, np.maximum(found, (np.arange(len(ids)) + count) % 2)

    for module in (batch, cached):
        monkeypatch.setattr(module, "best_candidates", doubts)
    monkeypatch.setattr(cached, "unsure", lambda each: bool(doubts(each.reshape(1, -1))[2][0]))


@pytest.mark.gl
class TestSequences:
    def test_tokens_are_the_samplers_without_reading_logits(self, passing: Model) -> None:
        for name, options in OPTIONS.items():
            with passing.session() as session:
                session.prefill(PROMPT)
                session.generate_ids(1)
                session.rewind(1)
                issued = session.draws_issued
                found = session.generate_ids(20, Sampler(SamplingOptions(**options)))
                assert session.logit_reads == 0
                # Three draws in place of one; before every eight tokens one more writes what penalties count.
                further = 3 if "repetition_penalty" in options else 0
                assert session.draws_issued - issued == 20 * (len(passing.plan.draws) + 2) + further
                with session.fork() as other:
                    assert other.generate_ids(1) == session.generate_ids(1)
            assert found == by_hand(passing, PROMPT, options, 20), name

    @pytest.mark.usefixtures("doubtful")
    def test_an_unsure_choice_is_made_from_the_logits(self, passing: Model) -> None:
        for name in OPTIONS:
            expected = by_hand(passing, PROMPT, OPTIONS[name], 20)
            with passing.session() as session:
                session.prefill(PROMPT)
                sampler = Sampler(SamplingOptions(**OPTIONS[name]))
                assert session.generate_ids(20, sampler) == expected
                assert sampler.step == 20
                assert session.logit_reads > 5
                session.rewind(20)
                sampler = Sampler(sampler.options)
                found = session.accept(expected[:6], sampler)
                found += session.accept([*expected[7:9], 0, 0], sampler)
                assert (found, sampler.step) == (expected[: len(found)], len(found))


def requests(count: int) -> list[BatchRequest]:
    found = []
    for number in range(count):
        kinds = *OPTIONS.values(), {"seed": 3}, {"temperature": 0}, {"seed": 4, "top_k": 9, "logprobs": 2}, *CHANGED
        options = kinds[number % len(kinds)]
        prompt = np.random.default_rng(number).integers(0, 300, 3 + number).tolist()
        found.append(BatchRequest(prompt, {**options, "max_tokens": 8}, number))
    return found


def check_batch(model: Model, count: int, slots: int) -> None:
    for result in model.batch(requests(count), slots=slots):
        options = {
            name: each for name, each in result.request.options.items() if name not in ("max_tokens", "logprobs")
        }
        assert result.ids == by_hand(model, list(result.request.prompt), options, 8), options  # type: ignore[arg-type]


@pytest.mark.gl
class TestBatches:
    def test_rows_are_chosen_without_their_logits(self, passing: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        """Filtered ones, and penalised ones."""
        monkeypatch.setattr(Batch, "_logits", None)
        results = list(passing.batch(requests(2), slots=2))
        assert {result.stats.draws for result in results} == {8 * (7 * 2 + 3 + 2)}
        check_batch(passing, 2, 2)
        changed = [*(each for each in OPTIONS.values() if "repetition_penalty" in each), *CHANGED]
        asked = [BatchRequest(PROMPT, {**each, "max_tokens": 20}, number) for number, each in enumerate(changed)]
        for result in passing.batch(asked, slots=2):
            assert result.ids == by_hand(passing, PROMPT, changed[int(str(result.request.key))], 20)

    def test_rows_of_all_kinds_together(self, passing: Model) -> None:
        check_batch(passing, 10, 3)

    def test_rows_are_chosen_from_their_logits_in_software(self, model: Model) -> None:
        check_batch(model, 10, 7)

    @pytest.mark.usefixtures("doubtful")
    def test_unsure_rows_run_again(self, passing: Model) -> None:
        check_batch(passing, 2, 2)
        check_batch(passing, 10, 4)
