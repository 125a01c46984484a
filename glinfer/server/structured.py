"""The fields of requests for structures and tools, and their conversion to the options of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StrictBool, StrictStr, Tag

from glinfer.errors import StructureError
from glinfer.server.errors import ApiError
from glinfer.server.json_text import parsed_json
from glinfer.server.limits import LIMITS, Several, Strict
from glinfer.server.served import Served
from glinfer.structured.calls import Schemas
from glinfer.structured.structure import ANY_OBJECT
from glinfer.structured.tagged import TagForm
from glinfer.structured.tools import FORMS, NO_ARGUMENTS, CallForm, MessageForm, call_grammar, tool_form

ToolName = Annotated[StrictStr, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class SchemaFields(Strict):
    """The fields next to a schema."""

    name: StrictStr | None = None
    """Ignored."""
    description: StrictStr | None = None
    """Ignored."""
    strict: StrictBool | None = None
    """The answer always matches the schema, strict or not; unsupported keywords are refused."""


class NamedSchema(SchemaFields):
    """``json_schema`` of a ``response_format``."""

    schema_: Annotated[dict[StrictStr, Any] | StrictBool, Field(alias="schema")]
    """The JSON schema."""


class ResponseFormat(Strict):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    """Only for the type ``json_schema``."""


class TextFormat(SchemaFields):
    """``text.format`` of a response, which directly has the fields of a ``response_format``'s ``json_schema``."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Annotated[dict[StrictStr, Any] | StrictBool | None, Field(alias="schema")] = None
    """The JSON schema, only for the type ``json_schema``."""


class ResponseText(Strict):
    """``text`` of a response."""

    ignored = frozenset({"verbosity"})

    format: TextFormat | None = None


class FunctionDefinition(Strict):
    """A function that a model may call."""

    name: ToolName
    description: StrictStr | None = None
    parameters: dict[StrictStr, Any] | None = None
    """The JSON schema of its arguments; it has none if this is left out."""
    strict: StrictBool | None = None
    """Refuse unsupported keywords of the schema; otherwise they are ignored."""


class ResponseTool(FunctionDefinition):
    """One of ``tools`` of a response, which directly has the fields of ``function`` in other requests."""

    type: Literal["function"]


class ToolDefinition(Strict):
    """One of ``tools``."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Strict):
    """The name of a function."""

    name: ToolName


class NamedResponseTool(FunctionName):
    """The value of ``tool_choice`` of a response that names a function."""

    type: Literal["function"]


class NamedTool(Strict):
    """The value of ``tool_choice`` that names a function."""

    type: Literal["function"]
    function: FunctionName


class CalledFunction(Strict):
    """The function of a call in an assistant's message."""

    name: ToolName
    arguments: StrictStr
    """Its arguments as JSON; blank text means ``{}``."""


class ToolCall(Strict):
    """A call in an assistant's message."""

    ignored = frozenset({"index"})

    id: StrictStr | None = None
    type: Literal["function"] | None = None
    function: CalledFunction

    def for_template(self, index: int, param: str = "messages") -> dict[str, Any]:
        """The call in the form for templates, with its arguments as an object.

        ``index`` and ``param`` give its index and field in the request, for errors.

        Raises:
            ApiError: the arguments are not a JSON object.
        """
        try:
            arguments = parsed_json((self.function.arguments.strip() or "{}").encode(), LIMITS.call_values)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            where = "message" if param == "messages" else "item"
            raise ApiError(f"the arguments of a call in {where} {index} are not a JSON object", param=param)
        function = {"name": self.function.name, "arguments": arguments}
        return {**({} if self.id is None else {"id": self.id}), "type": "function", "function": function}


Choices = Annotated[Several[StrictStr], Field(min_length=1)]
Tools = Annotated[Several[ToolDefinition], Field(max_length=LIMITS.tools)]


def _kind(tool: object) -> str:
    return "function" if isinstance(tool, dict) and tool.get("type") == "function" else "other"


ResponseTools = Annotated[
    Several[
        Annotated[
            Annotated[ResponseTool, Tag("function")] | Annotated[dict[StrictStr, Any], Tag("other")],
            Discriminator(_kind),
        ]
    ],
    Field(max_length=LIMITS.tools),
]
"""Functions; and the tools that OpenAI's servers run themselves, which clients send by default and are ignored here."""


def schemas_of(functions: Iterable[FunctionDefinition]) -> Schemas:
    """The schemas of functions, for their calls."""
    return {each.name: (each.parameters or NO_ARGUMENTS, bool(each.strict)) for each in functions}


def tool_use(
    served: Served,
    tools: Sequence[ToolDefinition | ResponseTool | Mapping[str, Any]],
    choice: str | NamedTool | NamedResponseTool | None,
    parallel: bool,
) -> tuple[CallForm, list[dict[str, Any]], str] | None:
    """The model's call form, the tools in the form for its template, and the grammar of answers; None without tools.

    Only functions are used of a response's tools. Its clients always send some, so they are ignored if the model's
    template does not accept them, unless ``tool_choice`` requires a call.

    Raises:
        ApiError: the model's template has no tools, the chosen tool does not exist, or two have the same name.
    """
    given = (each.function if isinstance(each, ToolDefinition) else each for each in tools)
    functions = [each for each in given if isinstance(each, FunctionDefinition)]
    if not functions:
        if choice in (None, "none", "auto"):
            return None
        raise ApiError("tool_choice requires a tool, but the request has no tools; send them", param="tool_choice")
    if choice == "none":
        return None
    names = [each.name for each in functions]
    if len(set(names)) < len(names):
        raise ApiError("two tools have the same name; expected different names", param="tools")
    named = choice.function if isinstance(choice, NamedTool) else choice
    one = None if named is None or isinstance(named, str) else named.name
    if one is not None and one not in names:
        raise ApiError(f"there is no tool {one} to call; expected one of {', '.join(names)}", param="tool_choice")
    try:
        form = _call_form(served)
    except StructureError as error:
        if isinstance(functions[0], ResponseTool) and choice in (None, "auto"):
            return None
        raise ApiError(str(error), param="tools", code="no_tools") from None
    schemas = schemas_of(each for each in functions if one in (None, each.name))
    form = form.of(schemas) if isinstance(form, TagForm) else form
    grammar = call_grammar(
        form, schemas, required=one is not None or choice == "required", parallel=parallel and one is None
    )
    definitions = list[dict[str, Any]]()
    for each in functions:
        # Templates with calls between control tokens require a description.
        described = {"description": each.description or ""} if isinstance(form, MessageForm) else {}
        function = {**each.model_dump(exclude_none=True, exclude={"type"}), **described}
        definitions.append({"type": "function", "function": function})
    return form, definitions, grammar


def _call_form(served: Served) -> CallForm:
    """The call form of a model; StructureError if its template has no calls, or an unknown form."""
    chat = served.chat_form()
    if not chat.template_source:
        raise StructureError(f"the chat template of {served.name} does not support tools; leave them out")
    form = tool_form(chat.template_source, served.tokenizer.control_tokens)
    tokens = chat.call_tokens if form == FORMS["gemma4"] else chat.channels
    if isinstance(form, MessageForm) and tokens is None:
        raise StructureError(
            f"the tokenizer of {served.name} lacks the control tokens of its template's calls; leave tools out"
        )
    return form


def schema_of_format(form: ResponseFormat | TextFormat | None) -> Mapping[str, Any] | None:
    """The option for a ``response_format``, or for the ``text.format`` of a response.

    Raises:
        ApiError: the schema is missing, or does not belong to the type.
    """
    if form is None:
        return None
    if isinstance(form, ResponseFormat):
        field, key, schema = "response_format", "json_schema", form.json_schema and form.json_schema.schema_
    else:
        field, key, schema = "text.format", "schema", form.schema_
    if (schema is not None) != (form.type == "json_schema"):
        raise ApiError(f"{field} needs a {key} exactly if its type is json_schema", param=field)
    if form.type == "text":
        return None
    return {"json_schema": ANY_OBJECT if schema is None else schema}
