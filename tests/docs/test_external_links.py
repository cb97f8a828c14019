# SPDX-License-Identifier: Apache-2.0
"""The check of external links, on a server of this machine; the addresses of the documentation are not asked here."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.external_links import addresses_of, main, pages


class Answers(http.server.BaseHTTPRequestHandler):
    """/there is a page, /closed takes no programs, all else is missing."""

    def do_GET(self) -> None:
        self.send_response({"/there": 200, "/closed": 403}.get(self.path, 404))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("tests.docs.external_links._NO_PAGES", ("http://www.w3.org/",))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_addresses_are_found_in_text_links_and_code(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "[x](https://a.org/b) and https://c.org.\n`https://d.org/e` (https://a.org/b)\nhttp://www.w3.org/2000/svg\n"
    )
    found = addresses_of([page])
    assert found == {
        "https://a.org/b": ["a.md:1", "a.md:2"],
        "https://c.org": ["a.md:1"],
        "https://d.org/e": ["a.md:2"],
    }


def test_what_is_missing_is_told(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"{server}/there {server}/closed\n")
    assert main([page]) == 0
    assert capsys.readouterr().out == "2 addresses, 0 cannot be had\n"
    page.write_text(f"{server}/there\n{server}/gone\n")
    assert main([page]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [f"a.md:2: {server}/gone: 404 Not Found", "2 addresses, 1 cannot be had"]


def test_a_server_that_is_not_there_is_told(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "a.md"
    page.write_text("http://127.0.0.1:9/x\n")
    assert main([page]) == 1
    assert "a.md:1: http://127.0.0.1:9/x: " in capsys.readouterr().out


def test_the_documentation_has_addresses() -> None:
    assert len(addresses_of(pages())) >= 5
