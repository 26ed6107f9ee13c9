"""Which servers are on this machine: they alone are sent the token that is kept beside the store (K5)."""

import pytest

from holdfast.control.remote_requests import is_local


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8420", "http://127.3.2.1", "http://localhost:1/", "https://LOCALHOST", "http://[::1]:8420"],
)
def test_K5_a_loopback_address_is_this_machine(url: str) -> None:
    assert is_local(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1.evil.example",
        "http://127.evil.example:8420",
        "http://localhost.evil.example",
        "http://127.0.0.1@evil.example",
        "http://10.0.0.1",
        "http://[2001:db8::1]",
        "",
    ],
)
def test_K5_a_name_that_looks_like_one_is_not(url: str) -> None:
    assert not is_local(url)
