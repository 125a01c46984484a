"""The bodies of requests as pydantic models, which check them and define the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from glinfer.families.settings import quoted
from glinfer.formats.sampling import NAMES
from glinfer.server import structured
from glinfer.server.errors import ApiError
from glinfer.server.json_text import parsed_json
from glinfer.server.limits import LIMITS, MAX_FIELDS, Several, Strict, few
from glinfer.text.templates import Rendering

Number = StrictFloat | StrictInt  # in this order, a text is refused with the word "number"
ModelName = Annotated[StrictStr, Field(min_length=1, max_length=LIMITS.model_characters)]
Ids = Annotated[Several[StrictInt], Field(min_length=1)]
Text = Annotated[StrictStr, Field(min_length=1)]
Stop = Annotated[StrictStr, Field(min_length=1, max_length=LIMITS.stop_characters)]
Stops = Stop | Annotated[Several[Stop], Field(max_length=LIMITS.stop_strings)]
Prompts = (
    Text
    | Ids
    | Annotated[Several[Text], Field(min_length=1, max_length=LIMITS.prompts)]
    | Annotated[Several[Ids], Field(min_length=1, max_length=LIMITS.prompts)]
)
Body = TypeVar("Body", bound="RequestBody")
_MAX_SEED = (1 << 63) - 1
_SAMPLING = (*NAMES, "presence_penalty", "frequency_penalty", "logit_bias", "stop")
_GUIDED = {
    "guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choices", "guided_grammar": "grammar"
}  # fmt: skip
_MAX_NAME = 80  # characters of a field's name in an error; a client's may have millions


class RequestBody(Strict):
    """A request; fields in ``neutral`` are refused unless they have one of the values listed there."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    ignored = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier"})

    model: ModelName
    """The name of a model in /v1/models."""

    @classmethod
    def read(cls: type[Body], data: bytes) -> Body:
        """Parse and check a body.

        Raises:
            ApiError: the body is not a JSON object, or a field is invalid, unknown or refused.
        """
        try:
            found = parsed_json(data, LIMITS.body_values)
        except ValueError as error:
            raise ApiError(f"the body is not JSON: {error}; expected an object", code="invalid_json") from None
        if not isinstance(found, dict):
            raise ApiError(f"the body is a JSON {type(found).__name__}; expected an object", code="invalid_json")
        for name, allowed in cls.neutral.items():
            value = found.pop(name, None)
            if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
                raise ApiError(f"{name} is not supported here; leave it out", param=name, code="unsupported_parameter")
        given = {name: value for name, value in found.items() if value is not None}
        if given.get("stream_options") and given.get("stream") is not True:
            raise ApiError("stream_options needs stream: true", param="stream_options")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _validation_error(error) from None


def _validation_error(error: ValidationError) -> ApiError:
    """The first error in one line; for a field that allows several types, the error of the nearest type."""
    found_all = error.errors(include_url=False, include_context=False)
    alike = [each for each in found_all if each["loc"][:1] == found_all[0]["loc"][:1]]
    first = max(alike, key=lambda each: (not each["type"].endswith("_type"), len(each["loc"])))
    parts = [part[:_MAX_NAME] if isinstance(part, str) else part for part in first["loc"]]
    field = str(parts[0]) if parts else None
    ends = {0} | ({len(parts) - 1} if first["type"] == "extra_forbidden" else set())  # fields, whatever their names
    names = [str(part) for at, part in enumerate(parts) if at in ends or not isinstance(part, str) or _is_name(part)]
    name = ".".join(each if each.isidentifier() or each.isdigit() else quoted(each) for each in names) or "the body"
    message = first["msg"].removeprefix("Value error, ")  # pydantic's prefix for errors of our checks
    message = message[:1].lower() + message[1:]
    if first["type"] == "extra_forbidden":
        return ApiError(f"there is no field {name}; see /openapi.json", param=field, code="unknown_parameter")
    if first["type"] == "missing":
        return ApiError(f"the field {name} is missing", param=field, code="missing_parameter")
    found = quoted(first["input"])
    found = found if len(found) <= 60 else f"{found[:57]}..."
    return ApiError(f"{name}: found {found}; {message}", param=field, code="invalid_value")


def listed(prompts: str | list[Any]) -> list[str | list[int]]:
    """Prompts as a list; a single prompt is a text or a list of ids."""
    return [prompts] if isinstance(prompts, str) or isinstance(prompts[0], int) else list(prompts)


def _is_name(part: str) -> bool:
    """Whether a part of an error's location is a field's name, not a type."""
    return part.isidentifier() and part.islower() and part not in {"str", "int", "float", "bool", "dict"}


class StreamOptions(Strict):
    """``stream_options``."""

    ignored = frozenset({"include_obfuscation"})

    include_usage: bool | None = None
    """Send the token counts in a last chunk."""
    continuous_usage_stats: bool | None = None
    """Send the token counts in every chunk."""


class DrawnBody(RequestBody):
    """The fields of all requests that generate answers."""

    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    """0 means greedy decoding."""
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Sample from the likeliest tokens with this total probability."""
    seed: Annotated[StrictInt, Field(ge=-_MAX_SEED - 1, le=_MAX_SEED)] | None = None
    """The same seed gives the same text; answer i of several uses seed + i."""
    stream: bool | None = None
    """Send the answer in pieces, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the events; /v1/responses ignores them, as its last event always has the counts."""

    def sampling(self, *, index: int = 0) -> dict[str, Any]:
        """The options of :class:`glinfer.engine.requests.BatchRequest` for answer ``index``, except its length.

        Raises:
            ApiError: a key of ``logit_bias`` is not a token id.
        """
        found = {name: value for name in _SAMPLING if (value := getattr(self, name, None)) is not None}
        if bias := found.get("logit_bias"):
            found["logit_bias"] = {_token(key): value for key, value in bias.items()}
        if self.seed is not None:
            found["seed"] = (self.seed + index) % (1 << 64)
        return found


class SamplingBody(DrawnBody):
    """The fields for sampling; omitted ones have the model's defaults."""

    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """Limit of tokens, clipped to the room in the context."""
    top_k: Annotated[StrictInt, Field(ge=-1)] | None = None
    """Sample from the N likeliest tokens; 0 or -1 for all."""
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Sample from tokens with at least this fraction of the highest probability."""
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] | None = None
    """Above 1: tokens of the prompt and the answer become less likely."""
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    """Subtracted from the logits of tokens in the answer so far."""
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    """Subtracted from a token's logit for each of its occurrences in the answer so far."""
    logit_bias: (
        Annotated[
            dict[StrictStr, Annotated[Number, Field(ge=-100, le=100)]],
            few(LIMITS.bias_entries, "entries"),
            Field(max_length=LIMITS.bias_entries),
        ]
        | None
    ) = None
    """Added to the logits of these token ids."""
    stop: Stops | None = None
    """Strings that end the answer; it does not include them."""


def _token(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 10):
        raise ApiError(f"logit_bias has the key {key[:40]!r}; expected a token id", param="logit_bias")
    return int(key)


class StructuredBody(SamplingBody):
    """The fields that request a structure; at most one may be given."""

    response_format: structured.ResponseFormat | None = None
    """The form of the answer: text, any JSON object, or JSON that matches a schema."""
    guided_json: dict[StrictStr, Any] | StrictStr | None = None
    """A JSON schema that the answer matches, as an object or as text."""
    guided_regex: StrictStr | None = None
    """A regular expression that the whole answer matches."""
    guided_choice: structured.Choices | None = None
    """The answer is one of these texts."""
    guided_grammar: StrictStr | None = None
    """A grammar that the answer follows, in llguidance's Lark notation."""

    def structures(self) -> dict[str, Mapping[str, Any]]:
        """The options for each given field, see :func:`glinfer.server.generation.structured_options`.

        Raises:
            ApiError: ``response_format`` contradicts itself.
        """
        form = structured.schema_of_format(self.response_format)
        given = ((name, kind, getattr(self, name)) for name, kind in _GUIDED.items())
        found = {name: {kind: value} for name, kind, value in given if value is not None}
        return {**({} if form is None else {"response_format": form}), **found}


class TextPart(Strict):
    """A part of a message's content."""

    ignored = frozenset({"annotations", "logprobs"})

    type: Literal["text", "input_text", "output_text"]
    text: StrictStr


class ImageUrl(Strict):
    """The URL of an image."""

    ignored = frozenset({"detail"})

    url: StrictStr
    """A data URL: ``data:image/png;base64,…``; nothing is fetched."""


class ImagePart(Strict):
    """An image in a user's message, for models that take images."""

    ignored = frozenset({"detail"})

    type: Literal["image_url", "input_image"]
    image_url: ImageUrl | StrictStr


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


def joined(content: str | Sequence[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    """The text of a message's content, or its parts if there are images; see :mod:`glinfer.text.images`."""
    if isinstance(content, str):
        return content
    if all(isinstance(part, TextPart) for part in content):
        return "".join(part.text for part in content if isinstance(part, TextPart))
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": getattr(part.image_url, "url", part.image_url)}
        for part in content
    ]


class ChatMessage(Strict):
    """A message of a chat."""

    ignored = frozenset({"refusal", "annotations"})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | Several[Part] | None = None
    """The text, or parts; optional in an assistant's message with calls."""
    name: StrictStr | None = None
    """The name of a tool, for templates that use it; otherwise ignored."""
    reasoning_content: StrictStr | None = None
    """Thoughts; kept in the next prompt if they led to calls and the template accepts them."""
    tool_calls: Annotated[Several[structured.ToolCall], Field(max_length=LIMITS.tools)] | None = None
    """The assistant's tool calls."""
    tool_call_id: StrictStr | None = None
    """The id of the call that a tool's message answers."""
    function_call: None = None
    audio: None = None
    """Only empty: clients that return an answer unchanged send these two fields."""

    def message(self, index: int) -> dict[str, Any]:
        """The message in the form for templates.

        Raises:
            ApiError: the content is missing, or the calls are malformed or not the assistant's.
        """
        if self.content in (None, []) and not self.tool_calls:
            raise ApiError(
                f"message {index} has no content; expected a text", param="messages", code="missing_parameter"
            )
        if self.tool_calls and self.role != "assistant":
            raise ApiError(f"message {index} has tool_calls; expected them only from the assistant", param="messages")
        content = joined(self.content or "")
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.tool_calls:
            found["tool_calls"] = [each.for_template(index) for each in self.tool_calls]
            if self.reasoning_content:
                found["reasoning_content"] = self.reasoning_content
            if self.reasoning_content and not content:
                found["thinking"] = self.reasoning_content
        if self.role == "tool":
            given = {"name": self.name, "tool_call_id": self.tool_call_id}
            found.update({name: value for name, value in given.items() if value is not None})
        return found


def conversation(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """A conversation in the form for templates; errors as in :meth:`ChatMessage.message`."""
    return [each.message(index) for index, each in enumerate(messages)]


Messages = Annotated[Several[ChatMessage], Field(min_length=1, max_length=LIMITS.messages)]
_NO_TEMPLATES: Mapping[str, tuple[Any, ...]] = {"chat_template": ()}
TemplateArguments = Annotated[dict[StrictStr, Any], few(MAX_FIELDS, "arguments")]


class RenderedBody(RequestBody):
    """The fields for rendering a conversation to a prompt."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = _NO_TEMPLATES

    add_generation_prompt: bool | None = None
    """End the prompt with the tokens that open an answer (the default)."""
    continue_final_message: bool | None = None
    """Continue the last message, which is the assistant's; the answer has only the new text."""
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments that the model's chat template uses, such as ``{"enable_thinking": false}``."""

    def rendering(self) -> Rendering:
        """The options for rendering the conversation; ApiError if the fields contradict each other."""
        if self.continue_final_message and self.add_generation_prompt:
            message = "found both add_generation_prompt and continue_final_message; give one of them"
            raise ApiError(message, param="continue_final_message")
        opened, continued = self.add_generation_prompt is not False, self.continue_final_message is True
        return Rendering(opened, continued, self.chat_template_kwargs or {})


class ChatCompletionRequest(StructuredBody, RenderedBody):
    """POST /v1/chat/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **_NO_TEMPLATES,
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": ("none",),
        "verbosity": (),
        "best_of": (1,),
    }
    ignored = RequestBody.ignored | {"prompt_cache_key", "prompt_cache_retention"}

    messages: Messages
    """The conversation, oldest message first."""
    max_completion_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """The newer name of ``max_tokens``."""
    n: Annotated[StrictInt, Field(ge=1, le=LIMITS.choices)] | None = None
    """The number of answers."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=LIMITS.logprobs)] | None = None
    """The number of likeliest tokens to list for each token; needs ``logprobs``."""
    tools: structured.Tools | None = None
    """Functions that the model may call, if its chat template supports tools."""
    tool_choice: Literal["none", "auto", "required"] | structured.NamedTool | None = None
    """Call no function, any (the default), at least one, or this one."""
    parallel_tool_calls: StrictBool | None = None
    """Allow several calls in one answer (the default)."""


class CompletionRequest(StructuredBody):
    """POST /v1/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"best_of": (1,), "suffix": ("",)}

    prompt: Prompts
    """Text, token ids, or a list of either."""
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    """Limit of tokens, 16 by default; 0 with ``echo`` only scores the prompt."""
    n: Annotated[StrictInt, Field(ge=1, le=LIMITS.choices)] | None = None
    """The number of answers to each prompt."""
    echo: bool | None = None
    """Begin the answer with the prompt."""
    logprobs: Annotated[StrictInt, Field(ge=0, le=LIMITS.logprobs)] | None = None
    """The number of likeliest tokens to list for each token; with ``echo`` at most 1."""


class InputItem(Strict):
    """An item of a response's input: a message, or an output item of an earlier answer; ``reasoning`` is ignored."""

    ignored = frozenset({"id", "status", "phase", "summary", "encrypted_content"})

    type: Literal["message", "reasoning", "item_reference", "function_call", "function_call_output"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: StrictStr | Several[Part] | None = None
    call_id: StrictStr | None = None
    """The id of a call, also in the output that answers it."""
    name: structured.ToolName | None = None
    """The name of the called function."""
    arguments: StrictStr | None = None
    """The arguments of a call as JSON; blank text means ``{}``."""
    output: StrictStr | Several[TextPart] | None = None
    """The result of a function."""


class ResponseRequest(DrawnBody):
    """POST /v1/responses, without state."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **_NO_TEMPLATES,
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
        "max_tool_calls": (),
        "moderation": (),
    }
    ignored = RequestBody.ignored | {
        "include",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "truncation",
        "client_metadata",
        "top_logprobs",
    }

    input: Text | Annotated[Several[InputItem], Field(min_length=1, max_length=LIMITS.messages)]
    """A user's message, or the items of a conversation."""
    instructions: StrictStr | None = None
    """A system prompt for the conversation."""
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """Limit of tokens."""
    text: structured.ResponseText | None = None
    """``format`` is the structure of the answer."""
    tools: structured.ResponseTools | None = None
    """Functions that the model may call, if its chat template supports tools; other kinds are ignored."""
    tool_choice: Literal["none", "auto", "required"] | structured.NamedResponseTool | None = None
    """Call no function, any (the default), at least one, or this one."""
    parallel_tool_calls: StrictBool | None = None
    """Allow several calls in one answer (the default)."""
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments that the model's chat template uses, as in chat completions."""


class ScoreRequest(RequestBody):
    """POST /v1/score."""

    input: Prompts
    """Texts, or lists of token ids, of at least two tokens each."""


class EmbeddingRequest(RequestBody):
    """POST /v1/embeddings."""

    input: (
        StrictStr
        | Ids
        | Annotated[Several[StrictStr], Field(min_length=1, max_length=LIMITS.embed_texts)]
        | Annotated[Several[Ids], Field(min_length=1, max_length=LIMITS.embed_texts)]
    )
    """A text, token ids, or a list of either."""
    encoding_format: Literal["float", "base64"] | None = None
    """``base64`` gives each vector as little-endian float32 in base64."""
    dimensions: Annotated[StrictInt, Field(ge=1)] | None = None
    """Keep the first N numbers of each vector, for models trained for it."""
    prompt_name: StrictStr | None = None
    """The name of one of the model's prompts, which is put before each text."""


class Document(Strict):
    """A text to rank."""

    text: StrictStr


class RerankRequest(RequestBody):
    """POST /v1/rerank."""

    query: StrictStr
    """The query."""
    documents: Annotated[Several[StrictStr | Document], Field(min_length=1, max_length=LIMITS.embed_texts)]
    """The texts to rank."""
    top_n: Annotated[StrictInt, Field(ge=1)] | None = None
    """Return only the N best texts."""
    return_documents: bool | None = None
    """Include the texts in the answer."""


class TokenizeRequest(RenderedBody):
    """POST /tokenize."""

    model: ModelName | None = None  # type: ignore[assignment]
    """The name of a model; may be left out if there is only one."""
    prompt: StrictStr | None = None
    """A text; control tokens in it are recognised, as in a completion's prompt."""
    add_special_tokens: bool | None = None
    """Put the tokenizer's tokens around the text of ``prompt``, such as ``<s>`` (the default)."""
    messages: Messages | None = None
    """A conversation instead of ``prompt``."""


class AttentionRequest(TokenizeRequest):
    """POST /v1/attention."""

    reply: StrictStr | None = None
    """Text after the prompt or the conversation."""
    block: Annotated[StrictInt, Field(ge=0)]
    """The index of a block, from 0."""


class DetokenizeRequest(RequestBody):
    """POST /detokenize."""

    model: ModelName | None = None  # type: ignore[assignment]
    """As for /tokenize."""
    tokens: Annotated[Several[StrictInt], Field(max_length=LIMITS.detokenize_tokens)]
    """Token ids."""


class ApplyTemplateRequest(RenderedBody):
    """POST /apply-template."""

    messages: Messages
    """A conversation."""
