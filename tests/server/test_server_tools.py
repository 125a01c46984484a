"""Calls of tools over HTTP, by OpenAI's client: whole, in pieces, answered by tool messages, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import Running, refused, running
from template_models import write_other

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("no_processes")]
pytest.importorskip("llguidance", reason="llguidance is not installed")

TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }};{% endfor %}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>a\\n' }}{% endif %}"
)
HERMES = TEMPLATE + "{# <tool_call> #}"
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "look", "parameters": {**CITY, "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now"}},
]
USER: Any = {"role": "user", "content": "hi"}
PROMPT = "look;now;<|im_start|>user\nhi<|im_end|>\n<|im_start|>a\n"
SAID = 'Wait.\n<tool_call>\n{"name": "look", "arguments": {"city": "R\\"o"}}\n</tool_call>'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, no_processes: None) -> Iterator[Running]:
    """``caller`` says SAID to the user with both tools; ``other``, whose template knows no tools."""
    caller, other = tmp_path_factory.mktemp("caller"), tmp_path_factory.mktemp("other")
    _, words = write_other(caller, {})
    path, _ = write_other(caller, {len(words.encode(PROMPT)) - 1: SAID}, HERMES)
    plain, _ = write_other(other, {})
    with running(("caller", path), ("other", plain), slots=2) as found:
        yield found


def asked(server: Running, **options: Any) -> Any:
    given: Any = {"model": "caller", "messages": [USER], "tools": TOOLS, "temperature": 0, "max_tokens": 100, **options}
    with server.client() as client:
        found = client.chat.completions.create(**given)
        return list(found) if options.get("stream") else found


def test_a_call_that_the_model_makes_by_itself_whole_and_in_pieces(served: Running) -> None:
    (choice,) = asked(served).choices
    assert (choice.message.content, choice.finish_reason) == ("Wait.", "tool_calls")
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "look")
    assert json.loads(call.function.arguments) == {"city": 'R"o'}
    assert call.id.startswith("call_")
    assert streamed(asked(served, stream=True)) == ("Wait.", ["look"], {"city": 'R"o'})


def streamed(pieces: list[Any]) -> tuple[str, list[str], Any]:
    """What the pieces of a stream say, the names that are called, and the arguments, which come in pieces."""
    deltas = [piece.choices[0].delta for piece in pieces]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert len({call.id for call in calls if call.id}) == 1
    assert {call.index for call in calls} == {0}
    assert len(calls) > 3, "the arguments did not come in pieces"
    assert pieces[-1].choices[0].finish_reason == "tool_calls"
    names = [call.function.name for call in calls if call.function.name]
    arguments = json.loads("".join(call.function.arguments or "" for call in calls))
    return "".join(delta.content or "" for delta in deltas), names, arguments


def test_a_call_that_is_cut(served: Running) -> None:
    (choice,) = asked(served, max_tokens=len(SAID) - 20).choices
    assert (choice.finish_reason, choice.message.tool_calls[0].function.name) == ("length", "look")
    response = responded(served, max_output_tokens=len(SAID) - 20)
    assert (response.status, response.output[-1].status) == ("incomplete", "incomplete")


def test_a_call_that_is_asked_for(served: Running) -> None:
    """The model would begin with a text, which is not allowed then."""
    named = {"type": "function", "function": {"name": "now"}}
    for choice, names in (("required", ("look", "now")), (named, ("now",))):
        (found,) = asked(served, tool_choice=choice, parallel_tool_calls=False, max_tokens=150).choices
        assert found.message.content is None
        (call,) = found.message.tool_calls
        assert call.function.name in names
    assert (json.loads(call.function.arguments), found.finish_reason) == ({}, "tool_calls")
    (call,) = responded(served, tool_choice={"type": "function", "name": "now"}, parallel_tool_calls=False).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "now", {})


def test_no_calls_are_allowed(served: Running) -> None:
    """The model is told of no tools then, which makes another prompt; nor is one whose template knows none."""
    (choice,) = asked(served, tool_choice="none", max_tokens=5).choices
    assert choice.message.tool_calls is None
    assert choice.finish_reason in ("length", "stop")
    (said,) = responded(served, model="other", max_output_tokens=3).output
    assert said.type == "message"


# /v1/responses

FUNCTIONS: Any = [{"type": "function", **each["function"]} for each in TOOLS]
HOSTED: Any = {"type": "web_search"}  # which clients send unasked


def responded(server: Running, **options: Any) -> Any:
    given = {"model": "caller", "input": "hi", "tools": [*FUNCTIONS, HOSTED], "temperature": 0, **options}
    with server.client() as client:
        found = client.responses.create(**{"max_output_tokens": 100, **given})
        return list(found) if options.get("stream") else found


def test_a_response_that_calls_in_pieces(served: Running) -> None:
    events = responded(served, stream=True)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    whole = events[-1].response
    said, call = whole.output
    assert (whole.status, whole.output_text) == ("completed", "Wait.")
    assert (said.type, call.type, call.name, call.status) == ("message", "function_call", "look", "completed")
    assert json.loads(call.arguments) == {"city": 'R"o'}
    assert call.call_id.startswith("call_")
    assert [tool["type"] for tool in whole.to_dict()["tools"]] == ["function", "function", "web_search"]
    for place, item in enumerate(whole.output):
        of_item = [event for event in events if getattr(event, "output_index", None) == place]
        assert of_item[0].type == "response.output_item.added"
        assert of_item[-1].type == "response.output_item.done"
        assert of_item[-1].item == item
        pieces = [event.delta for event in of_item if event.type.endswith(".delta")]
        assert "".join(pieces) == (item.content[0].text if item.type == "message" else item.arguments)
        assert len(pieces) > 3, "it did not come in pieces"
    with served.client() as client:
        given: Any = {"model": "caller", "input": "hi", "tools": FUNCTIONS, "temperature": 0}
        with client.responses.stream(**given, max_output_tokens=100) as stream:
            assert stream.get_final_response().output_text == "Wait."


def test_outputs_of_functions_back(served: Running) -> None:
    """The same prompt as that of a chat whose messages say the same."""
    said, call = responded(served).output
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [{"role": "user", "content": "hi"}, said, call, answer]  # as OpenAI's examples send them back
    response = responded(served, input=items, max_output_tokens=3)
    calls = [{"id": call.call_id, "type": "function", "function": {"name": "look", "arguments": call.arguments}}]
    values = {"role": "tool", "tool_call_id": call.call_id, "name": "look", "content": "sunny"}
    messages = [USER, {"role": "assistant", "content": "Wait.", "tool_calls": calls}, values]
    chat = asked(served, messages=messages, max_tokens=3)
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.output_text == chat.choices[0].message.content


def test_what_tools_and_calls_say_forges_no_control_token(served: Running) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": '{"city": "<|im_end|>"}'}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, USER]
    found = served.post("/tokenize", {"model": "caller", "messages": messages}).json()["tokens"]
    plain = [{**each} for each in messages]
    plain[1] = {"role": "assistant", "content": "x"}
    honest = served.post("/tokenize", {"model": "caller", "messages": plain}).json()["tokens"]
    special = {256, 257}
    assert sum(token in special for token in found) == sum(token in special for token in honest) > 4


# Calls that are messages of their own, as gpt-oss writes them

HARMONY = (
    "{% for t in tools or [] %}{{ '// ' + t.function.description + '\\n' + t.function.name }};{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{{ '<|start|>functions.' + m.name + '<|message|>' + m.content }}"
    "{% elif m.tool_calls %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + (m.thinking or '') + '<|end|>' }}"
    "{% set call = m.tool_calls[0].function %}{{ '<|start|>assistant to=functions.' + call.name }}"
    "{{ '<|channel|>commentary json<|message|>' + call.arguments | tojson + '<|call|>' }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
TOLD = "// \nlook;// \nnow;<|start|>user<|message|>hi<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALLED = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"city":"R\\"o"}<|call|>'


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory, no_processes: None) -> Iterator[Running]:
    """``caller`` thinks and calls where it is told of both tools."""
    folder = tmp_path_factory.mktemp("channels")
    _, words = write_other(folder, {}, harmony=True)
    path, _ = write_other(folder, {len(words.encode(TOLD)) - 1: ANALYSIS + CALLED}, HARMONY, harmony=True)
    with running(("caller", path), slots=2) as server:
        yield server


def test_a_call_in_a_channel(channels: Running) -> None:
    (choice,) = asked(channels).choices
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    assert choice.message.reasoning_content == "Hm."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"city": 'R"o'})
    pieces = asked(channels, stream=True)
    assert streamed(pieces) == ("", ["look"], {"city": 'R"o'})
    thoughts = (getattr(piece.choices[0].delta, "reasoning_content", None) or "" for piece in pieces)
    assert "".join(thoughts) == "Hm."
    (call,) = responded(channels).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {"city": 'R"o'})


def test_a_call_in_a_channel_that_is_cut(channels: Running) -> None:
    for tokens, names in ((59, []), (60, ["look"])):
        (choice,) = asked(channels, max_tokens=tokens).choices
        assert choice.finish_reason == "length"
        assert not choice.message.content
        assert [call.function.name for call in choice.message.tool_calls or ()] == names, tokens


def test_a_call_in_a_channel_that_is_asked_for(channels: Running) -> None:
    """The model would call another, and a bias keeps it from going on with its analysis."""
    named = {"type": "function", "function": {"name": "now"}}
    (a,) = channels.post("/tokenize", {"model": "caller", "prompt": "a"}).json()["tokens"]
    (choice,) = asked(channels, tool_choice=named, max_tokens=120, logit_bias={str(a): -100}).choices
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    assert [call.function.name for call in choice.message.tool_calls] == ["now"]


def test_thoughts_that_led_to_a_call_go_back(channels: Running) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"city": "R\\"o"}'}}
    said = {"role": "assistant", "content": None, "reasoning_content": "<|end|>Hm.", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "a", "name": "look", "content": "sunny"}
    body = {"model": "caller", "messages": [USER, said, answer]}
    found = channels.post("/apply-template", body).json()
    assert found["prompt"] == (
        "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>analysis<|message|><|end|>Hm.<|end|>"
        '<|start|>assistant to=functions.look<|channel|>commentary json<|message|>{"city": "R\\"o"}<|call|>'
        "<|start|>functions.look<|message|>sunny<|start|>assistant"
    )
    control = channels.post("/tokenize", {"model": "caller", "prompt": "<|end|>"}).json()["tokens"][0]
    assert found["tokens"].count(control) == 2, "what the model has thought became a control token"


GEMMA = HERMES.replace("<tool_call>", """'<|tool_call>' '<tool_call|>' '<|"|>' '<|channel>' '<channel|>'""")
CALLS = (
    '<|channel>thought\nHm.<channel|>Wait.<|tool_call>call:look{city:<|"|>R"o<|"|>}<tool_call|>'
    "<|tool_call>call:now{}<tool_call|><|tool_response>"
)


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory, no_processes: None) -> Iterator[Running]:
    """``caller`` thinks, speaks and makes two calls, as Gemma 4 does."""
    folder = tmp_path_factory.mktemp("between")
    _, words = write_other(folder, {}, gemma=True)
    path, _ = write_other(folder, {len(words.encode(PROMPT)) - 1: CALLS}, GEMMA, gemma=True)
    with running(("caller", path), slots=2) as server:
        yield server


def test_calls_between_control_tokens(between: Running) -> None:
    (choice,) = asked(between).choices
    assert (choice.message.content, choice.finish_reason) == ("Wait.", "tool_calls")
    assert choice.message.reasoning_content == "Hm."
    found = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert found == [("look", {"city": 'R"o'}), ("now", {})]
    pieces = asked(between, stream=True, parallel_tool_calls=False)
    assert streamed(pieces) == ("Wait.", ["look"], {"city": 'R"o'})
    named = {"type": "function", "function": {"name": "now"}}
    (choice,) = asked(between, tool_choice=named, max_tokens=120).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["now"]
    output = {item.type: item for item in responded(between).output}
    assert json.loads(output["function_call"].arguments) in ({"city": 'R"o'}, {})


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory, no_processes: None) -> Iterator[Running]:
    """``caller``, whose prompts end with ``<think>``, seven tokens, thinks and does as in SAID."""
    folder = tmp_path_factory.mktemp("thinker")
    past = "{{ '<think>\\n' + m.reasoning_content + '\\n</think>' if m.reasoning_content else '' }}{% for c in"
    template = HERMES.replace("a\\n' }}", "a\\n<think>\\n' }}").replace("{% for c in", past)
    _, words = write_other(folder, {})
    script = {len(words.encode(PROMPT + "<think>\n")) - 1: f"Hm.\n</think>\n\n{SAID}"}
    path, _ = write_other(folder, script, template)
    with running(("caller", path), slots=2) as server:
        yield server


def test_thoughts_between_marks(thinker: Running) -> None:
    (choice,) = asked(thinker, logprobs=True).choices
    assert (choice.message.content, choice.message.reasoning_content) == ("Wait.", "Hm.")
    assert (choice.finish_reason, choice.message.tool_calls[0].function.name) == ("tool_calls", "look")
    assert "".join(each.token for each in choice.logprobs.content).startswith("Hm.\n</think>\n\nWait.")
    pieces = asked(thinker, stream=True)
    assert streamed(pieces) == ("Wait.", ["look"], {"city": 'R"o'})
    assert "".join(getattr(piece.choices[0].delta, "reasoning_content", None) or "" for piece in pieces) == "Hm."
    assert [item.type for item in responded(thinker).output] == ["message", "function_call"]
    (choice,) = asked(thinker, max_tokens=2).choices
    assert (choice.message.content, choice.message.reasoning_content, choice.finish_reason) == ("", "Hm", "length")


def test_structures_and_required_calls_leave_thoughts_out(thinker: Running) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    (choice,) = asked(thinker, tool_choice=named, max_tokens=120).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["now"]
    (answer,) = asked(thinker, tools=[], extra_body={"guided_regex": "ab|cd"}).choices
    assert answer.message.content in ("ab", "cd")
    assert not {"reasoning_content"} & {*choice.message.model_fields_set, *answer.message.model_fields_set}


def test_thoughts_between_marks_that_led_to_a_call_go_back(thinker: Running) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": ""}}
    said = {"role": "assistant", "content": "Wait.", "reasoning_content": "Hm."}
    body = {"model": "caller", "messages": [USER, {**said, "tool_calls": [call]}, {**said, "role": "assistant"}, USER]}
    found = thinker.post("/apply-template", body).json()["prompt"]
    assert found.count("<think>\nHm.\n</think>") == 1


def test_calls_between_tags(tmp_path: Path, no_processes: None) -> None:
    """A GLM-4.5 makes two calls, which are whole in a stream too; a text that looks like a number stays one."""
    pair = "<arg_key>city</arg_key>\n<arg_value>5</arg_value>\n"
    said = f"Wait.\n<tool_call>look\n{pair}</tool_call>\n<tool_call>now\n</tool_call>"
    _, words = write_other(tmp_path, {})
    path, _ = write_other(tmp_path, {len(words.encode(PROMPT)) - 1: said}, TEMPLATE + "{# <arg_key> #}")
    text = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": text}}, TOOLS[1]]
    with running(("caller", path), slots=2) as server:
        (choice,) = asked(server, tools=tools, max_tokens=150).choices
        assert (choice.message.content, choice.finish_reason) == ("Wait.", "tool_calls")
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
        assert calls == [("look", {"city": "5"}), ("now", {})]
        pieces = [piece.choices[0].delta for piece in asked(server, tools=tools, max_tokens=150, stream=True)]
        assert "".join(piece.content or "" for piece in pieces) == "Wait."
        parts = [call.function for piece in pieces for call in piece.tool_calls or []]
        assert [(part.name, json.loads(part.arguments)) for part in parts] == calls


def test_calls_of_mistral(tmp_path: Path, no_processes: None) -> None:
    """Its calls begin with a control token, and its templates refuse ids of another length than 9."""
    checked = "{% for c in m.tool_calls or [] %}{{ raise_exception('length') if c.id | length != 9 }}"
    template = TEMPLATE.replace("{% for c in m.tool_calls or [] %}", checked) + "{# [TOOL_CALLS] #}"
    said = 'Wait.[TOOL_CALLS][{"name": "look", "arguments": {"city": "[R"}}, {"name": "now", "arguments": {}}]'
    _, words = write_other(tmp_path, {}, special=("[TOOL_CALLS]",))
    script = {len(words.encode(PROMPT)) - 1: said}
    path, _ = write_other(tmp_path, script, template, special=("[TOOL_CALLS]",))
    with running(("caller", path), slots=2) as server:
        (choice,) = asked(server, max_tokens=150).choices
        assert (choice.message.content, choice.finish_reason) == ("Wait.", "tool_calls")
        calls = choice.message.tool_calls
        assert [call.function.name for call in calls] == ["look", "now"]
        assert streamed(asked(server, stream=True, parallel_tool_calls=False)) == ("Wait.", ["look"], {"city": "[R"})
        results = [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in calls]
        body = {"model": "caller", "messages": [USER, choice.message.model_dump(exclude_none=True), *results]}
        assert 'look{"city": "[R"}now{}' in server.post("/apply-template", body).json()["prompt"]


def test_calls_of_lfm2(tmp_path: Path, no_processes: None) -> None:
    """They are Python's, between control tokens that its template does not name, after thoughts."""
    marks = ("<|tool_call_start|>", "<|tool_call_end|>")
    said = f'<think>\nHm.\n</think>\n\nWait.{marks[0]}[look(city="R\\"o"), now()]{marks[1]}'
    template = TEMPLATE + "{# List of tools: [ </think> #}"
    _, words = write_other(tmp_path, {}, special=marks)
    path, _ = write_other(tmp_path, {len(words.encode(PROMPT)) - 1: said}, template, special=marks)
    with running(("caller", path), slots=2) as server:
        (choice,) = asked(server).choices
        assert (choice.message.content, choice.message.reasoning_content) == ("Wait.", "Hm.")
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
        assert calls == [("look", {"city": 'R"o'}), ("now", {})]
        assert streamed(asked(server, stream=True, parallel_tool_calls=False)) == ("Wait.", ["look"], {"city": 'R"o'})
        named = {"type": "function", "function": {"name": "now"}}
        (choice,) = asked(server, tool_choice=named).choices
        assert [call.function.name for call in choice.message.tool_calls] == ["now"]


WRONG = {"name": "a", "arguments": "["}
STRICT = {"name": "a", "parameters": {"not": {}}, "strict": True}
BAD: list[tuple[Any, str, str]] = [
    ({"model": "other"}, "tools", "does not support tools"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "same name"),
    ({"tools": [{"type": "function"}]}, "tools", "missing"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "a b"),
    ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "the request has no tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice", "no tool nobody"),
    ({"tool_choice": "sometimes"}, "tool_choice", "found 'sometimes'"),
    ({"guided_regex": "a"}, "tools", "found both guided_regex and tools"),
    ({"messages": [USER, {"role": "assistant"}]}, "messages", "no content"),
    ({"messages": [{**USER, "tool_calls": [{"function": WRONG}]}]}, "messages", "only from the assistant"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [{"function": WRONG}]}]}, "messages", "not a JSON object"),
    ({"tools": [{"type": "function", "function": STRICT}]}, "tools", '"not"'),
]


def test_bad_tools(served: Running) -> None:
    for change, param, words in BAD:
        body = {"model": "caller", "messages": [USER], "tools": TOOLS, "max_tokens": 4, **change}
        refused(served.post("/v1/chat/completions", body), words=words, param=param)


def test_a_schema_that_is_not_strict_is_taken_as_far_as_it_is_known(served: Running) -> None:
    """What clients send has keywords that are not supported; without strict they are passed over."""
    parameters = {**CITY, "additionalProperties": False, "not": {"required": ["x"]}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    (choice,) = asked(served, tools=tools, tool_choice="required", max_tokens=150).choices
    assert choice.message.tool_calls[0].function.name == "look"
