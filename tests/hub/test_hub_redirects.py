"""Redirects of a hub: none into a private network that the hub is not in, and the user's token to no other host."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from hub_server import Hub

from glinfer.engine.fetching import found_model
from glinfer.errors import HubError
from glinfer.hub import addresses
from glinfer.hub.addresses import is_private, leads_inside

NAME = "org/model"
PUBLIC = "93.184.216.34"
pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

PRIVATE = [
    *(
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
    ),
    *("100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fd00::1"),
    *("fc00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2001:db8::1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::", "::127.0.0.1", "fd00:ec2::254"),
]
WRITTEN = ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "0xa9fea9fe", "2852039166", "localhost", "LOCALHOST"]


@each_case("address", PRIVATE)
def test_addresses_of_private_networks(address: str) -> None:
    assert is_private(address)


@each_case("address", ["1.1.1.1", PUBLIC, "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1", "172.32.0.1"])
def test_public_addresses(address: str) -> None:
    assert not is_private(address)


@each_case("host", [*WRITTEN, "127.0.0.1", "::1"])
def test_hosts_in_other_forms(host: str) -> None:
    assert leads_inside(host)


def test_a_name_leads_inside_by_any_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (address, 0)) for address in (PUBLIC, "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert leads_inside("both.example")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1])
    assert not leads_inside("both.example")


@pytest.fixture
def public(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub that looks like one on a public address, and storage of a name that looks so too."""
    from huggingface_hub import constants

    port, real = hub.url.rpartition(":")[2], socket.getaddrinfo
    monkeypatch.setattr(constants, "ENDPOINT", f"http://hub.example:{port}")
    looked_up = addresses.addresses_of

    def connecting(host: Any, *more: Any, **options: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".example") else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", connecting)
    monkeypatch.setattr(
        addresses, "addresses_of", lambda host: [PUBLIC] if host.endswith(".example") else looked_up(host)
    )
    return hub


def leading_to(hub: Hub, *hops: str) -> None:
    """Answer with a chain of redirects."""
    for number, hop in enumerate(hops):
        asked = "/resolve/" if number == 0 else f"/hop{number}"
        hub.faults.append(
            lambda each, asked=asked, hop=hop: asked in each.path and each.reply(302, {"Location": hop}, b"")
        )


class TestAPublicHub:
    @each_case("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", *WRITTEN])
    def test_may_not_send_inside(self, public: Hub, gguf: bytes, host: str) -> None:
        public.clear()
        public.add(NAME, {"m.gguf": gguf})
        port = public.address("storage").rpartition(":")[2]
        leading_to(public, f"http://{host}:{port}/x")
        own = "answered with status 302" if host.startswith("01") else "which is in a private network; do not trust it"
        with pytest.raises(HubError, match=rf"{NAME}: hub\.example:\d+ .*{own}") as caught:
            found_model(NAME)
        assert "\n" not in str(caught.value)
        assert not public.paths("storage"), "nothing was asked there"

    def test_nor_after_some_hops(self, public: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("glinfer.hub.client.guard", lambda *_: None)  # to which all of these are on this machine
        public.add(NAME, {"m.gguf": gguf})
        other = f"http://other.example:{public.url.rpartition(':')[2]}/hop2"
        leading_to(public, "/hop1", other, public.address("storage"))
        with pytest.raises(HubError, match=r"redirects to 127\.0\.0\.1, which is in a private network"):
            found_model(NAME)
        assert {"/hop1", "/hop2"} <= set(public.paths("hub"))
        assert not public.paths("storage")

    def test_nor_to_a_name_that_has_another_address_when_it_is_connected_to(self, public: Hub, gguf: bytes) -> None:
        public.add(NAME, {"m.gguf": gguf})
        leading_to(public, f"http://storage.example:{public.address('storage').rpartition(':')[2]}/x")
        with pytest.raises(HubError, match=r"redirects to storage\.example, which is in a private network"):
            found_model(NAME)
        assert not public.paths("storage")

    def test_may_send_within_itself(self, public: Hub, gguf: bytes) -> None:
        public.add(NAME, {"m.gguf": gguf})
        public.faults.append(
            lambda each: (
                "blobs=true" in each.path
                and "again" not in each.path
                and each.reply(302, {"Location": f"{each.path}&again"}, b"")
            )
        )
        with pytest.raises(HubError, match=r"redirects to 127\.0\.0\.1"):  # where the weights are
            found_model(NAME)
        assert any("again" in path for path in public.paths("hub"))

    def test_may_send_to_public_hosts(self, public: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(addresses, "is_private", lambda address: False)
        public.add(NAME, {"m.gguf": gguf})
        assert Path(found_model(NAME)).read_bytes() == gguf
        assert public.paths("storage")


class TestAPrivateHub:
    def test_may_send_inside(self, hub: Hub, gguf: bytes) -> None:
        hub.add(NAME, {"m.gguf": gguf})
        port, digest = hub.address("storage").rpartition(":")[2], hashlib.sha256(gguf).hexdigest()
        leading_to(hub, f"http://localhost:{port}/blobs/{digest}")
        assert Path(found_model(NAME)).read_bytes() == gguf
        assert hub.paths("storage")

    def test_keeps_the_token_to_itself(self, hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.add(NAME, {"m.gguf": gguf}, token="hf_secret")
        found_model(NAME)
        sent = {each.origin: each.headers.get("Authorization", "") for each in hub.asked}
        assert sent == {"hub": "Bearer hf_secret", "storage": ""}

    def test_and_gives_none_back_behind_another_host(
        self, hub: Hub, gguf: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.add(NAME, {"m.gguf": gguf}, token="hf_secret")
        back = f"{hub.url}/back"
        hub.faults.append(lambda each: each.origin == "storage" and each.reply(302, {"Location": back}, b""))
        with pytest.raises(HubError):
            found_model(NAME)
        assert [each.headers.get("Authorization") for each in hub.asked if each.path == "/back"] == [None]

    @each_case("location", ["ftp://x/y", "file:///etc/passwd", "http://", "http://[::1", "//", "http://a:99999/x"])
    def test_places_that_are_none(self, hub: Hub, gguf: bytes, location: str) -> None:
        hub.clear()
        hub.add(NAME, {"m.gguf": gguf})
        leading_to(hub, location)
        with pytest.raises(HubError) as caught:
            found_model(NAME)
        assert "\n" not in str(caught.value)
        assert str(caught.value).isprintable()
