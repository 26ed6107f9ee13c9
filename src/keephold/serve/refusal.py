"""What is refused, as the API tells it: a status, a stable code, and a sentence (`errors.CODES`)."""

from starlette.responses import JSONResponse

from keephold.errors import KeepholdError

STATUS = {
    "bad_answer": 422,
    "conversation_not_found": 404,
    "handle_expired": 404,
    "handle_not_found": 404,
    "invalid_arguments": 400,
    "invalid_handle_id": 400,
    "invalid_resolution": 400,
    "limit_exceeded": 413,
    "not_allowed": 405,
    "owner_not_answering": 504,
    "runtime_closed": 503,
    "runtime_closing": 503,
    "store_unavailable": 503,
}
"""By the code of an error; any other says that it does not fit the state of things, which is 409."""


def refusal(error: KeepholdError) -> JSONResponse:
    """The response that tells of an error."""
    return refused(error.code, error.message, STATUS.get(error.code, 409))


def refused(code: str, message: str, status: int) -> JSONResponse:
    """The same, of something that is not an error of ours."""
    return JSONResponse({"error": {"code": code, "message": message}}, status)
