"""The pages of the door, for browsers that are not logged in. They need no script and show nothing of the server."""

from html import escape

from starlette.responses import HTMLResponse, Response

_NO_STORE = {"cache-control": "no-store"}


def ask_for_token(problem: str = "") -> Response:
    """Return the page that asks for the token."""
    told = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    return _page("token needed", f"{_TELL}\n{told}\n{_FORM}", 401)


def go_on(address: str) -> Response:
    """Return a page that leads to an address at once. Unlike after a redirect, the request comes from a page of ours:
    browsers send no strict cookie along redirects from other sites, and no form's answer may lead to another site."""
    shown = escape(address)
    page = _page(
        "opening", f'<p>The dashboard opens now, or by <a href="{shown}">this link</a>.</p>\n{_LOCALHOST}', 200
    )
    page.headers["refresh"] = f"0; url={address}"
    return page


def name_ended(address: str) -> Response:
    """Return the page for a name that the dashboard had before all sessions ended."""
    shown = escape(address)
    return _page(
        "address not valid",
        "<p>This address is not valid, or not any more because all sessions were ended. "
        f'Log in at <a href="{shown}">{shown}</a>.</p>',
        403,
    )


def no_session() -> Response:
    """Return the page for a name at which the session's cookie could reach other servers."""
    return _page(
        "no login here",
        "<p>You cannot log in at this address. Its cookie would reach every other server of this host. Open the "
        "dashboard on the machine itself, or start the server with its public address: "
        "<code>keephold serve --url https://…</code>.</p>",
        403,
    )


def _page(title: str, body: str, status: int) -> Response:
    return HTMLResponse(_FRAME.replace("TITLE", title).replace("BODY", body), status, _NO_STORE)


_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>keephold: TITLE</title>
<link rel="stylesheet" href="/static/style.css">
</head>
<body class="door">
<main id="main">
<h1>keephold</h1>
BODY
</main>
</body>
</html>
"""
_LOCALHOST = """<p class="soft">On this machine, the dashboard has an address of its own that ends in
<code>.localhost</code>. If your browser does not find that address, use Chromium or Firefox.</p>"""
_TELL = """<p>This page is for the owner of the server. <code>keephold serve</code> printed an address with a token when
it started, or the file that has the token. Open the address, or paste the token here.</p>"""
_FORM = f"""<form method="post" action="/login">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus>
<button type="submit">Open</button>
</form>
{_LOCALHOST}"""
