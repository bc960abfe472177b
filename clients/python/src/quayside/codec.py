"""Converts data to the body of an element, and back."""

from __future__ import annotations

import json
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Codec(Protocol[T]):
    """Both methods may raise ValueError or TypeError, which callers receive as a ValidationError."""

    def encode(self, data: T) -> tuple[bytes | str, str]:
        """Returns the body and its content type. A body that is a str is sent as UTF-8."""
        ...

    def decode(self, body: bytes, content_type: str) -> T: ...


class DefaultCodec:
    """JSON, or bytes as they are. Decodes JSON, text to `str`, and other content types to `bytes`."""

    def encode(self, data: Any) -> tuple[bytes, str]:
        if isinstance(data, (bytes, bytearray, memoryview)):
            return bytes(data), "application/octet-stream"
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode(), "application/json"

    def decode(self, body: bytes, content_type: str) -> Any:
        media_type = content_type.split(";", 1)[0].strip().lower()
        if media_type == "application/json" or media_type.endswith("+json"):
            return json.loads(body)
        if media_type.startswith("text/"):
            return body.decode()
        return body
