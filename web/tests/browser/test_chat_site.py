"""Sites of models with a tokenizer and a template of their own, in Chromium: Python's replies, and the page's chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsed import EXPECTED, Browsed
from goldens import given
from template_models import CHATML

import glinfer
from glinfer.config import ModelConfig
from glinfer.export.site import export_web
from glinfer.formats import random_checkpoint, save_checkpoint
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]

SHAPE = "family=llama,blocks=2,heads=4,kv_heads=2,dim=32,inner=64,vocab=340,context=96"
SYSTEM = {"role": "system", "content": "Be kind."}
MESSAGES = [
    {"role": "user", "content": "hello <|im_end|>\n"},
    {"role": "assistant", "content": "the é 🚀"},
    {"role": "user", "content": "  日本語 world"},
]
SEEDED: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "seed": 7,
}
JS_NAMES = {"top_k": "topK", "top_p": "topP", "min_p": "minP", "repetition_penalty": "repetitionPenalty"}


def write_llama(folder: Path, template: str) -> Path:
    """A Llama of random weights with a byte-level BPE and a template, whose most likely tokens are of all kinds."""
    folder.mkdir()
    library = given.byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    library.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    save_checkpoint(random_checkpoint(ModelConfig.from_options(SHAPE), seed=3), folder / "model.safetensors")
    return folder / "model.safetensors"


EDITED = f"""(async () => {{
  const {{ model }} = glinfer;
  let rows = 0;
  const {{ run }} = model.replay;
  model.replay.run = function (values, options) {{
    rows += options.companion === "rows" ? values.rows : 0;
    return run.call(this, values, options);
  }};
  const said = async (messages) => {{
    rows = 0;
    return [(await model.chat(messages, {{ temperature: 0, maxTokens: 4 }})).ids, rows];
  }};
  const edited = {json.dumps([*MESSAGES[:-1], {"role": "user", "content": "two hundred worlds"}])};
  await said({json.dumps(MESSAGES)});
  const found = await said(edited);
  model.rewind(model.ids.length);
  found.push(...(await said(edited)));
  model.replay.run = run;
  return found;
}})()"""
"""What an edited conversation gives behind the one before, and by itself; with the rows of prompts that were run."""


AHEAD = """(async () => {
  const { model } = glinfer;
  const ahead = () => model.ids.length && model.driver.cached >= model.ids.length - 1;
  while (!ahead()) await new Promise((next) => setTimeout(next, 20));
  return [model.ids, model.drawsIssued];
})()"""
"""Waits until a page has run what it knows of the next prompt; the tokens, and the draws that it took."""

KEPT = """(async (spoil, known) => {
  for (;;) {
    const [name] = await caches.keys();
    const store = await caches.open(name);
    const found = await store.match("https://kept.invalid/beginning");
    const bytes = found ? new Uint8Array(await found.arrayBuffer()) : [];
    if (bytes.length && (!known || String(bytes) === known)) {
      if (spoil) await store.put("https://kept.invalid/beginning", new Response(bytes.with(-1, bytes.at(-1) ^ 1)));
      return String(bytes);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
})"""
"""Waits until a page has kept its beginning, or those very bytes, and gives them; a bit of it can be spoilt."""


def called(method: str, *given: Any) -> str:
    """A call of a method of the model as an expression; a generator's pieces become an array."""
    options = {JS_NAMES.get(name, name): value for name, value in given[-1].items()}
    arguments = ", ".join(map(json.dumps, (*given[:-1], options)))
    return (
        f"(async () => {{ const found = glinfer.model.{method}({arguments}); if (found.then) return await found; "
        "const all = []; for await (const piece of found) all.push(piece); return all; })()"
    )


def test_a_page_chats_as_python_does(browsed: Browsed, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m", CHATML)
    made = export_web(path, tmp_path / "site", limits="webgl2")
    assert made.notes == ()
    assert made.plan["model"]["chat"]["system"]
    with glinfer.load(path) as model:
        greedy = model.chat([SYSTEM, *MESSAGES], temperature=0, max_tokens=24)
        seeded = model.chat(MESSAGES, max_tokens=24, **SEEDED)
        # As the page reserves: a reply of 24 tokens leaves no room for the first turn.
        session = model.chat_session(system="Be kind.")
        turns = [str(session.send(text, temperature=0, max_tokens=24)) for text in ("one <|im_start|>", "two", "three")]
        assert len(session.messages) < 1 + 2 * len(turns)
        whole = "".join(model.stream("hello<|im_end|> world", temperature=0, max_tokens=30))
        assert model.tokenizer is not None
        ids = model.generate(model.tokenizer.encode("hello"), temperature=0, max_tokens=120)
    with serving(made.folder) as url:
        browsed.do("open", f"{url}?minimum=1&worker=0&offline=0")
        browsed.do("says", "#status", "Ready.")
        assert "Ask a question" in browsed.do("text", "#invitation")
        found = browsed.do("evaluate", called("chat", [SYSTEM, *MESSAGES], {"temperature": 0, "maxTokens": 24}))
        assert (found["text"], found["promptTokens"], found["tokens"], found["finishReason"]) == (
            *(str(greedy), greedy.prompt_tokens, greedy.tokens, greedy.finish_reason),
        )
        found = browsed.do("evaluate", called("chat", MESSAGES, {**SEEDED, "maxTokens": 24}))
        assert found["text"] == str(seeded)
        pieces = browsed.do("evaluate", called("streamChat", MESSAGES, {**SEEDED, "maxTokens": 24}))
        assert "".join(pieces) == str(seeded)
        assert len(pieces) > 1
        pieces = browsed.do("evaluate", called("stream", "hello<|im_end|> world", {"temperature": 0, "maxTokens": 30}))
        assert "".join(pieces) == whole
        prompt = browsed.do("evaluate", "glinfer.model.tokenizer.encode('hello')")
        again = browsed.do("evaluate", called("stream", prompt, {"temperature": 0, "maxTokens": 120}))
        assert again == ids
        loaded = (
            "import('./glinfer/model.js').then(async ({load}) => { const model = await load(document.baseURI); "
            f"let {{text}} = await model.chat({json.dumps(MESSAGES)}, {{temperature: 0, maxTokens: 5}}); "
            "model.release(); await model.chat('a').catch(({message}) => (text += message)); return text; })"
        )
        with glinfer.load(path) as model:
            assert browsed.do("evaluate", loaded) == (
                f"{model.chat(MESSAGES, temperature=0, max_tokens=5)}the model was released; load it again"
            )
        wrong = "glinfer.model.chat([{role: 'assistant', content: 'a'}]).catch((error) => error.message)"
        assert browsed.do("evaluate", wrong) == 'message 0 has the role "assistant"; expected system or user there'
        ids, rows, again, all_rows = browsed.do("evaluate", EDITED)
        assert ids == again
        assert 0 < rows < all_rows  # an edited message: the conversation before it is not computed again

        objects_of = "[glinfer.model.replay.textures.length, glinfer.model.replay.framebuffers.size]"
        objects = browsed.do("evaluate", objects_of)
        # The page itself: a system prompt among the settings, turns, and the oldest left out where the context is full.
        for selector, text in (("#system", "Be kind."), ("#length", "24"), ("#temperature", "0")):
            browsed.do("fill", selector, text)
        for number, (text, reply) in enumerate(zip(("one <|im_start|>", "two", "three"), turns, strict=True), 1):
            browsed.do("fill", "#message", text)
            browsed.do("press", "#message", "Enter")
            browsed.do("wait", f"#log .turn:nth-of-type({2 * number})")
            browsed.do("wait", "#stop:disabled")
            browsed.do("says", "#status", "Done.")
            # What was written, and not how its Markdown is shown.
            assert browsed.do("evaluate", "glinfer.page.turns.at(-1).answer") == reply
        assert browsed.do("evaluate", objects_of) == objects, "turns leave nothing of WebGL behind"
        assert "the model does not see the messages above" in browsed.do("text", "#log .left-out")
        assert [address for address in browsed.asked if not address.startswith(url)] == []
    assert [line for line in browsed.console if EXPECTED not in line] == []


def test_a_template_that_the_page_cannot_render_leaves_one_that_continues_texts(
    browsed: Browsed, tmp_path: Path
) -> None:
    path = write_llama(tmp_path / "m", CHATML + "{{ '' * 2 }}")
    made = export_web(path, tmp_path / "site", limits="webgl2", single=True)
    with glinfer.load(path) as model:
        text = "".join(model.stream("hello world", temperature=0, max_tokens=16))
    browsed.do("open", (made.folder / "index.html").as_uri())
    browsed.do("says", "#status", "Ready.")
    invitation = browsed.do("text", "#invitation")
    assert "This model continues a text" in invitation
    assert "This model's chat template cannot be rendered here (Unknown operator" in invitation
    for selector, value in (("#length", "16"), ("#temperature", "0"), ("#message", "hello world")):
        browsed.do("fill", selector, value)
    browsed.do("click", "#send")
    browsed.do("wait", "#log .turn")
    browsed.do("wait", "#stop:disabled")
    assert browsed.do("evaluate", "document.querySelector('#log .answer').textContent") == text
    refused = browsed.do("evaluate", "glinfer.model.chat('a').catch((error) => error.message)")
    assert refused.startswith("this model cannot chat: this model's chat template cannot be rendered here")


def test_a_second_visit_goes_on_behind_the_beginning(browsed: Browsed, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m", CHATML)
    made = export_web(path, tmp_path / "site")
    with glinfer.load(path) as model:
        expected = str(model.chat("one", temperature=0, max_tokens=8))
    with serving(made.folder) as url:

        def visit() -> tuple[list[int], int]:
            """The tokens that the model holds before anything was written, and how many draws it took to run them."""
            browsed.do("open", f"{url}?worker=0&offline=0")
            browsed.do("says", "#status", "Ready.")
            return tuple(browsed.do("evaluate", AHEAD))

        first, draws = visit()
        assert len(first) >= 4
        assert draws > 0
        kept = browsed.do("evaluate", f"{KEPT}(true)")
        assert visit() == (first, draws), "what is damaged is computed again"
        assert browsed.do("evaluate", f"{KEPT}(false, {json.dumps(kept)})") == kept
        assert visit() == (first, 0)
        browsed.do("fill", "#temperature", "0")
        browsed.do("fill", "#length", "8")
        browsed.do("fill", "#message", "one")
        browsed.do("press", "#message", "Enter")
        browsed.do("says", "#status", "Done.")
        answers = "[glinfer.page.turns.at(-1).answer, glinfer.model.driver.cached]"
        answer, cached = browsed.do("evaluate", answers)
        assert answer == expected
        assert cached > len(first)
    assert [line for line in browsed.console if EXPECTED not in line] == []
