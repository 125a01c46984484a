"""The bodies of requests, checked: pydantic models, of which the OpenAPI document is made too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from glinfer.formats.json_files import quoted
from glinfer.formats.sampling import NAMES
from glinfer.server import structured
from glinfer.server.errors import ApiError
from glinfer.server.json_text import parsed_json
from glinfer.server.limits import LIMITS, MAX_FIELDS, Several, Strict, few
from glinfer.text.chat import Rendering

Number = StrictInt | StrictFloat
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
_MAX_NAME = 80  # characters of the name of a field that an error tells; a client may make one of millions


class RequestBody(Strict):
    """A request; fields of ``neutral`` are refused by name, unless they have one of these values."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    ignored: ClassVar[frozenset[str]] = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier"})

    model: Annotated[StrictStr, Field(min_length=1, max_length=LIMITS.model_characters)]
    """The name of a model, as /v1/models lists it."""

    @classmethod
    def read(cls: type[Body], data: bytes) -> Body:
        """Parse and check a body.

        Raises:
            ApiError: it is no JSON object, or a field is wrong, unknown or refused.
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
        given = {name: value for name, value in found.items() if value is not None and name not in cls.ignored}
        if given.get("stream_options") and given.get("stream") is not True:
            raise ApiError("stream_options is for streams; say stream: true too", param="stream_options")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise _said(error) from None


def _said(error: ValidationError) -> ApiError:
    """The first complaint, as one line; of a value of several kinds, about the kind that it is nearest to."""
    found_all = error.errors(include_url=False, include_context=False)
    alike = [each for each in found_all if each["loc"][:1] == found_all[0]["loc"][:1]]
    first = max(alike, key=lambda each: (not each["type"].endswith("_type"), len(each["loc"])))
    parts = [part[:_MAX_NAME] if isinstance(part, str) else part for part in first["loc"]]
    field = str(parts[0]) if parts else None
    place = ".".join(str(part) for part in parts if not isinstance(part, str) or _is_name(part)) or "the body"
    message = first["msg"].removeprefix("Value error, ")  # of our own checks
    message = message[:1].lower() + message[1:]
    if first["type"] == "extra_forbidden":
        return ApiError(f"there is no field {place}; see /openapi.json", param=field, code="unknown_parameter")
    if first["type"] == "missing":
        return ApiError(f"the field {place} is missing", param=field, code="missing_parameter")
    found = quoted(first["input"])
    found = found if len(found) <= 60 else f"{found[:57]}..."
    return ApiError(f"{place}: found {found}; {message}", param=field, code="invalid_value")


def listed(prompts: str | list[Any]) -> list[str | list[int]]:
    """Prompts as a list: one may be a text, or a list of ids."""
    return [prompts] if isinstance(prompts, str) or isinstance(prompts[0], int) else list(prompts)


def _is_name(part: str) -> bool:
    """Whether a part of a place names a field, and not one of the kinds that a value may have."""
    return part.isidentifier() and part.islower() and part not in {"str", "int", "float", "bool", "dict"}


class StreamOptions(Strict):
    """``stream_options``."""

    include_usage: bool | None = None
    """Whether a last chunk has the counts of tokens."""
    continuous_usage_stats: bool | None = None
    """Whether every chunk has them."""
    include_obfuscation: bool | None = None
    """Ignored."""


class DrawnBody(RequestBody):
    """The fields that all generated answers have in common."""

    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    """0 takes the likeliest token each time."""
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Only the likeliest tokens up to this probability."""
    seed: Annotated[StrictInt, Field(ge=-_MAX_SEED - 1, le=_MAX_SEED)] | None = None
    """The same seed gives the same text; answer i of several has seed + i."""
    stream: bool | None = None
    """Whether to send the answer piece by piece, as server-sent events."""
    stream_options: StreamOptions | None = None
    """What the events have beside the answer; ignored by /v1/responses, whose last event has the counts."""

    def sampling(self, *, index: int = 0) -> dict[str, Any]:
        """The options of :class:`glinfer.engine.requests.BatchRequest` for answer ``index``, less those of its length.

        Raises:
            ApiError: a key of ``logit_bias`` is no token id.
        """
        found = {name: value for name in _SAMPLING if (value := getattr(self, name, None)) is not None}
        if bias := found.get("logit_bias"):
            found["logit_bias"] = {_token(key): value for key, value in bias.items()}
        if self.seed is not None:
            found["seed"] = (self.seed + index) % (1 << 64)
        return found


class SamplingBody(DrawnBody):
    """The fields that say how tokens are chosen; what is left out is the model's own."""

    max_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """Tokens at most; more than the context has room for are clipped."""
    top_k: Annotated[StrictInt, Field(ge=-1)] | None = None
    """Only so many of the likeliest tokens; 0 or -1 for all."""
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Only tokens at least this fraction as likely as the likeliest."""
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] | None = None
    """Above 1: tokens of the prompt and the answer become less likely."""
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    """Subtracted from the logits of tokens that the answer has already."""
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    """Subtracted for each time that the answer has a token."""
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
    """Strings that end the answer, and are no part of it."""


def _token(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 10):
        raise ApiError(f"logit_bias has the key {key[:40]!r}; expected a token id", param="logit_bias")
    return int(key)


class StructuredBody(SamplingBody):
    """The fields that ask for a structure, of which one may be given."""

    response_format: structured.ResponseFormat | None = None
    """The form of the answer: text, any JSON object, or JSON of a schema."""
    guided_json: dict[StrictStr, Any] | StrictStr | None = None
    """A JSON schema that the answer has, as an object or as text."""
    guided_regex: StrictStr | None = None
    """A regular expression that the whole answer matches."""
    guided_choice: structured.Choices | None = None
    """Texts of which the answer is one."""
    guided_grammar: StrictStr | None = None
    """A grammar that the answer follows, in llguidance's form of Lark."""

    def structures(self) -> dict[str, Mapping[str, Any]]:
        """What the fields ask for, by their names, see :func:`glinfer.server.generation.structured_options`.

        Raises:
            ApiError: ``response_format`` contradicts itself.
        """
        form = structured.asked_by(self.response_format)
        guided = {
            "guided_json": ("json_schema", self.guided_json),
            "guided_regex": ("regex", self.guided_regex),
            "guided_choice": ("choices", self.guided_choice),
            "guided_grammar": ("grammar", self.guided_grammar),
        }
        found = {name: {kind: value} for name, (kind, value) in guided.items() if value is not None}
        return {**({} if form is None else {"response_format": form}), **found}


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: StrictStr
    annotations: list[Any] | None = None
    """Ignored."""
    logprobs: list[Any] | None = None
    """Ignored."""


def joined(content: str | Sequence[TextPart]) -> str:
    """The text of a message's content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class ChatMessage(Strict):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | Several[TextPart] | None = None
    """The text; an assistant's message with calls needs none."""
    name: StrictStr | None = None
    """Of a tool, for templates that want it; otherwise ignored."""
    refusal: StrictStr | None = None
    """Ignored."""
    reasoning_content: StrictStr | None = None
    """Thoughts; part of the next prompt where they led to calls and the template has a place for them."""
    annotations: list[Any] | None = None
    """Ignored."""
    tool_calls: Annotated[Several[structured.ToolCall], Field(max_length=LIMITS.tools)] | None = None
    """What the assistant has called."""
    tool_call_id: StrictStr | None = None
    """Which call a tool's message answers."""
    function_call: None = None
    audio: None = None
    """Clients that send an answer back as they have got it send these two with nothing in them."""

    def message(self, place: int) -> dict[str, Any]:
        """The message, as templates take it.

        Raises:
            ApiError: the content is missing, or there are calls that cannot be.
        """
        if self.content in (None, []) and not self.tool_calls:
            raise ApiError(
                f"message {place} has no content; expected a text", param="messages", code="missing_parameter"
            )
        if self.tool_calls and self.role != "assistant":
            raise ApiError(f"message {place} has tool_calls; expected them of the assistant alone", param="messages")
        content = joined(self.content or "")
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.tool_calls:
            found["tool_calls"] = [each.for_template(place) for each in self.tool_calls]
            if self.reasoning_content and not content:
                found["thinking"] = self.reasoning_content
        if self.role == "tool":
            given = {"name": self.name, "tool_call_id": self.tool_call_id}
            found.update({name: value for name, value in given.items() if value is not None})
        return found


def conversation(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """A conversation, as templates take it; errors as in :meth:`ChatMessage.message`."""
    return [each.message(place) for place, each in enumerate(messages)]


Messages = Annotated[Several[ChatMessage], Field(min_length=1, max_length=LIMITS.messages)]
_NO_TEMPLATES: Mapping[str, tuple[Any, ...]] = {"chat_template": ()}
TemplateArguments = Annotated[dict[StrictStr, Any], few(MAX_FIELDS, "arguments")]


class RenderedBody(RequestBody):
    """The fields that say how a conversation becomes a prompt."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = _NO_TEMPLATES

    add_generation_prompt: bool | None = None
    """Whether the prompt ends with what opens an answer; it does where this is left out."""
    continue_final_message: bool | None = None
    """Whether to continue the last message, the assistant's; the answer has what is new."""
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments for the model's chat template, of those that it names: ``{"enable_thinking": false}``."""

    def rendering(self) -> Rendering:
        """How the conversation becomes a prompt.

        Raises:
            ApiError: the fields contradict each other.
        """
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
    """How many answers."""
    logprobs: bool | None = None
    """Whether to name the log-probability of each token."""
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=LIMITS.logprobs)] | None = None
    """How many of the likeliest tokens to name beside each; needs ``logprobs``."""
    tools: structured.Tools | None = None
    """Functions that the model may call, where its chat template tells it of them."""
    tool_choice: Literal["none", "auto", "required"] | structured.NamedTool | None = None
    """Whether it calls none, some if it likes, at least one, or this one."""
    parallel_tool_calls: StrictBool | None = None
    """Whether one answer may have several calls; it may where this is left out."""


class CompletionRequest(StructuredBody):
    """POST /v1/completions."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"best_of": (1,), "suffix": ("",)}

    prompt: Prompts
    """Text, token ids, or a list of either."""
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    """Tokens at most, 16 where it is left out; 0 with ``echo`` scores the prompt."""
    n: Annotated[StrictInt, Field(ge=1, le=LIMITS.choices)] | None = None
    """How many answers to each prompt."""
    echo: bool | None = None
    """Whether the answer begins with the prompt."""
    logprobs: Annotated[StrictInt, Field(ge=0, le=LIMITS.logprobs)] | None = None
    """How many of the likeliest tokens to name beside each; with ``echo`` at most 1."""


class InputItem(Strict):
    """An item of the input of a response: a message, or what an earlier answer has put out beside its text."""

    type: Literal["message", "reasoning", "item_reference", "function_call", "function_call_output"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: StrictStr | Several[TextPart] | None = None
    id: StrictStr | None = None
    """Ignored."""
    status: StrictStr | None = None
    """Ignored."""
    phase: StrictStr | None = None
    """Ignored."""
    summary: list[Any] | None = None
    """Ignored, with all of a ``reasoning`` item."""
    encrypted_content: StrictStr | None = None
    """Ignored."""
    call_id: StrictStr | None = None
    """Of a call, and of the output that answers it."""
    name: structured.ToolName | None = None
    """Of the function that is called."""
    arguments: StrictStr | None = None
    """Of a call, as JSON; nothing but white space is ``{}``."""
    output: StrictStr | Several[TextPart] | None = None
    """What a function has returned."""


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
    """A system prompt, before the conversation."""
    max_output_tokens: Annotated[StrictInt, Field(ge=1)] | None = None
    """Tokens at most."""
    text: structured.ResponseText | None = None
    """``format`` is the structure of the answer."""
    tools: structured.ResponseTools | None = None
    """Functions that the model may call, where its chat template tells it of them; other kinds are passed over."""
    tool_choice: Literal["none", "auto", "required"] | structured.NamedResponseTool | None = None
    """Whether it calls none, some if it likes, at least one, or this one."""
    parallel_tool_calls: StrictBool | None = None
    """Whether one answer may have several calls; it may where this is left out."""
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments for the model's chat template, as for chats."""


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
    """Keep so many numbers of each vector, for models that were trained so."""
    prompt_name: StrictStr | None = None
    """The name of one of the model's prompts, which stands before each text."""


class Document(Strict):
    """A text to be ranked."""

    text: StrictStr


class RerankRequest(RequestBody):
    """POST /v1/rerank."""

    query: StrictStr
    """What the texts shall answer."""
    documents: Annotated[Several[StrictStr | Document], Field(min_length=1, max_length=LIMITS.embed_texts)]
    """The texts."""
    top_n: Annotated[StrictInt, Field(ge=1)] | None = None
    """Only so many of the best."""
    return_documents: bool | None = None
    """Whether the answer has the texts too."""


class TokenizeRequest(RenderedBody):
    """POST /tokenize."""

    prompt: StrictStr | None = None
    """A text; control tokens in it are recognised, as in a prompt."""
    messages: Messages | None = None
    """Or a conversation."""


class AttentionRequest(TokenizeRequest):
    """POST /v1/attention."""

    reply: StrictStr | None = None
    """What stands behind the prompt or the conversation."""
    block: Annotated[StrictInt, Field(ge=0)]
    """The number of a block, from 0."""


class DetokenizeRequest(RequestBody):
    """POST /detokenize."""

    tokens: Annotated[Several[StrictInt], Field(max_length=LIMITS.detokenize_tokens)]
    """Token ids."""


class ApplyTemplateRequest(RenderedBody):
    """POST /apply-template."""

    messages: Messages
    """A conversation."""
