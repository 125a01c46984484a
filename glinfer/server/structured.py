"""The fields of requests that ask for a structure or offer tools, and the options of a sequence that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StrictBool, StrictStr, Tag

from glinfer.errors import StructureError
from glinfer.server.errors import ApiError
from glinfer.server.json_text import parsed_json
from glinfer.server.limits import LIMITS, Several, Strict
from glinfer.server.served import Served
from glinfer.structured.structure import ANY_OBJECT
from glinfer.structured.tools import CallForm, MessageForm, Tool, call_grammar, tool_form

ToolName = Annotated[StrictStr, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class SchemaFields(Strict):
    """What a schema has beside it."""

    name: StrictStr | None = None
    """Ignored."""
    description: StrictStr | None = None
    """Ignored."""
    strict: StrictBool | None = None
    """The answer always has the schema, strict or not; a keyword that is not supported is refused."""


class NamedSchema(SchemaFields):
    """``json_schema`` of a ``response_format``."""

    schema_: Annotated[dict[StrictStr, Any] | StrictBool, Field(alias="schema")]
    """The JSON schema."""


class ResponseFormat(Strict):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    """For the type ``json_schema``."""


class TextFormat(SchemaFields):
    """``text.format`` of a response, which has in itself what a ``response_format`` has in its ``json_schema``."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Annotated[dict[StrictStr, Any] | StrictBool | None, Field(alias="schema")] = None
    """The JSON schema, for the type ``json_schema``."""


class ResponseText(Strict):
    """``text`` of a response."""

    format: TextFormat | None = None
    verbosity: StrictStr | None = None
    """Ignored."""


class FunctionDefinition(Strict):
    """A function that a model may call."""

    name: ToolName
    description: StrictStr | None = None
    parameters: dict[StrictStr, Any] | None = None
    """The JSON schema of its arguments; none without one."""
    strict: StrictBool | None = None
    """Whether keywords that are not supported are refused; otherwise they are passed over."""


class ResponseTool(FunctionDefinition):
    """One of ``tools`` of a response, which has in itself what others have in ``function``."""

    type: Literal["function"]


class NamedResponseTool(Strict):
    """The value of ``tool_choice`` of a response that names a function."""

    type: Literal["function"]
    name: ToolName


class ToolDefinition(Strict):
    """One of ``tools``."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Strict):
    """The name of a function."""

    name: ToolName


class NamedTool(Strict):
    """The value of ``tool_choice`` that names a function."""

    type: Literal["function"]
    function: FunctionName


class CalledFunction(Strict):
    """The function of a call, in a message of the assistant's."""

    name: ToolName
    arguments: StrictStr
    """Its arguments, as JSON; nothing but white space is ``{}``."""


class ToolCall(Strict):
    """A call, in a message of the assistant's."""

    id: StrictStr | None = None
    type: Literal["function"] | None = None
    function: CalledFunction
    index: int | None = None
    """Ignored."""

    def for_template(self, place: int, param: str = "messages") -> dict[str, Any]:
        """The call as templates take it, with its arguments as an object.

        ``place`` and ``param`` say where it stands in the request.

        Raises:
            ApiError: the arguments are no JSON object.
        """
        try:
            arguments = parsed_json((self.function.arguments.strip() or "{}").encode(), LIMITS.call_values)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            where = "message" if param == "messages" else "item"
            raise ApiError(f"the arguments of a call in {where} {place} are not a JSON object", param=param)
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
"""Functions, and what OpenAI's servers run by themselves, which clients send unasked; here it is passed over."""


def tool_use(
    served: Served,
    tools: Sequence[ToolDefinition | ResponseTool | Mapping[str, Any]],
    choice: str | NamedTool | NamedResponseTool | None,
    parallel: bool,
) -> tuple[CallForm, list[dict[str, Any]], str] | None:
    """How the model writes calls, the tools as its template takes them, and the grammar of answers; None without tools.

    Of a response's tools the functions count. Its clients always send some; a model whose template has no place for
    them is not told of any, unless the request insists.

    Raises:
        ApiError: the model's template takes none, there is no such tool, or two have one name.
    """
    given = (each.function if isinstance(each, ToolDefinition) else each for each in tools)
    functions = [each for each in given if isinstance(each, FunctionDefinition)]
    if not functions:
        if choice in (None, "none", "auto"):
            return None
        raise ApiError("tool_choice asks for a tool, and there are none; send tools too", param="tool_choice")
    if choice == "none":
        return None
    names = [each.name for each in functions]
    if len(set(names)) < len(names):
        raise ApiError("two tools have the same name; expected names that differ", param="tools")
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
    callable_tools = [
        Tool(each.name, each.parameters, bool(each.strict)) for each in functions if one in (None, each.name)
    ]
    grammar = call_grammar(
        form, callable_tools, required=one is not None or choice == "required", parallel=parallel and one is None
    )
    definitions = list[dict[str, Any]]()
    for each in functions:
        # Templates of such a form write a line of the description.
        described = {"description": each.description or ""} if isinstance(form, MessageForm) else {}
        function = {**each.model_dump(exclude_none=True, exclude={"type"}), **described}
        definitions.append({"type": "function", "function": function})
    return form, definitions, grammar


def _call_form(served: Served) -> CallForm:
    """How a model writes calls.

    Raises:
        StructureError: it writes none, or in a form that is not known.
    """
    chat = served.chat_form()
    if not chat.template_source:
        raise StructureError(f"the chat template of {served.name} has no place for tools; leave them out")
    form = tool_form(chat.template_source)
    if isinstance(form, MessageForm) and chat.channels is None:
        raise StructureError(
            f"the tokenizer of {served.name} has not the control tokens of its template's calls; leave tools out"
        )
    return form


def asked_by(form: ResponseFormat | TextFormat | None) -> Mapping[str, Any] | None:
    """The option that a ``response_format``, or the ``text.format`` of a response, stands for.

    Raises:
        ApiError: it has a schema and should not, or none and should.
    """
    if form is None:
        return None
    if isinstance(form, ResponseFormat):
        field, key, schema = "response_format", "json_schema", form.json_schema and form.json_schema.schema_
    else:
        field, key, schema = "text.format", "schema", form.schema_
    if (schema is not None) != (form.type == "json_schema"):
        raise ApiError(f"{field} has a {key} if its type is json_schema, and only then", param=field)
    if form.type == "text":
        return None
    return {"json_schema": ANY_OBJECT if schema is None else schema}
