"""What comes over a network, or in files of requests: answers of a hub, bodies, batches, structures, chats, replies.

Everything up to where a device would be needed: bodies become options, conversations ids, structures automata.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from glinfer.engine.requests import BatchRequest
from glinfer.hub.choice import choose, gguf_choices, read_listing
from glinfer.hub.names import HubName, hub_name
from glinfer.jobs.files import Target
from glinfer.jobs.manifest import check_manifest, write_manifest
from glinfer.jobs.requests import RequestForm, sent_body
from glinfer.server import protocol
from glinfer.server.errors import ApiError
from glinfer.server.responses import _format, _plain, messages_of
from glinfer.server.routes import ROUTES
from glinfer.server.structured import ToolDefinition, schema_of_format, schemas_of
from glinfer.server.tool_calls import CallDeltas
from glinfer.structured import compiler as compilers
from glinfer.structured.compiler import Compiler
from glinfer.structured.constraint import DeadEnd
from glinfer.structured.gemma import GemmaArguments
from glinfer.structured.structure import Structure, structure_of
from glinfer.structured.tools import FORMS, ToolForm, ToolParser, call_grammar
from glinfer.text.chat import CallTokens, Channels, ReplySplitter
from glinfer.text.marks import Marks
from glinfer.text.reply import ReplyAssembler
from glinfer.text.template_worker import answer
from glinfer.text.templates import JinjaTemplate
from glinfer.text.tokenizer import Tokenizer
from glinfer.text.tokenizers.huggingface import read_hf_tokenizer
from qa.fuzz import seeds
from qa.fuzz.reads import Files, put, resumed, scanned, with_errors

# A hub

_SIZE, _SHA = 100, "b" * 64


def _listed(*paths: str) -> dict[str, Any]:
    entries = [{"rfilename": path, "size": _SIZE, "lfs": {"size": _SIZE, "sha256": _SHA}} for path in paths]
    return {"sha": "a" * 40, "siblings": [*entries, {"rfilename": "README.md", "size": 3, "blobId": "c" * 40}]}


def listings() -> Files:
    """Lists of repositories, as answers of a hub."""
    index = "model.safetensors.index.json"
    made = [
        _listed("m-Q4_K_M.gguf", "m-Q8_0.gguf", "IQ2_XS/m-IQ2_XS-00001-of-00002.gguf"),
        _listed("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"),
        _listed("config.json", index, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    ]
    return {"hub.json": [seeds.compact(each) for each in made]}


def hub_answer(path: Path) -> None:
    """The answer as a list of files, and what is chosen of the list."""
    try:
        listing = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    if not isinstance(listing, dict):
        return
    for text in ("org/model", "org/model:Q8_0", "hf://org/model/config.json", "org/model:IQ2_XS@main"):
        name = hub_name(text)
        assert name is not None, text
        with_errors(partial(_chosen, name, listing))


def _chosen(name: HubName, listing: Mapping[str, Any]) -> None:
    repository = read_listing(name, listing)
    for file in repository.files.values():
        file.hasher()
    for each in gguf_choices(list(repository.files.values())):
        assert each.size >= 0
    chosen = choose(repository, lambda index: ["model-00001-of-00002.safetensors"])
    for file in chosen.files:
        assert ".." not in file.path.split("/")
        assert not file.path.startswith("/")


# Bodies of requests

BODIES = {route.path: route.body for route in ROUTES if route.body is not None}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": _SCHEMA, "strict": True}}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text", "text": "hi <|im_end|>"}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "call_1", "name": "look"}, {"role": "user", "content": "so?"},
]  # fmt: skip
_SAMPLING = {
    "model": "m", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 1, "n": 2,
    "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"1": -100},
    "stop": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}, "user": "u",
}  # fmt: skip


def bodies() -> dict[str, list[dict[str, Any]]]:
    """Bodies by their routes, of chats with a schema and with tools."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA, "strict": True}}
    item = {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"a": 1}'}
    output = {"type": "function_call_output", "call_id": "c", "output": "2"}
    return {
        "/v1/chat/completions": [
            {**_SAMPLING, "messages": TALK, "tools": [_TOOL], "tool_choice": "auto", "logprobs": True},
            {**_SAMPLING, "messages": TALK[:2], "response_format": form, "top_logprobs": 2, "logprobs": True},
        ],
        "/v1/completions": [
            {**_SAMPLING, "prompt": ["a", "b"], "echo": True, "logprobs": 1, "guided_choice": ["yes", "no"]},
            {"model": "m", "prompt": [1, 2], "guided_regex": "[ab]+", "best_of": 1},
        ],
        "/v1/responses": [
            {"model": "m", "input": [*TALK[:1], item, output], "instructions": "i", "tools": [
                {"type": "function", "name": "look", "parameters": _SCHEMA}, {"type": "web_search"}],
             "text": {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}}, "max_output_tokens": 2},
        ],
        "/v1/score": [{"model": "m", "input": [[1, 2], [3]]}],
        "/v1/embeddings": [{"model": "m", "input": ["a", "b"], "dimensions": 3, "encoding_format": "base64"}],
        "/v1/rerank": [{"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}],
        "/v1/attention": [{"model": "m", "messages": TALK[:1], "block": 0, "reply": "r"}],
        "/tokenize": [{"model": "m", "prompt": "x"}],
        "/detokenize": [{"model": "m", "tokens": [1, 2]}],
        "/apply-template": [{"model": "m", "messages": TALK}],
    }  # fmt: skip


def body_files() -> Files:
    """A file for each route, which its number names."""
    found = bodies()
    return {f"{place}.json": [*map(seeds.compact, found[path])] for place, path in enumerate(BODIES)}


def body(path: Path) -> None:
    """The body checked, and what its route makes of it before a model is asked."""
    read = list(BODIES.values())[int(path.stem)].read(path.read_bytes())
    if isinstance(read, protocol.SamplingBody):
        options = read.sampling(index=1)
        json.dumps(options)
        BatchRequest([1], {**options, "max_tokens": read.max_tokens or 1})
    if isinstance(read, protocol.StructuredBody):
        for asked in read.structures().values():
            with_errors(partial(structure_of, asked))
    if isinstance(read, protocol.ChatCompletionRequest):
        for form in FORMS.values():
            with_errors(partial(_grammar, form.name, list(read.tools or ())))
    if isinstance(read, protocol.ResponseRequest):
        with_errors(lambda: schema_of_format(None if read.text is None else read.text.format))
        with_errors(lambda: messages_of(read.input, read.instructions))
        json.dumps([_format(read.text), *map(_plain, read.tools or ()), _plain(read.tool_choice)])
    if messages := getattr(read, "messages", None):
        with_errors(lambda: protocol.conversation(messages))
    if isinstance(read, protocol.CompletionRequest):
        assert isinstance(protocol.listed(read.prompt), list)
    if isinstance(read, (protocol.ScoreRequest, protocol.EmbeddingRequest)):
        assert isinstance(protocol.listed(read.input), list)


def _grammar(form: str, tools: list[ToolDefinition]) -> None:
    if found := schemas_of(each.function for each in tools):
        call_grammar(FORMS[form], found, required=True, parallel=True)


# Batches

_LINES = [
    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x", "seed": None}},
    {"custom_id": "é", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": TALK}},
    {"custom_id": "3", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": ["a"], "stream": 1}},
]
BATCH = b"".join(seeds.compact(line) + b"\n" for line in _LINES)


def batch_requests(path: Path) -> None:
    """A file of requests, and each as it is sent to its route."""
    for line in scanned(RequestForm(), path):
        assert line.digest.startswith("batch_req_")
        with contextlib.suppress(ApiError):
            BODIES[line.url].read(json.dumps(sent_body(line)).encode())


_FINGERPRINT = {"model": {"m": "0123"}, "weights": "f32"}
RESULTS = ("out.jsonl", Target(Path("out.jsonl")).manifest.name)


def batch_results() -> Files:
    """The results of those requests, whole and torn, and the manifest beside them."""
    with tempfile.TemporaryDirectory() as folder:
        lines = scanned(RequestForm(), put(Path(folder), "requests.jsonl", BATCH))
    answer = {"status_code": 200, "request_id": "r", "body": {"usage": {"prompt_tokens": 1}}}
    answers = [{"id": line.digest, "custom_id": line.key, "response": answer, "error": None} for line in lines]
    made = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in answers)
    manifest = seeds.compact({"glinfer": "0.1.0", **_FINGERPRINT})
    return {RESULTS[0]: [made, made[:-9], b""], RESULTS[1]: manifest, "requests.jsonl": BATCH}


def resumed_requests(path: Path) -> None:
    """Results that a resumed run reads, or the manifest beside none."""
    out = path.with_name(RESULTS[0])
    if path == out:
        resumed(RequestForm(), path.with_name("requests.jsonl"), out)
        return
    out.write_bytes(b"")
    with_errors(lambda: check_manifest(Target(out), _FINGERPRINT, required=True))
    write_manifest(Target(out), _FINGERPRINT)
    check_manifest(Target(out), _FINGERPRINT, required=True)


# Structures


def structures() -> Files:
    """Structures of all kinds, which their names say."""
    schemas: list[Any] = [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$", "maxLength": 4},
         "b": {"$ref": "#/$defs/x"}}, "required": ["a"], "additionalProperties": False,
         "$defs": {"x": {"anyOf": [{"enum": [1, "é"]}, {"type": "array", "items": {"type": "integer"},
                                                          "minItems": 1, "maxItems": 3}]}}},
        {"type": "number", "minimum": -1.5, "multipleOf": 0.5}, {"const": {"a": [None, True]}},
        {"type": "string", "format": "date-time"}, {"allOf": [{"type": "object"}, {"minProperties": 1}]}, True,
    ]  # fmt: skip
    texts = ["[ab]{2,3}(c|d)?", r"\d+(?:\.\d{2})?", "(?i:yes|no)", r"[^\x00-\x1f\"]*é"]
    grammars = ['start: "a" b\nb: "x"* | /[0-9]+/', 'start: item ("," item)*\nitem: %json {"type": "integer"}']
    return {
        "json_schema.json": [*map(seeds.compact, schemas)],
        "regex.txt": [each.encode() for each in texts],
        "grammar.txt": [each.encode() for each in grammars],
        "choices.json": seeds.compact(["yes", "no", "é"]),
    }


@cache
def _words() -> Tokenizer:
    from glinfer.engine.random_model import demo_tokenizer

    return Tokenizer(demo_tokenizer(300))


@cache
def _compiler() -> Compiler:
    return Compiler(_words(), 300)


def _structure(path: Path) -> Structure | None:
    """The structure of a case; None where it asks for none, which is null alone."""
    asked: Any = path.read_bytes().decode(errors="surrogateescape")
    if path.stem == "choices":
        with contextlib.suppress(ValueError, RecursionError):
            asked = json.loads(asked)
    found = structure_of({path.stem: asked})
    assert (found is None) is (asked is None)
    return found


def structure(path: Path) -> None:
    """What is looked at before a process of its own compiles it; all of it in this process."""
    if found := _structure(path):
        assert len(compilers._grammar(found)) < 16 * path.stat().st_size + 4096


def structure_apart(path: Path) -> None:
    """Compiled as a server does it, and followed for some tokens."""
    found = _structure(path)
    if found is None:
        return
    constraint = _compiler().constraint(found, (7,))
    with contextlib.suppress(DeadEnd):
        for _ in range(4):
            constraint.forced(8)
            if constraint.done:
                break
            words = constraint.mask()
            token = next(token for token in range(300) if int(words[token // 32]) >> token % 32 & 1)
            constraint.push(token)


# Conversations

_HERMES = (
    "{% if tools %}<|im_start|>system\n<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools><|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_BARE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>ipython {{ m.name }} {{ m.content | "
    'tojson }}{% elif \'tool_calls\' in m %}{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", '
    '"parameters": {{ c.function.arguments | tojson }}}{% endfor %}{% else %}{{ m.content | trim }}{% endif %}'
    "{% endfor %}{{ tools[0].function.parameters.properties | dictsort if tools }}"
)


class _InProcess(JinjaTemplate):
    """A template that is rendered in this process, where the watch sees what it opens."""

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return answer(request)


@cache
def _chatty() -> Tokenizer:
    """A tokenizer whose control tokens messages may spell."""
    values = json.loads(seeds.tokenizer_jsons()[0])
    names = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|start|>", "<|channel|>", "<|message|>")
    values["added_tokens"] = [{"id": 12 + place, "content": name, **seeds.ADDED} for place, name in enumerate(names)]
    values["post_processor"] = None
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer(read_hf_tokenizer(put(Path(folder), "tokenizer.json", seeds.compact(values))))


_TEMPLATES = {"hermes.json": _HERMES, "bare.json": _BARE}


def conversations() -> Files:
    """A conversation with tools, for each template."""
    talk = [{**each, "content": each["content"] if isinstance(each["content"], str) else "hi"} for each in TALK]
    calls = [{**_CALL, "function": {"name": "l", "arguments": "{}"}}]
    talk[2] = {"role": "assistant", "content": "", "tool_calls": calls}
    return dict.fromkeys(_TEMPLATES, seeds.compact({"messages": talk, "tools": [_TOOL]}))


def conversation(path: Path) -> None:
    """A chat over HTTP up to its ids, of which no message has a control token more than the template writes."""
    asked = protocol.ChatCompletionRequest.read(b'{"model": "m", ' + path.read_bytes().lstrip()[1:])
    tools = [each.model_dump(exclude_none=True) for each in asked.tools or ()]
    template = _InProcess(_TEMPLATES[path.name], {"bos_token": "<s>"}, "x")
    template.ids(_chatty(), protocol.conversation(asked.messages), tools=tools or None)


# Replies


@dataclass(frozen=True)
class _Form:
    """A form of chats for :class:`ReplySplitter`, whose control tokens are bytes that texts have."""

    stop_ids: tuple[int, ...] = (0,)
    think: int | None = ord("^")
    answer: int | None = ord("$")
    channels: Channels | None = None
    call_tokens: CallTokens | None = None
    marks: Marks | None = None
    control_ids: frozenset[int] = frozenset({0, ord("^"), ord("$")})


def _decoded(ids: Iterable[int]) -> str:
    return bytes(token % 256 for token in ids).decode(errors="replace")


_HARMONY = Channels(ord("<"), ord("|"), ord(">"), _decoded)
_CALLS = CallTokens(ord("<"), ord(">"), ord('"'), _decoded)
_MARKS = Marks("<th>", "</th>", ("<a>", "</a>"), {}, lambda token: bytes([token]), str.encode)


def replies() -> Files:
    """Replies with calls and in channels; the name says how they are cut."""
    texts = [
        'Let me see.<tool_call>\n{"name": "look", "arguments": {"a": "}\\""}}\n</tool_call>\n<tool_call>\n{"name": "x',
        '<tool_call>[{"name": "look", "arguments": {}}, {"name": "b", "arguments": {"a": [1]}}]</tool_call>',
        '{"name": "look", "parameters": {"a": 1}}',
        "|analysis>thoughts<assistant|final>the answer^more$end\0x",
        '|analysis>hm<assistant to=functions.look|commentary json>{}<|commentary to=functions.b >{"a": 1',
        "<th>\nhm</t</th>\n<a>yes\n</a>no<th></",
        'Wait.<call:look{city:"Rome",n:[1,{a:true}]}><call:now{}>more<call:<{a:<|"|>}<|"|>}',
        """[look(city='it\\'s "x"', n=[1, None], d={"a": True, 'b': '\\n'}), now(), look(a=Tr""",
    ]
    return {f"{step}.txt": text.encode() for step, text in enumerate(texts, start=1)}


def _cut(text: str, step: int) -> Iterator[str]:
    return (text[start : start + step] for start in range(0, len(text), step))


def reply(path: Path) -> None:
    """Whole and in pieces the same, by every parser."""
    data, step = path.read_bytes(), int(path.stem)
    text = data.decode(errors="replace")
    for form in FORMS.values():
        whole, parts = CallDeltas(form), CallDeltas(form)
        whole.push(text, last=True)
        for piece in _cut(text, step):
            parts.push(piece, last=False)
        parts.push("", last=True)
        assert _calls(whole) == _calls(parts), text
        if isinstance(form, ToolForm) and not form.python:
            parts_of = ToolParser(form).push(text)
            assert sum(len(part.text) + len(part.name) + len(part.arguments) for part in parts_of) <= len(text)
    converted = GemmaArguments()
    assert "".join(map(converted.push, _cut(text, step))) == GemmaArguments().push(text), text
    for chat in (_Form(), _Form(channels=_HARMONY), _Form(call_tokens=_CALLS), _Form(marks=_MARKS)):
        splitter: Any = ReplySplitter(chat, calls=True)  # type: ignore[arg-type]
        assembler = ReplyAssembler(_words(), ["STOP"], splitter)
        said = "".join(part.text for token in data for part in assembler.push(token))
        said += "".join(part.text for part in assembler.finish())
        assert len(said) <= len(data)


def _calls(deltas: CallDeltas) -> dict[str, Any]:
    message = deltas.message()
    return {**message, "tool_calls": [each["function"] for each in message.get("tool_calls", ())]}
