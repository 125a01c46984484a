"""Requests made to do harm: what is no HTTP, no JSON or no number that means anything, names that lead elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from each_case import each_case
from running_server import HELLO, Running, refused
from tiers import tiered

from glinfer.server import protocol
from glinfer.server.auth import Access
from glinfer.server.errors import ApiError
from glinfer.server.json_text import json_bytes, parsed_json
from glinfer.server.limits import LIMITS
from glinfer.server.routes import ROUTES
from glinfer.server.structured import CalledFunction, ToolCall

POSTS, GETS = ([route.path for route in ROUTES if route.method == method] for method in ("POST", "GET"))

pytestmark = pytest.mark.gl

ASKED: dict[str, Any] = {"model": "small", "prompt": "x", "messages": HELLO, "input": "xy", "tokens": [1], "block": 0}
ASKED |= {"max_tokens": 2, "query": "x", "documents": ["y"]}


def asked_of(path: str) -> dict[str, Any]:
    """What a route needs, with a prompt where it could be a conversation."""
    (known,) = (route.body.model_fields for route in ROUTES if route.path == path and route.body is not None)
    left_out = "messages" if "prompt" in known else ""
    return {name: value for name, value in ASKED.items() if name in known and name != left_out}


def raw(server: Running, data: bytes, *, seconds: float = 120) -> bytes:
    """Everything that the server answers to bytes, up to where it closes or says nothing more."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80), timeout=seconds) as made:
        made.sendall(data)
        found = b""
        try:
            while part := made.recv(1 << 16):
                found += part
        except (TimeoutError, ConnectionResetError):
            pass
        return found


def no_number(word: str) -> None:
    """What Python's reader of JSON calls for NaN and infinities."""
    pytest.fail(f"an answer has {word}")


def still_serves(server: Running) -> None:
    assert server.post("/v1/completions", {"model": "small", "prompt": "x", "max_tokens": 2}).status_code == 200


class TestFraming:
    HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    BODY = json.dumps({"model": "small", "prompt": "x", "max_tokens": 1})
    HIDDEN = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def test_a_request_of_two_meanings_is_refused(self, served: Running) -> None:
        for text in (
            self.HEAD + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
            self.HEAD + "Content-Length: 5, 6\r\n\r\nabcde",
            self.HEAD + "Content-Length: +5\r\n\r\nabcde",
            self.HEAD + "Content-Length: -1\r\n\r\nabcde",
            self.HEAD + "Content-Length: 0x5\r\n\r\nabcde",
            self.HEAD + "Content-Length: " + "9" * 40 + "\r\n\r\nabcde",
            self.HEAD + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            self.HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            self.HEAD + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
            self.HEAD + "Content-Length: 5\r\nX: a\rTransfer-Encoding: chunked\r\n\r\nabcde",
            self.HEAD + "X: a\0b\r\n\r\n",
            self.HEAD + f"Content-Length: {len(self.HIDDEN)}\r\n\r\n{self.HIDDEN}",  # a request in a body is none
            "POST /\r\n\r\n",
            "POST /v1/completions HTTP/1.1\r\n\r\n",
            "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
            "GET /hea\x01lth HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + "a" * (1 << 17) + "\r\n\r\n",
            "\x16\x03\x01\x02\x00\x01\x00",
        ):
            answer = raw(served, text.encode("latin-1") + b"\r\n\r\n")
            assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), (text[-80:], answer[:200])
            assert answer.count(b"HTTP/1.1") == 1, f"what follows is not taken for a request: {text[-80:]}"
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        still_serves(served)

    def test_a_length_beside_chunks(self, served: Running) -> None:
        """RFC 9112, 6.3: the chunks count, and nothing behind them is taken for a request."""
        length = f"Content-Length: {len(self.BODY)}\r\n"
        chunks = f"{len(self.BODY):x}\r\n{self.BODY}\r\n0\r\n\r\n"
        answer = raw(served, (self.HEAD + length + "Transfer-Encoding: chunked\r\n\r\n" + chunks).encode())
        assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")), answer[:200]
        assert answer.count(b"HTTP/1.1") == 1

    def test_requests_without_a_pause_are_answered_in_order(self, served: Running) -> None:
        """Those after the first few wait as bytes, since each parsed request takes memory."""
        asked = "".join(f"GET /v1/models/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n" for number in range(500))
        answer = raw(served, (asked + "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").encode())
        assert [int(found) for found in re.findall(rb"there is no model '(\d+)'", answer)] == list(range(500))
        assert answer.count(b"HTTP/1.1 404 ") == 500
        assert answer.count(b"HTTP/1.1 200 ") == 1

    def test_fields_after_a_body_and_offers_of_other_protocols_are_ignored(self, served: Running) -> None:
        chunks = f"{len(self.BODY):x}\r\n{self.BODY}\r\n0\r\n" + "Host: evil.example\r\n" * 1000 + "\r\n"
        answer = raw(served, (self.HEAD + "Transfer-Encoding: chunked\r\n\r\n" + chunks).encode())
        assert answer.startswith(b"HTTP/1.1 200 ")
        head = self.HEAD.replace("close", "Upgrade, HTTP2-Settings") + "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        last = self.HIDDEN.replace("localhost", "localhost\r\nConnection: close")
        answer = raw(served, f"{head}Content-Length: {len(self.BODY)}\r\n\r\n{self.BODY}{last}".encode())
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert b"text_completion" in answer

    def test_chunks_that_are_none(self, served: Running, capfd: pytest.CaptureFixture[str]) -> None:
        for chunk in ("zz", "-1", "fffffffffffffffffffff", "5\r\nabcdefgh", "5;" + "a" * 99999):
            head = self.HEAD + "Transfer-Encoding: chunked\r\n\r\n"
            raw(served, (head + chunk + "\r\n" * 3).encode(), seconds=2)
        still_serves(served)
        assert capfd.readouterr().err == ""


class TestBodies:
    def test_a_promise_of_too_much_is_refused_before_a_byte_comes(self, served: Running) -> None:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LIMITS.body_bytes + 1}\r\n"
        assert raw(served, (head + "Expect: 100-continue\r\n\r\n").encode()).startswith(b"HTTP/1.1 413 ")
        # Who sends it all before reading sees the answer too, which a connection that is reset would lose.
        body = b" " * (LIMITS.body_bytes + 1)
        assert raw(served, head.encode() + b"\r\n" + body).startswith(b"HTTP/1.1 413 ")

    def test_chunks_without_end_are_refused_at_the_limit(self, served: Running) -> None:
        sent = [0]

        def endless() -> Iterator[bytes]:
            while sent[0] < 64 << 20:
                sent[0] += 1 << 20
                yield b" " * (1 << 20)

        with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # it may close before all of it was sent
            assert httpx.post(f"{served.url}/v1/completions", content=endless(), timeout=30).status_code == 413
        assert sent[0] <= LIMITS.body_bytes + (16 << 20), "what the buffers of the system hold"
        still_serves(served)

    WRONG = (
        ("/detokenize", "tokens", ['""']), ("/v1/completions", "prompt", ["[]", "1.5", '[""]']),
        ("/v1/embeddings", "input", ["1.5", "[1.5]"]), ("/v1/rerank", "documents", ["{}", "5"]),
        ("/v1/completions", "guided_choice", ["5"]), ("/v1/completions", "stop", ["5", '""']),
        ("/v1/chat/completions", "messages", ["{}", "5", '{"role": "user", "content": [{}, {}, {}]}']),
        ("/v1/chat/completions", "tools", ["{}", '{"type": "function", "function": {}}']),
        ("/v1/responses", "input", ["5", '{"content": [{}, {}]}']), ("/v1/responses", "tools", ["5", "{}"]),
    )  # fmt: skip

    @pytest.fixture
    @staticmethod
    def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many complaints each body was refused with."""
        found, said = list[int](), protocol._validation_error
        monkeypatch.setattr(
            protocol, "_validation_error", lambda error: found.append(error.error_count()) or said(error)
        )
        return found

    def test_a_million_wrong_elements_are_one_complaint(self, counts: list[int]) -> None:
        """Each takes pydantic some hundred bytes and microseconds, on the event loop."""
        for path, field, wrong in self.WRONG:
            body = next(route.body for route in ROUTES if route.path == path)
            assert body is not None
            for each in wrong:
                text = f'{{"model": "m", "{field}": [{", ".join([each] * 3000)}]}}'
                with pytest.raises(ApiError):
                    body.read(text.encode())
                assert counts[-1] < 12, (path, each)

    def test_a_million_unknown_fields_are_one_complaint(self, counts: list[int]) -> None:
        fields = ", ".join(f'"{number}": ""' for number in range(3000))
        for place in ("", '"messages": [{%s}]', '"logit_bias": {%s}', '"tools": [{%s}]'):
            talk = "" if "messages" in place else '"messages": [{"role": "user", "content": "x"}], '
            text = '{"model": "m", ' + talk + (place % fields if place else fields) + "}"
            with pytest.raises(ApiError, match=r"expected at most 10[0-9]+ (fields|entries), found") as caught:
                protocol.ChatCompletionRequest.read(text.encode())
            assert len(str(caught.value)) < 300
        assert max(counts, default=0) < 5

    def test_a_long_text_is_not_even_tokenized(self, served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        from glinfer.text.tokenizer import Tokenizer

        lengths: list[int] = []
        encode = Tokenizer.encode

        def encoding(self: Tokenizer, text: str, **options: Any) -> list[int]:
            lengths.append(len(text))
            return encode(self, text, **options)

        monkeypatch.setattr(Tokenizer, "encode", encoding)
        text = "a" * (LIMITS.body_bytes - 1000)
        asked: dict[str, Any] = {"model": "small", "prompt": text, "input": [text], "messages": []}
        asked["messages"] = [{"role": "user", "content": text}]
        for path, field in (
            ("/v1/completions", "prompt"),
            ("/v1/score", "input"),
            ("/v1/chat/completions", "messages"),
        ):
            refused(served.post(path, {"model": "small", field: asked[field]}), code="context_length_exceeded")
        assert max(lengths, default=0) < 100_000

    @tiered("path", list(POSTS), keep=1)
    def test_nested_deeply(self, served: Running, path: str) -> None:
        """Python's own limits of depth are met at different places of the way; each is a 400."""
        for field in ("prompt", "messages", "input", "stop", "logit_bias", "tools", "metadata", "best_of", "nobody"):
            for depth in (980, 100_000):
                for opening, closing in (("[", "]"), ('{"a":', "}")):
                    nested = opening * depth + "1" + closing * depth
                    answer = served.request("POST", path, content=f'{{"model": "small", "{field}": {nested}}}')
                    if not (answer.status_code == 200 and field in ("tools", "metadata", "prompt")):
                        refused(answer)


WORDS = """
1e999 -1e999 NaN Infinity -Infinity 1e308 -1e308 5e-324 -0.0 1.5 true 9223372036854775808 4294967296 2147483648 -1 0
"1" [] {} {"1":1e999} {"1":1e308} {"-1":1} {"99999":1} [1,99999999999999999999] [-1] [1e3]
"""
NUMBERS = [*WORDS.split(), "9" * 300, "-" + "9" * 300, "9" * 5000]
FIELD_NAMES = """
max_tokens max_completion_tokens max_output_tokens temperature top_p top_k min_p repetition_penalty seed n best_of
presence_penalty frequency_penalty logit_bias logprobs top_logprobs stop stream stream_options echo block top_n
query documents dimensions prompt messages input tokens model instructions
"""
NAMES = FIELD_NAMES.split()


@tiered(("path", "stride"), [("/v1/completions", 8), *((path, 6) for path in POSTS[:5])])
def test_numbers_of_every_kind_in_every_field(served: Running, path: str, stride: int) -> None:
    """Either the request runs, and its answer has no number that JSON has not, or it is a 400."""
    with served.http() as http:
        for place, name in enumerate(NAMES):
            for number in NUMBERS[place % stride :: stride]:
                given = ((key, value) for key, value in asked_of(path).items() if key != name)
                text = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in given)
                answer = http.post(path, content=f'{{{text}, "{name}": {number}}}')
                if answer.status_code == 404:
                    assert name == "model"
                elif answer.status_code != 200:
                    refused(answer)
                elif "text/event-stream" not in answer.headers["content-type"]:
                    json.loads(answer.content, parse_constant=no_number)


PATHS = (
    *("../secret", "..%2fsecret", "%2e%2e/secret", "..%5csecret", "....//secret", "%252e%252e/secret", "/etc/passwd"),
    *("%00", "a%00b", "index.html%00.js", "%ff%fe", "C:%5cwindows", "~root", "." * 300, "a/" * 300),
    *("%F0%9F%A6%99", "//evil.example/", "a%0d%0aX-Evil:%20yes"),
)


class TestNames:
    def test_files_outside_the_page_and_models(self, locked: Running, served: Running) -> None:
        rest = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer one\r\n\r\n"
        files, models = ((locked, path) for path in ("link", *PATHS)), ((served, f"v1/models/{path}") for path in PATHS)
        for server, target in (*files, *models):
            answer = raw(server, f"GET /{target} {rest}".encode())
            assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), (target, answer[:200])
            assert b"the secret" not in answer
            assert b"x-evil" not in answer.partition(b"\r\n\r\n")[0].lower(), "a name made a header of its own"

    def test_in_bodies(self, served: Running) -> None:
        for name in ("../small", "small\0", "small ", "SMALL", "/etc/passwd", "\u202esmall", "🦙", "{{7*7}}"):
            answer = served.post("/v1/completions", {"model": name, "prompt": "x"})
            refused(answer, 404, code="model_not_found")
            assert "49" not in answer.text


class TestKeys:
    def test_every_route_asks_before_it_reads(self, keyed: Running) -> None:
        paths = [*POSTS, *GETS, "/openapi.json", "/", "/nowhere", "//v1/models", "/v1/models/../models"]
        wrong = [b"", b"Bearer two2", b"Bearer", b"Bearer tw", b"bearer \xff\xfe", b"Token two", b"two"]
        asked = [*((path, given) for path in paths for given in wrong[:2]), *((POSTS[0], given) for given in wrong[2:])]
        for path, given in asked:
            method = "POST" if path in POSTS else "GET"
            header = b"Authorization: " + given + b"\r\n" if given else b""
            length = b"Content-Length: 100000\r\n" if path in POSTS else b""  # of which nothing is ever sent
            head = f"{method} {path.replace('{model}', 'x')} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            answer = raw(keyed, head.encode() + header + length + b"\r\n")
            # The page asks for the key itself, and is the same for everybody.
            expected = b"HTTP/1.1 200 " if path in ("/health", "/") else b"HTTP/1.1 401 "
            assert answer.startswith(expected), (path, given, answer[:200])

    def test_other_letters_and_two_headers(self, keyed: Running) -> None:
        """A key is UTF-8, and the first counts, as everywhere: a second one lets nobody in."""
        right, head = "sésame".encode(), b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        for keys, status in (([right], b"200"), (["sésame".encode("latin-1")], b"401"), ([b"no", right], b"401")):
            given = b"".join(b"Authorization: Bearer " + key + b"\r\n" for key in keys)
            assert raw(keyed, head + given + b"\r\n").split(b" ")[1] == status, keys


class TestSites:
    HOSTS = (
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", ""),
        *("2130706433.evil.example", "169.254.169.254", "[::ffff:10.0.0.1]", "localhost:80:80", "0.0.0.0"),
    )

    def test_a_name_that_leads_here(self, served: Running) -> None:
        """An address in the request line changes nothing."""
        for place, host in (*(("", host) for host in self.HOSTS), ("http://localhost", "evil.example")):
            head = f"GET {place}/v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            assert raw(served, head.encode()).startswith((b"HTTP/1.1 421 ", b"HTTP/1.1 400 ")), host

    def test_a_request_without_host(self, served: Running) -> None:
        """HTTP/1.0 has no Host; browsers always send one, which DNS rebinding needs."""
        for version, more, status in (
            ("1.0", "", b"200"),
            ("1.0", "Host: localhost\r\n", b"200"),
            ("1.0", "Host:\r\n", b"421"),
            ("1.0", "Host: evil.example\r\n", b"421"),
            ("1.0", "Origin: http://\r\n", b"403"),
            ("1.0", "Origin: http://localhost\r\n", b"403"),
            ("1.1", "", b"400"),
        ):
            answer = raw(served, f"GET /v1/models HTTP/{version}\r\n{more}\r\n".encode())
            assert answer.split(b" ")[1] == status, (version, more)

    def test_no_other_site_may_read(self, served: Running) -> None:
        origin = {"Origin": "https://evil.example"}
        for path, method in itertools.product([*POSTS, *GETS], ("GET", "POST", "OPTIONS")):
            asked = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
            answer = served.request(method, path, headers={**origin, **asked})
            assert answer.status_code == 403, (method, path)
            assert not any(name.lower().startswith("access-control-") for name in answer.headers)

    def test_an_address_of_somebody_else(self, served: Running) -> None:
        """X-Forwarded-For makes nobody another client, whose prefixes could be felt for."""
        asked = {"model": "small", "prompt": "Zounds, quoth he, whose address is it", "max_tokens": 1}
        for name, cached in (("1.2.3.4", False), ("5.6.7.8", True)):
            usage = served.post("/v1/completions", asked, headers={"X-Forwarded-For": name}).json()["usage"]
            assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == cached


def test_log_probabilities_are_numbers(served: Running) -> None:
    """With a bias and a temperature at their ends."""
    tiny = {"temperature": 1e-300}, {"repetition_penalty": 1e-300}
    for change in ({"logit_bias": {"65": 100}}, {"temperature": 100}, *tiny):
        asked = {**change, "model": "small", "prompt": "x", "max_tokens": 3, "logprobs": 2}
        answer = served.post("/v1/completions", asked)
        if answer.status_code != 400:
            assert answer.status_code == 200, (change, answer.text)
            assert all(map(math.isfinite, answer.json()["choices"][0]["logprobs"]["token_logprobs"]))


HALF = '"\\uD83d"'


@each_case("kind", [route.body for route in ROUTES if route.body is not None])
def test_half_a_surrogate_pair_anywhere(kind: type[protocol.RequestBody]) -> None:
    """No answer can say it again; a whole pair is a character."""
    fields = {*kind.model_fields, *kind.ignored, *kind.neutral, "nobody"}
    for field, form in itertools.product(sorted(fields), ("%s", "[%s]", "[{%s:1}]", '{"a":{"b":[1,%s]}}')):
        text = f'{{"model":"m","{field}":{form % HALF}}}'
        with pytest.raises(ApiError, match="half a surrogate pair"):
            kind.read(text.encode())
    with pytest.raises(ApiError, match="not JSON"):
        kind.read(b'{"model":"\xed\xa0\xbd"}')
    with pytest.raises(ApiError) as caught:
        kind.read(b'{"model":"\\ud83d\\ude00", "nobody": "\\\\ud83d"}')
    assert "surrogate" not in str(caught.value)


class TestJson:
    WRONG = (
        (b"[" + b"[]," * 100 + b"[]]", "found some 202 values"),
        (b"[" + b"{}," * 100 + b"{}]", "found some 202 values"),
        (b"[" + b"1," * 100 + b"1]", "found some 101 values"),
        (b'{"a":1' + b',"a":1' * 30 + b"}", "found some 155 values"),
        (b'["\\\\",' + b"[]," * 100 + b'"\\""]', "values"),
        (b"[" * 129 + b"]" * 129, "found some 129 values"),
        (b"[NaN]", "found NaN"), (b"[1e999, -Infinity]", "found -Infinity"), (b"\xff", "utf-8"), (b"", "Expecting"),
        ('["x"]'.encode("utf-16"), "utf-8"),
    )  # fmt: skip
    RIGHT = (
        b'{"a": "' + b"[,{:" * 500 + b'"}', b'["\\"[[[[[\\\\\\"", "\\\\"]', b"[" * 60 + b"]" * 60, b"\xef\xbb\xbf[1]",
        '"é🦙"'.encode(), b'"\\ud83d\\ude00"', b'"\\\\ud800"',
    )  # fmt: skip

    @each_case(("text", "words"), WRONG)
    def test_too_much_of_it(self, text: bytes, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            parsed_json(text, 100)

    def test_too_deep(self) -> None:
        for text in (b"[" * 129 + b"]" * 129, b'{"a":' * 129 + b"1" + b"}" * 129):
            with pytest.raises(ValueError, match="more than 128"):
                parsed_json(text, 10_000)

    @each_case("text", RIGHT)
    def test_what_texts_have_in_them_does_not_count(self, text: bytes) -> None:
        assert parsed_json(text, 100) == json.loads(text.decode("utf-8-sig"))

    def test_arguments_of_a_call(self) -> None:
        """They are JSON in a text, and nested in it they count too."""
        for arguments in ('{"a": [' + "[]," * LIMITS.call_values + "[]]}", '{"a":' * 200 + "1" + "}" * 200, '"\ud800"'):
            call = ToolCall(function=CalledFunction(name="f", arguments=arguments))
            with pytest.raises(ApiError, match="arguments of a call in message 3 are not a JSON object"):
                call.for_template(3)

    def test_answers_are_written_whatever_they_hold(self) -> None:
        value = {"é": [1.5, None, "x", True, 2], "b": [], "c": [[], [[1, 2, 3, 4]], {"d": {"e": [1, {"f": "\ud800"}]}}]}
        assert json.loads(json_bytes(value)) == json.loads(json.dumps(value).replace("\\ud800", "?"))
        for each in ([], {}, "x", 5, None, [1] * 7):
            assert json.loads(json_bytes(each)) == each
        assert json_bytes([math.nan, -math.inf, 1.5]) == b"[null,null,1.5]"


class TestHeaders:
    WORDS = (
        *("http://[", "http://]", "http://a]b", "http://[zz]", "http://[::1", "http://[v1.x]", "http://a:b", "//["),
        *("[", "http://a:99999", "\xff", "http://\xe4]", "", "null", "http://[::1]]", "http://\u2100/"),
        "http://a\u2044b",
    )

    @each_case("word", WORDS)
    def test_an_origin_or_a_host_that_is_none(self, word: str) -> None:
        access = Access(keys=("one",))
        for given in (word, f"https://{word}", f"{word}:80"):
            assert not access.knows_origin(given, "localhost")
            assert not access.knows_host(given)
            assert access.client(given) is access.client(f"Basic {given}") is None

    def test_the_answer_to_one(self, served: Running) -> None:
        for name in ("Origin", "Host"):
            head = "" if name == "Host" else "Host: localhost\r\n"
            text = f"GET /v1/models HTTP/1.1\r\n{head}{name}: http://[\r\nConnection: close\r\n\r\n"
            assert raw(served, text.encode()).startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 421 "))
